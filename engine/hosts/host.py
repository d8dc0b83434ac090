"""A host: runs cells on the data that it can see. It holds views and models, and no federated state."""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Tree, Upload
from shoal.algorithms.training.local_training import finite_loss
from shoal.engine.hosts.batch import Batched, Trained, in_one_line, train_batches
from shoal.engine.hosts.device import DeviceLost, cache_bytes, keep_freed_memory, lost, take_device
from shoal.engine.hosts.job_context import OpenedJob
from shoal.engine.hosts.results import ClientResult, on_processor
from shoal.engine.hosts.scored import Scored
from shoal.engine.hosts.transfer import NextCell, sent
from shoal.engine.hosts.visit import Visit
from shoal.engine.hosts.write_guard import MethodWrites, ReadOnly, require_unwritten
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.devices import copied
from shoal.engine.messages.job import Job
from shoal.engine.rounds.protocol_checks import require_sound
from shoal.engine.rounds.reduction import reduce_cell, upload_bytes
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import Cache

# Bytes on a device that clients of a cell may leave behind before they are fetched.
MAX_RESULT_BYTES = 2**28


class Host:
    """Runs cells of the job that was opened on it last."""

    def __init__(self) -> None:
        self._opened: OpenedJob | None = None
        self._cache = Cache(0)

    def open(self, job: Job) -> None:
        """Gets ready for a job; the views of the previous one are let go.

        Raises:
            ShoalError: The store or the method does not fit the job.
        """
        if self._opened is not None and self._opened.job.id == job.id:
            return
        torch.set_num_threads(job.threads)
        keep_freed_memory()
        device = take_device(job.device, job.gpu_share, job.precision)
        if self._opened is not None and self._opened.device != device:
            self._cache = Cache(0)
        self._cache.limit = cache_bytes(device, job.gpu_share, job.cache_bytes)
        self._opened = OpenedJob(job, device, self._cache)

    def run_cells(self, job_id: str, cells: Sequence[Cell], shared: Tree) -> Iterator[Outcome | None]:
        """Runs cells one after another; while a client is visited, the data of the next one is opened, and while a
        device is at work on a cell, what the next one trains on is brought there.

        Args:
            job_id: Of the job that they belong to.
            cells: The cells.
            shared: Download of all their clients.

        Yields:
            What comes back of each; None if the job is not open here (a host that was started again).

        Raises:
            ShoalError: A shard is damaged or the method's code failed; names round and client.
        """
        opened = self._opened
        if opened is None or opened.job.id != job_id:
            yield from (None for _ in cells)
            return
        trains = any(cell.train for cell in cells)
        visited = [i for cell in cells for i in cell.ids]
        opened.plan(visited, [i for cell in cells for i in cell.ids if i in cell.score], trains)
        shared = _lent(shared, opened.device)
        guard = ReadOnly(shared, "download")
        turns = NextCell(opened, self._cache)
        for cell, following in zip(cells, [*cells[1:], None]):
            try:
                begun = turns.receive(cell)
                outcome, uploads = _CellAtWork(opened, begun, shared, guard, partial(turns.bring, following)).run()
            except MethodWrites:
                # What was written to must not reach the next round or run of this process.
                self._cache = Cache(self._cache.limit)
                self._opened = OpenedJob(opened.job, opened.device, self._cache)
                raise
            if uploads:
                reduce_cell(uploads, cell.up, outcome)
            yield outcome

    def visit(self, client_id: int, cell: Cell, down: Tree) -> Visit:
        """Begins the visit of one client, for a look at its model.

        Raises:
            ShoalError: Its data is missing or damaged.
        """
        assert self._opened is not None
        down = copied(down, self._opened.device)
        return Visit(self._opened, client_id, cell, down, ReadOnly(down, "download"))


def _lent(shared: Tree, device: torch.device) -> Tree:
    """Copies of a download for all clients, where they are visited."""
    if device.type == "cpu":
        return copied(shared, device)
    return dict(zip(shared, sent(list(shared.values()), device)))


