"""A host: runs cells on the data it can see. It holds views and models, and no federated state."""

import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from algorithms.base import Algorithm
from algorithms.client import Client, ClientInfo
from algorithms.flat_model import FlatModel
from algorithms.protocol import Tree, Upload
from algorithms.training.local_training import Trainer
from algorithms.training.stacked_training import StackedTrainer
from engine.hosts.device import cache_bytes, creating_on, moved, placed, take_device
from engine.hosts.memory import keep_freed_memory
from engine.hosts.open_views import OpenViews
from engine.rounds.evaluation import score
from engine.rounds.reduction import reduce_cell, require_sound, upload_bytes
from engine.wire.cell import Outcome, Work
from engine.wire.job import Job
from engine.wire.models import stacks
from storage.errors import ShoalError
from storage.store import Store
from storage.view import Memo, View


@dataclass
class _Open:
    """What a host keeps of one job: all of it can be made again.

    The patterns, on the processor, draw initial parameters: they are the same on any device.
    """

    job: Job
    store: Store
    device: torch.device
    algorithm: Algorithm
    patterns: list[FlatModel]
    models: list[FlatModel]
    trainers: list[Trainer]
    stacked: list[StackedTrainer]
    infos: list[ClientInfo]
    views: OpenViews
    initials: dict[int, torch.Tensor] = field(default_factory=dict)

    def touch(self, view: View) -> None:
        """Brings into memory what training reads of a client's files."""
        model = self.models[self.infos[view.client].model]
        if model.coupled is None:
            view.touch(model.inputs, training=True)
        elif not model.coupled.fanouts:
            view.touch([0], training=False, edges=True)


@dataclass(frozen=True)
class _Fitted:
    """A client that was trained in one batch with others."""

    client: Client
    down: Tree
    w: torch.Tensor
    loss: float

    def resume(self) -> Client:
        """The client, with the host's model in its hands."""
        self.client.load(self.w)
        return self.client


@dataclass(frozen=True)
class _Served:
    """What one client leaves behind: snapshots, for the next client trains in the same memory."""

    upload: Upload
    state: Tree
    loss: float


