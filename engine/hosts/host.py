"""A host: runs cells on the data that it can see. It holds views and models, and no federated state."""

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence

import torch

from algorithms.protocol import Tree, Upload
from algorithms.training.local_training import finite_loss
from engine.hosts.batch import Trained, in_one_line, train_batch
from engine.hosts.device import DeviceLost, cache_bytes, lost, take_device
from engine.hosts.memory import keep_freed_memory
from engine.hosts.opened_job import OpenedJob
from engine.hosts.read_only import MethodWrites, ReadOnly, require_unwritten
from engine.hosts.visit import Visit
from engine.rounds.reduction import reduce_cell, upload_bytes
from engine.rounds.soundness import require_sound
from engine.wire.cell import Cell, Outcome
from engine.wire.devices import copied
from engine.wire.job import Job
from storage.errors import ShoalError
from storage.view import Memo


class Host:
    """Runs cells of the job that was opened on it last."""

    def __init__(self) -> None:
        self._opened: OpenedJob | None = None
        self._memo = Memo(0)

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
            self._memo = Memo(0)
        self._memo.limit = cache_bytes(device, job.gpu_share, job.memo_bytes)
        self._opened = OpenedJob(job, device, self._memo)

    def run_cells(self, job_id: str, cells: Sequence[Cell], shared: Tree) -> Iterator[Outcome | None]:
        """Runs cells one after another; while a client is visited, the data of the next one is opened.

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
        shared = copied(shared, opened.device)
        guard = ReadOnly(shared, "download")
        for cell in cells:
            try:
                opened.begin_round(cell.round)
                outcome, uploads = _CellAtWork(opened, cell, shared, guard).run()
            except MethodWrites:
                # What was written to must not reach the next round or run of this process.
                self._memo = Memo(self._memo.limit)
                self._opened = OpenedJob(opened.job, opened.device, self._memo)
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


class _CellAtWork:
    """One cell: its clients one after another, trained alone or, before that, all in one batch."""

    def __init__(self, opened: OpenedJob, cell: Cell, shared: Tree, guard: ReadOnly) -> None:
        self._opened, self._cell, self._shared, self._guard = opened, cell, shared, guard
        self._outcome = Outcome(seconds=dict.fromkeys(("train", "upload", "evaluate"), 0.0))
        self._uploads: list[Upload] = []

    def run(self) -> tuple[Outcome, list[Upload]]:
        batch = self._train_batch()
        for client_id in self._cell.ids:
            try:
                trained = batch.get(client_id)
                if isinstance(trained, Exception):
                    raise trained
                self._run_client(client_id, trained)
            except Exception as error:
                if isinstance(error, MethodWrites):
                    raise
                self._require_device(client_id)
                self._require_unwritten(client_id)
                line = f"round {self._cell.round}, {self._opened.job.who(client_id)}: {in_one_line(error)}"
                if not self._opened.job.skip_failed_clients:
                    raise ShoalError(line, traceback.format_exc()) from error
                self._outcome.failures[client_id] = line, traceback.format_exc()
        return self._outcome, self._uploads

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

    def _train_batch(self) -> Mapping[int, Trained | Exception]:
        trainer = self._opened.stacked_trainer(self._cell.ids) if self._cell.train else None
        if trainer is None:
            return {}
        began = time.perf_counter()
        trained = train_batch(trainer, list(self._cell.ids), self._begin)
        self._outcome.seconds["train"] += time.perf_counter() - began
        return trained

    def _run_client(self, client_id: int, trained: Trained | None) -> None:
        """One client's turn; only at its end something is kept of it, so that one that fails leaves nothing behind."""
        cell, outcome, seconds = self._cell, self._outcome, self._outcome.seconds
        visit = self._begin(client_id) if trained is None else trained.resume()
        loss, counts = float("nan"), None
        left: tuple[Upload, Tree] | None = None
        if cell.phase:
            began = time.perf_counter()
            if trained is not None:
                loss = finite_loss(trained.loss)
            elif cell.train:
                loss = visit.train()
            after_training = time.perf_counter()
            left = visit.upload()
            require_sound(left[0], cell.up)
            seconds["train"] += after_training - began
            seconds["upload"] += time.perf_counter() - after_training
        if client_id in cell.score:
            began = time.perf_counter()
            counts = visit.score()
            seconds["evaluate"] += time.perf_counter() - began
        visit.end()
        outcome.ids.append(client_id)
        if left is not None:
            sent, outcome.states[client_id] = left
            self._uploads.append(sent)
            outcome.losses.append(loss)
            outcome.bytes_up.append(upload_bytes(sent))
        if counts is not None:
            outcome.scores[client_id] = counts