class _CellAtWork:
    """One cell: its clients one after another, trained alone or, before that, in batches.

    On a device, what clients bring with them comes in one copy, and what they leave behind goes back in one copy;
    before that nobody looks at its numbers.
    """

    def __init__(
        self, opened: OpenedJob, cell: Cell, shared: Tree, guard: ReadOnly, before_waiting: Callable[[], None]
    ) -> None:
        self._opened, self._cell, self._shared, self._guard = opened, cell, shared, guard
        self._before_waiting = before_waiting
        self._outcome = Outcome(seconds=dict.fromkeys(("train", "upload", "evaluate"), 0.0))
        self._uploads: list[Upload] = []
        self._results: list[ClientResult] = []
        self._on_device = opened.device.type != "cpu"

    def run(self) -> tuple[Outcome, list[Upload]]:
        batched = self._train_batches()
        for client_id in self._cell.ids:
            try:
                trained = batched.clients.get(client_id)
                if isinstance(trained, Exception):
                    raise trained
                self._run_client(client_id, trained)
            except MethodWrites:
                raise
            except Exception as error:
                # Of several that fail, the first one is named.
                self._flush()
                self._fail(client_id, error)
            if not self._on_device or sum(result.bytes for result in self._results) > MAX_RESULT_BYTES:
                self._flush()
        self._flush(self._bring)
        return self._outcome, self._uploads

    def _bring(self) -> None:
        """What the next cell trains on, which is no part of taking what this one left."""
        began = time.perf_counter()
        self._before_waiting()
        spent = time.perf_counter() - began
        self._outcome.seconds["train"] += spent
        self._outcome.seconds["upload"] -= spent

    def _fail(self, client_id: int, error: Exception) -> None:
        self._require_device(client_id)
        self._require_unwritten(client_id)
        line = f"round {self._cell.round}, {self._opened.job.who(client_id)}: {in_one_line(error)}"
        detail = "".join(traceback.format_exception(error))
        if not self._opened.job.skip_failed_clients:
            raise ShoalError(line, detail) from error
        self._outcome.failures[client_id] = line, detail

    def _require_device(self, client_id: int) -> None:
        """A GPU that answers no more would fail every later client, too, none of whose fault it is."""
        if why := lost(self._opened.device):
            who = f"round {self._cell.round}, {self._opened.job.who(client_id)}"
            raise DeviceLost(f"{who}: the GPU answers this process no more: {why}", traceback.format_exc())

    def _require_unwritten(self, client_id: int) -> None:
        """One that failed may have written into its data before, which a later visit would read."""
        for data in self._opened.lent(client_id):
            method = type(self._opened.algorithm).__name__
            require_unwritten(data, f"round {self._cell.round}, {self._opened.job.who(client_id)}: {method}")

    def _begin(self, client_id: int) -> Visit:
        return Visit(self._opened, client_id, self._cell, self._shared, self._guard)

    def _train_batches(self) -> Batched:
        trainer = self._opened.batched_trainer(self._cell.ids) if self._cell.train else None
        if trainer is None:
            return Batched()
        began = time.perf_counter()
        batched = train_batches(trainer, list(self._cell.ids), self._begin)
        self._outcome.seconds["train"] += time.perf_counter() - began
        self._outcome.halved = batched.halved
        return batched

    def _run_client(self, client_id: int, trained: Trained | None) -> None:
        """One client's turn; only at its end something is kept of it, so that one that fails leaves nothing behind."""
        cell, seconds = self._cell, self._outcome.seconds
        visit = self._begin(client_id) if trained is None else trained.resume()
        loss: float | Tensor = float("nan")
        counts: np.ndarray | None = None
        scored: Scored | None = None
        upload: Upload | None = None
        state: Tree = {}
        if cell.phase:
            began = time.perf_counter()
            if trained is not None:
                loss = trained.loss if isinstance(trained.loss, Tensor) else finite_loss(trained.loss)
            elif cell.train:
                loss = visit.train()
            after_training = time.perf_counter()
            upload, state = visit.upload()
            seconds["train"] += after_training - began
            seconds["upload"] += time.perf_counter() - after_training
        if client_id in cell.score:
            began = time.perf_counter()
            if visit.is_scored_later:
                scored = visit.score_later()
            else:
                counts = visit.score()
            seconds["evaluate"] += time.perf_counter() - began
        visit.end()
        self._results.append(ClientResult(client_id, loss, upload, state, counts, scored))

    def _flush(self, before_waiting: Callable[[], None] | None = None) -> None:
        """Takes what clients have left behind so far, in their order; on a device it waits for it."""
        began = time.perf_counter()
        waiting, self._results = self._results, []
        try:
            found = on_processor(waiting, self._opened.infos[self._cell.ids[0]].classes, before_waiting)
        except Exception as error:
            # Whose fault it is cannot be told.
            for result in waiting:
                self._fail(result.client, error)
            return
        for result in found:
            try:
                self._take(result)
            except Exception as error:
                self._fail(result.client, error)
        self._outcome.seconds["upload"] += time.perf_counter() - began

    def _take(self, result: ClientResult) -> None:
        outcome, loss, counts = self._outcome, result.loss_value(), result.counts_value()
        if result.upload is not None:
            require_sound(result.upload, self._cell.up)
            outcome.states[result.client] = result.state
            self._uploads.append(result.upload)
            outcome.losses.append(loss)
            outcome.bytes_up.append(upload_bytes(result.upload))
        outcome.ids.append(result.client)
        if counts is not None:
            outcome.scores[result.client] = counts