class Host:
    """Serves cells of any job that was opened on it."""

    def __init__(self) -> None:
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        self._open: _Open | None = None
        self._memo = Memo(0)

    def open(self, job: Job) -> None:
        """Gets ready for a job; the views of the previous one are let go.

        Raises:
            ShoalError: The store or the method does not fit the job.
        """
        if self._open is not None and self._open.job.id == job.id:
            return
        torch.set_num_threads(job.threads)
        keep_freed_memory()
        device = take_device(job.device, job.gpu_share, job.precision)
        store = Store(job.store_path)
        algorithm = job.algorithm()
        patterns = job.build_models(store)
        models = placed(patterns, device)
        if self._open is not None and self._open.device != device:
            self._memo = Memo(0)
        self._memo.limit = cache_bytes(device, job.gpu_share, job.memo_bytes)
        trainers = [Trainer(model, job.train, algorithm.loss, algorithm.regularizer) for model in models]
        together = stacks(job.path, device.type, algorithm, models, job.train)
        stacked = [StackedTrainer(model, job.train) for model in models] if together else []
        views = OpenViews(partial(job.view, store, memo=self._memo, device=device))
        self._open = _Open(job, store, device, algorithm, patterns, models, trainers, stacked, job.infos(store), views)

    def serve(self, job_id: str, works: Sequence[Work], shared: Tree) -> Iterator[Outcome | None]:
        """Serves cells one after another; while a client is served, the data of the next one is opened.

        Raises:
            ShoalError: As `run` does.
        """
        opened = self._open
        if opened is not None:
            fit = any(work.fit for work in works)
            opened.views.plan([i for work in works for i in work.ids], opened.touch if fit else lambda view: None)
        for work in works:
            yield self.run(job_id, work, shared)

    def run(self, job_id: str, work: Work, shared: Tree) -> Outcome | None:
        """Serves one cell; None if the job is not open here (a host that was started again).

        Raises:
            ShoalError: A shard is damaged or the method's code failed; names round and client.
        """
        opened = self._open
        if opened is None or opened.job.id != job_id:
            return None
        outcome = Outcome()
        uploads: list[Upload] = []
        with creating_on(opened.device):
            self._run(opened, work, moved(shared, opened.device), outcome, uploads)
        if uploads:
            reduce_cell(uploads, work.up, outcome)
        return outcome

    def _run(self, opened: _Open, work: Work, shared: Tree, outcome: Outcome, uploads: list[Upload]) -> None:
        seconds = dict.fromkeys(("train", "upload", "evaluate"), 0.0)
        together = self._fit_together(work, shared, seconds) if opened.stacked and work.fit else {}
        for client_id in work.ids:
            try:
                fitted = together.pop(client_id, None)
                if isinstance(fitted, Exception):
                    raise fitted
                down = self._download(opened, client_id, work, shared) if fitted is None else fitted.down
                client = self.visit(client_id, work, down) if fitted is None else fitted.resume()
                upload = self._serve(opened, client, down, work, seconds, fitted) if work.phase else None
                if client_id in work.score:
                    began = time.perf_counter()
                    scored = score(opened.algorithm, client)
                    seconds["evaluate"] += time.perf_counter() - began
            except Exception as error:
                line = f"round {work.round}, client {client_id}: {_said(error)}"
                if not opened.job.skip_failed_clients:
                    raise ShoalError(line, traceback.format_exc()) from error
                outcome.failures[client_id] = line, traceback.format_exc()
                continue
            # Only now, so that a client that fails leaves nothing behind.
            outcome.ids.append(client_id)
            if upload is not None:
                uploads.append(upload.upload)
                outcome.losses.append(upload.loss)
                outcome.states[client_id] = upload.state
                outcome.bytes_up.append(upload_bytes(upload.upload))
            if client_id in work.score:
                outcome.scores[client_id] = scored
        outcome.seconds = seconds

    @staticmethod
    def _download(opened: _Open, client_id: int, work: Work, shared: Tree) -> Tree:
        """What a client is sent, on the host's device."""
        return {**shared, **moved(work.private.get(client_id, {}), opened.device)}

    def visit(self, client_id: int, work: Work, down: Tree) -> Client:
        """A client with its data, its state and a download applied; the next visit takes the model from it."""
        opened = self._open
        assert opened is not None
        job = opened.job
        view = opened.views.get(client_id)
        # Training changes moments in place; the values the round started from stay as they are.
        state = {name: t.to(opened.device, copy=True) for name, t in work.states.get(client_id, {}).items()}
        inbox = moved(work.inboxes.get(client_id, {}), opened.device)
        client = Client(
            opened.infos[client_id],
            view,
            opened.models[opened.infos[client_id].model],
            state,
            inbox,
            job.random(work.round, client_id),
        )
        if "w" in state:
            client.load(state["w"])
        else:
            client.load(self._initial(opened, client_id))
        opened.algorithm.begin(client, down)
        return client

    def _fit_together(self, work: Work, shared: Tree, seconds: dict[str, float]) -> dict[int, "_Fitted | Exception"]:
        """Trains the cell's clients in one batch; the error of one that cannot be visited waits for its turn."""
        opened = self._open
        assert opened is not None
        began = time.perf_counter()
        found: dict[int, _Fitted | Exception] = {}
        visited: list[tuple[Client, Tree]] = []
        parameters: list[torch.Tensor] = []
        for client_id in work.ids:
            down = self._download(opened, client_id, work, shared)
            try:
                client = self.visit(client_id, work, down)
                client.gathered("train")
            except Exception as error:
                found[client_id] = error
                continue
            if client.info.train:
                visited.append((client, down))
                parameters.append(client.w.clone())
        if not visited:
            return found
        clients = [client for client, _ in visited]
        w_BP = torch.stack(parameters)
        try:
            losses = opened.stacked[clients[0].info.model].fit(clients, w_BP)
        except Exception as error:
            # Whose fault it is cannot be told: each of them has failed when its turn comes.
            ids = [client.info.client for client in clients]
            why = f"in one batch with clients {ids}: {_said(error)}; engine.path=loop trains them one by one"
            failure = ShoalError(why)
            failure.__cause__ = error
            return found | dict.fromkeys(ids, failure)
        seconds["train"] += time.perf_counter() - began
        fitted = {c.info.client: _Fitted(c, down, w, loss) for (c, down), w, loss in zip(visited, w_BP, losses)}
        return found | fitted

    def _initial(self, opened: _Open, client_id: int) -> torch.Tensor:
        """Initial parameters; those that all clients of a model share are drawn once."""
        number = opened.infos[client_id].model
        if opened.job.models[number].init == "own":
            return opened.job.initial(opened.patterns, client_id)
        if number not in opened.initials:
            opened.initials[number] = opened.job.initial(opened.patterns, client_id)
        return opened.initials[number]

    def _serve(
        self, opened: _Open, client: Client, down: Tree, work: Work, seconds: dict[str, float], fitted: "_Fitted | None"
    ) -> "_Served":
        began = time.perf_counter()
        if fitted is not None:
            loss = fitted.loss
        else:
            loss = opened.trainers[client.info.model].fit(client, down) if work.fit else float("nan")
        trained = time.perf_counter()
        upload = opened.algorithm.upload(client, down, work.phase)
        if opened.algorithm.keeps_model:
            client.state["w"] = client.w
        sent = replace(
            upload,
            entries=_snapshot(upload.entries, client.w),
            weight={name: w.cpu() if isinstance(w, torch.Tensor) else w for name, w in upload.weight.items()},
        )
        require_sound(sent, work.up)
        seconds["train"] += trained - began
        seconds["upload"] += time.perf_counter() - trained
        return _Served(sent, _snapshot(client.state, client.w), loss)


def _said(error: Exception) -> str:
    """An error in one line."""
    line = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    advice = "; a larger resources.gpus_per_host or a smaller engine.cell_size may help"
    return " ".join(line.split()) + (advice if isinstance(error, torch.OutOfMemoryError) else "")


def _snapshot(tree: Tree, w: torch.Tensor) -> Tree:
    """The tensors as they are now, on the processor: the next client of the cell trains in the memory of `w`."""
    if w.device.type != "cpu":
        return {name: t.detach().cpu() for name, t in tree.items()}
    own = w.untyped_storage().data_ptr()
    return {
        name: t.detach().clone() if t.untyped_storage().data_ptr() == own else t.detach() for name, t in tree.items()
    }
