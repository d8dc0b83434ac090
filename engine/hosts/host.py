"""A host: runs cells of clients on the data that its machine has. It keeps views and models, and no federated state.

`Host.run_cells` runs cells, `_CellAtWork.run` the clients of one, and `Visit` is one client's step.
"""

import math
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Received, keeps_models, overrides
from shoal.algorithms.client import Client, ClientModel
from shoal.algorithms.method_errors import raise_named
from shoal.algorithms.protocol import BY_STAGES, MODEL, Tree, Upload, copy_to
from shoal.algorithms.rng import CPU, key, random_of
from shoal.algorithms.training.local_training import bounded_loss
from shoal.engine.config.sizes import machine_memory
from shoal.engine.hosts.batch import Batched, Trained, in_one_line, train_batches
from shoal.engine.hosts.device import DeviceLost, cache_bytes, give_back_memory, keep_freed_memory, lost, take_device
from shoal.engine.hosts.devices.gpu import ClientResult, Deferred, send_values
from shoal.engine.hosts.opened_job import OpenedJob
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import working_clock
from shoal.engine.rounds.protocol_checks import (
    MethodFault,
    ReadOnly,
    require_form,
    require_loss,
    require_same,
    require_state,
    require_unwritten,
)
from shoal.engine.rounds.reduction import reduce_cell, require_sound, upload_bytes
from shoal.engine.rounds.stage import AtClient
from shoal.engine.scores.counts import score
from shoal.engine.scores.domains import score_graph
from shoal.storage.errors import FetchError, ShoalError
from shoal.storage.shards.cache import OpenViews
from shoal.storage.shards.view import Cache, View

if TYPE_CHECKING:
    from shoal.engine.hosts.devices.cell_stack import CellStacks

# After states of so many bytes it is worth looking for freed memory, which takes a millisecond or two.
LARGE_STATES = 2**23


class Visit:
    """The step of one client on a host: download, train, upload, score; the next visit takes the models of `client`."""

    def __init__(self, opened: OpenedJob, client_id: int, cell: Cell, shared: Tree, guard: ReadOnly | None) -> None:
        """Begins the visit, with the download of all clients on the host's device and the guard that watches over it.

        Raises:
            ShoalError: The client's data is missing or damaged, or `receive` failed.
        """
        self._opened, self._cell, self._id, self.algorithm = opened, cell, client_id, opened.algorithm
        info, device = opened.infos[client_id], opened.device
        kind = opened.kinds[info.model]
        self._kind = kind

        def random(purpose: str) -> int:
            return key(opened.job.seed, cell.round, client_id, purpose)

        view = opened.views.get(client_id)
        # The visit works on copies of what it may write to: what a round started from stays as it is, and Ray's shared
        # memory cannot be written to. A tensor on a device is a copy that belongs to the cell.
        copies, uncopied = opened.copies, opened.only_replaced
        private, inbox, state = (
            {name: t.to(device, copy=copies and name not in uncopied) for name, t in trees.get(client_id, {}).items()}
            for trees in (cell.private, cell.inboxes, cell.states)
        )
        # `score` fills it, where a callback asks for it.
        self.predicted: dict[str, np.ndarray] | None = {} if opened.job.predictions else None
        self._guards = [] if guard is None else [guard, ReadOnly(private, "download"), ReadOnly(inbox, "inbox")]
        received, self._had = {**shared, **private}, {**shared, **private, **inbox}
        self._kept = {name: state.pop(name) for name in list(state) if name.startswith(BY_STAGES)}
        # Stages send these to the server beside the upload.
        self.notes: dict[str, Any] = {}
        models = {}
        for name, flat in kind.models.items():
            w = state.get(kind.keys[name])
            if w is None:
                w = kind.initials.get(name)
            if w is None:
                w = opened.job.initial(kind.built[name], name, client_id).to(device)
            models[name] = ClientModel(flat, view, random if name == MODEL else random_of(random, name), w)
        self.client = Client(info, view, models, state, inbox, random)
        self.received: Received = self._receive(received)

    def _receive(self, down: Tree) -> Received:
        algorithm = self._opened.algorithm
        try:
            with self._opened.creating:
                return algorithm.receive(self.client, down)
        except BaseException as error:
            raise_named(algorithm, "receive", error)

    def train(self) -> float:
        """Trains the client, and gives its loss, NaN if the method has none; raises a ShoalError if it is infinite."""
        opened, algorithm = self._opened, self._opened.algorithm
        try:
            with opened.training:
                loss = algorithm.train(self.client, self.received, self._kind.trainer, self._cell.phase)
            if opened.checks:
                require_loss(loss)
            number = float(loss)
        except BaseException as error:
            raise_named(algorithm, "train", error)
        return bounded_loss(number) if number == number else number

    def upload(self) -> tuple[Upload, Tree]:
        """Returns what the client sends and its new state, where they are; the next client leaves both as they are.

        Raises:
            ShoalError: The method's code failed, or what it gave or keeps has not the form that it must have.
        """
        opened, client, algorithm = self._opened, self.client, self._opened.algorithm
        try:
            with opened.creating:
                upload = algorithm.upload(client, self.received, self._cell.phase)
                if opened.checks:
                    require_form(upload, self._cell.up, self._sent_as())
                if keeps_models(algorithm) and isinstance(client.state, dict):
                    client.state.update({self._kind.keys[name]: model.w for name, model in client.models.items()})
                if opened.checks:
                    require_state(client.state, self._kind.shapes)
        except BaseException as error:
            raise_named(algorithm, "upload", error)
        sent, state = replace(upload, entries=self._snapshot(upload.entries)), self._snapshot(client.state)
        at = AtClient(self._id, self._cell, self._had, self._kept, self.notes, client.rng, client.random)
        for stage in opened.stages:
            sent = stage.at_client(sent, at)
        return sent, state | at.kept

    def score(self) -> np.ndarray:
        """Counts the client's predictions; see `shoal.engine.scores.counts`, of a whole graph `domains`."""
        opened = self._opened
        with opened.creating:
            scored, received = self.scored, self.received_to_score()
            scored_by = opened.algorithm, scored, received, opened.measures
            counts = score_graph(*scored_by) if self.is_graph else score(*scored_by, self.predicted)
            for stage in opened.stages:
                counts = stage.score(counts, scored, received, opened)
            return counts

    @property
    def is_graph(self) -> bool:
        """Returns whether the visit is of the whole graph of a domain, and of no client."""
        return self._id >= len(self._opened.job.model_of)

    @property
    def scored(self) -> Client:
        """Returns the client as it is scored: with the models and the state that it has now, on all of its data."""
        opened, client = self._opened, self.client
        if opened.scored_views is opened.views:
            return client
        view = opened.scored_views.get(self._id)
        models = {name: ClientModel(model.flat, view, model.random) for name, model in client.models.items()}
        return replace(client, info=opened.scored_infos[self._id], data=view, models=models)

    def received_to_score(self) -> Received:
        """Returns what the client received, or what `receive` makes of a download for the evaluation alone."""
        if not self._cell.score_with:
            return self.received
        down = copy_to(self._cell.score_with, self._opened.device)
        if self._guards:
            self._guards.append(ReadOnly(down, "download"))
        return self._receive(down)

    def end(self) -> None:
        """Ends the visit; raises MethodFault if the method wrote into a download, an inbox, or the client's data."""
        if not self._guards:
            return
        where = self._opened.where(self._cell, self._id)
        for guard in self._guards:
            guard.require_unchanged(where)
        for data in self._opened.views_of(self._id):
            require_unwritten(data, where)

    def _sent_as(self) -> dict[str, torch.Size]:
        """Returns shapes of parameters by the entries that stand for them; `w` too unless `receive` is replaced."""
        shapes = dict(self._kind.shapes)
        if not overrides(self._opened.algorithm, "receive"):
            shapes["w"] = shapes[self._kind.keys[MODEL]]
        return shapes

    def _snapshot(self, tree: Tree) -> Tree:
        """Detaches the tensors as they are now."""
        if not tree:
            return {}
        memory = {model.pattern.w.untyped_storage().data_ptr(): model for model in self.client.models.values()}
        detached = {}
        for name, t in tree.items():
            if (model := memory.get(t.untyped_storage().data_ptr())) is not None:
                # A view of the host's model stands for what the client has there.
                model.flush()
                t = t.clone()
            detached[name] = t.detach()
        return detached


class _CellAtWork:
    """A cell that runs: its clients one after another, trained one by one or, before that, in batches."""

    def __init__(
        self, opened: OpenedJob, cell: Cell, shared: Tree, guard: ReadOnly | None, deferred: Deferred | None
    ) -> None:
        self._opened, self._cell, self._shared, self._guard = opened, cell, shared, guard
        self._deferred = deferred
        opened.begin_cell(cell)
        self._outcome = Outcome(seconds=dict.fromkeys(("train", "upload", "evaluate"), 0.0))
        self._uploads: list[Upload] = []

    def run(self) -> Outcome:
        """Visits the clients, and reduces their uploads; raises a ShoalError for a failure that may not be skipped."""
        stacks = self._opened.stacks
        if stacks is not None and stacks.takes(self._cell):
            if self._train_stack(stacks):
                return self._outcome
            if self._deferred is not None:
                # Visits write to what they are given.
                self._cell = send_values(self._cell, self._opened.device)
        self.visit_clients()
        # 3. Uploads are added up.
        if self._uploads:
            reduce_cell(self._uploads, self._cell, self._outcome)
        return self._outcome

    def _train_stack(self, stacks: "CellStacks") -> bool:
        """Trains all clients as one stack; False: something is wrong, and visits, from the same values, say what."""
        seconds, began = self._outcome.seconds, working_clock()
        try:
            stack = stacks.train(self._cell, self._shared)
            trained = working_clock()
            seconds["train"] += trained - began
            visit_of = lambda i, w: Trained(self.start_visit(i), w, math.nan).resume()  # noqa: E731
            stack.score(self._cell.score, visit_of, self._deferred)
            began = working_clock()
            seconds["evaluate"] += began - trained
            if self._deferred is not None:
                began += self._deferred.bring(seconds)
            outcome, wrong = stack.result()
        except (ShoalError, RuntimeError, OSError):
            # Data, memory or the device; anything else is a fault of ours, and ends the run.
            return False
        for client_id, error in wrong.items():
            self._fail(client_id, error)
        seconds["upload"] += working_clock() - began
        self._outcome = replace(outcome, failures=self._outcome.failures, seconds=seconds)
        return True

    def visit_clients(self) -> None:
        """Trains in batches, visits every client, and takes the results."""
        cell, deferred = self._cell, self._deferred
        # 1. Clients that train in batches are trained.
        batched = self._train_batches()
        # 2. Every client is visited; nothing is kept of a client that fails.
        for client_id in cell.ids:
            try:
                trained = batched.clients.get(client_id)
                if isinstance(trained, Exception):
                    raise trained
                self._opened.begins(client_id)
                result = self.visit_client(client_id, trained)
                if client_id == cell.again and trained is None and deferred is None:
                    # Nothing that the second visit writes reaches the first one's result.
                    first = result.map_tensors(torch.clone)
                    second = self.visit_client(client_id, None)
                    require_same(first.name_tensors(), second.name_tensors(), self._opened.where(cell, client_id))
                    result = first
                # On a GPU results are taken later, with those of others.
                (self._take if deferred is None else deferred.keep)(result)
            except MethodFault:
                raise
            except Exception as error:
                if deferred is not None:
                    # If several fail, the first one is named.
                    deferred.flush(self._take, self._fail, self._outcome.seconds)
                self._fail(client_id, error)
            if deferred is not None and deferred.is_full:
                deferred.flush(self._take, self._fail, self._outcome.seconds)
        if deferred is not None:
            deferred.flush(self._take, self._fail, self._outcome.seconds, last=True)

    def visit_client(self, client_id: int, trained: Trained[Visit] | None) -> ClientResult:
        """Visits one client, from its download to its result: loss, upload (None: only evaluated), new state, counts.

        `trained` says how it was trained in a batch; None: it was not.
        """
        cell, seconds = self._cell, self._outcome.seconds
        # 1. The visit begins with its data, its state and the download.
        visit = Visit(self._opened, client_id, cell, self._shared, self._guard) if trained is None else trained.resume()
        loss: float | Tensor = float("nan")
        upload: Upload | None = None
        state: Tree = {}
        counts: np.ndarray | None = None
        if cell.phase:
            # 2. The client trains locally.
            began = working_clock()
            if trained is not None:
                loss = trained.loss if isinstance(trained.loss, Tensor) else bounded_loss(trained.loss)
            elif cell.train:
                loss = visit.train()
            after_training = working_clock()
            # 3. It makes its upload and its new state.
            upload, state = visit.upload()
            seconds["train"] += after_training - began
            seconds["upload"] += working_clock() - after_training
        # 4. Its predictions are counted, on a GPU later with those of others.
        scores = client_id in cell.score
        began = working_clock()
        later = scores and self._deferred is not None and self._deferred.scores_later(visit)
        if scores and not later:
            counts = visit.score()
        seconds["evaluate"] += working_clock() - began
        # 5. Nothing that is read-only was written to.
        visit.end()
        return ClientResult(client_id, loss, upload, state, counts, predicted=visit.predicted, notes=visit.notes)

    def start_visit(self, client_id: int) -> Visit:
        """Begins the visit of a client."""
        self._opened.begins(client_id)
        return Visit(self._opened, client_id, self._cell, self._shared, self._guard)

    def _take(self, result: ClientResult) -> None:
        """Keeps what a visit gave, all of it on the processor."""
        outcome, upload = self._outcome, result.upload
        if upload is not None:
            require_sound(
                upload, {entry: how for entry, how in self._cell.entries.items() if entry not in result.checked}
            )
            if not math.isnan(loss := float(result.loss)):
                bounded_loss(loss, self._cell.first_loss)
            if (adder := self._cell.stages.adder) is not None:
                began = working_clock()
                upload = adder.hidden(result.client, upload, self._cell.entries)
                outcome.seconds["upload"] += working_clock() - began
            outcome.states[result.client] = result.state
            if result.notes:
                outcome.notes[result.client] = result.notes
            self._uploads.append(upload)
            outcome.losses.append(loss)
            outcome.bytes_up.append(upload_bytes(upload))
        outcome.ids.append(result.client)
        if result.counts is not None:
            assert isinstance(result.counts, np.ndarray)
            outcome.scores[result.client] = result.counts
            if result.predicted:
                outcome.predicted[result.client] = result.predicted

    def _fail(self, client_id: int, error: Exception) -> None:
        """Notes a client that failed; raises a ShoalError if it may not be skipped, or its GPU or data is spoiled."""
        opened, cell = self._opened, self._cell
        who = f"round {cell.round}, {opened.job.who(client_id)}"
        if why := lost(opened.device):
            # It would fail every later client, too, whatever that does.
            raise DeviceLost(who, f"the GPU answers this process no more: {why}", detail=traceback.format_exc())
        if opened.guarded:
            # It may have written into its data before, which a later visit would read.
            for data in opened.views_of(client_id):
                require_unwritten(data, opened.where(cell, client_id))
        if isinstance(error, FetchError) or (isinstance(error, ShoalError) and error.file is not None):
            # A file of the store that is damaged or missing is no fault of the client.
            raise ShoalError(who, *error.args, detail=error.detail) from error
        line = f"{who}: {in_one_line(error)}"
        detail = "".join(traceback.format_exception(error))
        if not opened.job.skip_failed_clients:
            raise ShoalError(who, in_one_line(error), detail=detail) from error
        self._outcome.failures[client_id] = line, detail

    def _train_batches(self) -> Batched[Visit]:
        opened, cell = self._opened, self._cell
        trainer = opened.kinds[opened.infos[cell.ids[0]].model].batched
        if trainer is None or not cell.train:
            return Batched()
        began = working_clock()
        batched = train_batches(trainer, list(cell.ids), self.start_visit)
        self._outcome.seconds["train"] += working_clock() - began
        self._outcome.halved = batched.halved
        return batched


class Host:
    """A host, which runs cells of the job that was opened on it last."""

    # New states of clients from so many bytes on may stay on the device: they are read in this process.
    keeps_from: float = math.inf

    def __init__(self) -> None:
        self._opened: OpenedJob | None = None
        self._cache = Cache(0)

    def open(self, job: Job) -> None:
        """Gets ready for a job, whose store and method must fit it; the views of the previous one are let go."""
        if self._opened is not None and self._opened.job.id == job.id:
            self._share_memory(job, self._opened.device)
            return
        torch.set_num_threads(1)
        keep_freed_memory()
        device = take_device(job.compute.device, job.compute.gpu_share, job.compute.precision)
        if self._opened is not None and self._opened.device != device:
            self._cache = Cache(0)
        self._share_memory(job, device)
        self._opened = OpenedJob(job, device, self._cache, self.keeps_from)

    def _share_memory(self, job: Job, device: torch.device) -> None:
        # Half the memory is for what hosts cache, the rest for states, models and Ray.
        on_processor = (job.compute.memory_limit or machine_memory()) // (2 * self.hosts_here())
        self._cache.limit = cache_bytes(device, job.compute.gpu_share, on_processor)

    def hosts_here(self) -> int:
        """Counts the hosts that share the memory of this machine."""
        return 1

    def begins(self, client: int) -> None:
        """Notes that the visit of a client begins, or goes on after it was trained in a batch."""

    def run_cells(self, job_id: str, cells: Sequence[Cell], shared: Tree) -> Iterator[Outcome | None]:
        """Runs cells one after another; while a client is visited, the data of the next one is opened.

        Yields:
            The outcome of each; None if the job is not open here (a host that was started again).

        Raises:
            ShoalError: A shard is damaged or the method's code failed; names round and client.
        """
        opened = self._opened
        if opened is None or opened.job.id != job_id:
            yield from (None for _ in cells)
            return
        opened.begins = self.begins
        opened.plan(cells)
        deferred = None if opened.device == CPU else Deferred(opened, self._cache)
        shared = copy_to(shared, CPU) if deferred is None else deferred.send(shared)
        guard = ReadOnly(shared, "download") if opened.guarded else None
        for place, cell in enumerate(cells):
            if (options := cell.train_options(opened.job.train)) != opened.kinds[0].trainer.options:
                opened.train_with(options)
            if deferred is None:
                self._cache.begin_turn()
            else:
                cell = deferred.receive(cell, cells[place + 1] if place + 1 < len(cells) else None)
            try:
                outcome = _CellAtWork(opened, cell, shared, guard, deferred).run()
                large = sum([t.nbytes for tree in outcome.states.values() for t in tree.values()]) >= LARGE_STATES
                yield outcome
                if large:
                    give_back_memory()
            except MethodFault:
                # Data that was written to must not reach the next round or run of this process.
                self._cache = Cache(self._cache.limit)
                self._opened = OpenedJob(opened.job, opened.device, self._cache, self.keeps_from)
                raise

    def visit(self, client_id: int, cell: Cell, down: Tree) -> Visit:
        """Begins the visit of one client, for a look at its model; raises a ShoalError if its data is damaged."""
        assert self._opened is not None
        self._opened.begin_cell(cell)
        return Visit(self._opened, client_id, cell, copy_to(down, self._opened.device), None)

    def visit_elsewhere(self, data: View, client_id: int, cell: Cell, down: Tree, alone: bool) -> Visit:
        """Begins the visit of a client that is scored on other data, as all later ones of the job are.

        Its method receives the download beside the client's own data, as with `data.inductive`, or, if it is `alone`,
        beside that other data.
        """
        opened = self._opened
        assert opened is not None
        opened.scored_infos = [replace(info, nodes=data.nodes, train=0) for info in opened.scored_infos]
        opened.scored_views = OpenViews(lambda _: data, 1)
        if alone:
            opened.infos, opened.views = opened.scored_infos, opened.scored_views
        return self.visit(client_id, cell, down)
