"""Rounds made again in this process: plainly, or with every tensor on its way noted, from a state of a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import xxhash
from torch import Tensor

from shoal.algorithms.base import Algorithm, Context, Received, Requests
from shoal.algorithms.client import Client
from shoal.algorithms.protocol import BY_STAGES, Ask, Mix, Replies, Tree, Upload
from shoal.bisect.differences import (
    DOWNLOAD,
    DRAW,
    END,
    KEYS,
    REDUCTION,
    SERVER,
    TRAINING,
    UPLOAD,
    Point,
    Value,
)
from shoal.engine.config.config import Config
from shoal.engine.hosts.backend import HostHere, LocalBackend, server_device
from shoal.engine.hosts.opened_job import OpenedJob
from shoal.engine.messages.cell import Cell, Outcome, one_by_one
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import unwatched
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.stage import AtClient, Stage
from shoal.engine.rounds.state import SELECTION, FederationState
from shoal.past.replay import StepNotes, open_watched

# A trace keeps so many bytes of tensors, and of further ones the digests.
MOST_BYTES = 1 << 30
DIGEST = "digest"
# A row of digests of uploads: phase and client.
Sender = tuple[str, int]


@dataclass(frozen=True)
class Program:
    """The code and config that train a round: a job, its rounds, and the config of both."""

    job: Job
    rounds: Plan
    config: Config


@dataclass
class Trace:
    """Tensors of a round on their way, by the points at which they were looked at.

    Attributes:
        points: Tensors, or digests of such as were too many.
        phases: Names of the phases, in their order.
        digests: Digests of uploads, by phase and client.
        whole: Whether the round was made to its end; else it ends with the upload of one client.
        line: The line of the round, without times; empty if it is not whole.
        state: The state after it; None: it is not whole.
        cells: What a client of a phase was given, by number of the phase and client.
        layers: Of each kind of model, shapes of its parameters by name.
        visits: Visits of clients that it took.
    """

    points: dict[Point, Value] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    digests: dict[Sender, str] = field(default_factory=dict)
    whole: bool = False
    line: Mapping[str, Any] = field(default_factory=dict)
    state: FederationState | None = None
    cells: dict[tuple[int, int], tuple[Cell, Tree]] = field(default_factory=dict)
    layers: Sequence[Mapping[str, Sequence[int]]] = ()
    visits: int = 0
    bytes: int = 0

    def note(self, point: Point, value: Any) -> None:
        """Keeps a copy of a tensor, or of numbers, at a point; what is there stays."""
        if point in self.points:
            return
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
        tensor = tensor.detach().cpu()
        self.bytes += tensor.nbytes
        self.points[point] = tensor.clone() if self.bytes <= MOST_BYTES else _digest(tensor)

    def note_tree(self, kind: int, client: int, step: int, place: str, tree: Mapping[str, Any]) -> None:
        """Keeps the tensors of a tree at points of the phase that runs."""
        for name, value in tree.items():
            self.note(Point(len(self.phases), kind, client, step, place, name), value)


def _digest(tensor: Tensor) -> str:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""
    return f"{tensor.dtype} {list(tensor.shape)} {xxhash.xxh3_128_hexdigest(content)}"


def points_of_state(state: FederationState) -> dict[Point, Tensor]:
    """Lists the tensors that server, clients and stages keep after a round, at points behind its last phase."""
    points: dict[Point, Tensor] = {}

    def add(client: int, step: int, place: str, tree: Mapping[str, Any]) -> None:
        for name, t in tree.items():
            if isinstance(t, Tensor):
                points[Point(END, REDUCTION, client, step, place, name)] = t

    add(SERVER, 0, "server", state.server)
    for i, tree in state.clients.items():
        of_stages = {name: t for name, t in tree.items() if name.startswith(BY_STAGES)}
        add(i, 1, "kept by the client", {name: t for name, t in tree.items() if name not in of_stages})
        add(i, 2, "kept by stages at the client", of_stages)
    for i, box in state.inboxes.items():
        add(i, 3, "inbox", box)
    for part, tree in state.extras.items():
        add(SERVER, 4, f"kept by {part}", tree)
    return points


class Again(LocalBackend):
    """A server and its host in this process, for rounds of a run that are made again.

    Attributes:
        visits: Visits of clients in phases so far.
    """

    def __init__(self, program: Program) -> None:
        """Opens nothing yet."""
        super().__init__(server_device(program.config))
        self.visits = 0

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        """Runs cells; no visit is made twice."""
        self.visits += sum(len(cell.ids) for cell in cells if cell.phase)
        yield from super().run_cells([replace(cell, again=None) for cell in cells], shared)


class _Reached(Exception):
    """A sign that the upload of the one client is there, so that the round may stop."""


class _NotingHost(HostHere):
    """A host that gives what it opened to a function."""

    def __init__(self, opens: Callable[[OpenedJob], None]) -> None:
        super().__init__()
        self._opens = opens

    def open(self, job: Job) -> None:
        super().open(job)
        assert self._opened is not None
        self._opens(self._opened)


class _AfterStage(Stage):
    """A stage that notes an upload after another one, or, with step 0, as the method makes it."""

    def __init__(self, tracing: "_Tracing", step: int, place: str) -> None:
        self.name, self._tracing, self._step, self._place = f"{place} noted", tracing, step, place

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        weights = {f"weight of {name}": weight for name, weight in upload.weight.items()}
        self._tracing.note(UPLOAD, at.client, self._step, self._place, {**upload.entries, **weights})
        return upload


class _Keys:
    """Gives the keys of random streams, and notes each as its two halves, in their order."""

    def __init__(self, plain: Callable[[str], int], note: Callable[..., None]) -> None:
        self._plain, self._note, self._drawn = plain, note, 0

    def __call__(self, purpose: str) -> int:
        seed = self._plain(purpose)
        self._drawn += 1
        self._note(self._drawn, "random stream", {"key": [seed >> 32, seed & 0xFFFFFFFF]})
        return seed


class _Tracing(Again):
    """A server and its host that note all tensors of one round."""

    def __init__(self, program: Program, only: Sender | None) -> None:
        """Notes a whole round, or its way to the upload of `only` one client in a phase."""
        super().__init__(program)
        self.trace, self._only, self._active = Trace(), only, False
        self._host = _NotingHost(self._watch)

    def note(self, kind: int, client: int, step: int, place: str, tree: Mapping[str, Any]) -> None:
        """Keeps tensors of a visit of a phase; an evaluation has none."""
        if self._active:
            self.trace.note_tree(kind, client, step, place, tree)

    def _watch(self, opened: OpenedJob) -> None:
        """Has the method and the stages of a host show what they give."""
        stages: list[Stage] = [_AfterStage(self, 0, "upload")]
        for step, stage in enumerate(opened.stages, 1):
            stages += [stage, _AfterStage(self, step, f"upload after {stage.name}")]
        opened.stages = stages
        method = opened.algorithm
        receive, upload = method.receive, method.upload

        def received(client: Client, down: Tree) -> Received:
            self._note_draws(client)
            result = receive(client, down)
            self.note(DOWNLOAD, client.info.client, 3, "received model", _parameters(client))
            return result

        def uploaded(client: Client, received: Received, phase: str) -> Upload:
            kept = {name: t for name, t in client.state.items() if isinstance(t, Tensor)}
            self.note(TRAINING, client.info.client, 0, "trained model", _parameters(client))
            self.note(TRAINING, client.info.client, 1, "kept by the client", kept)
            return upload(client, received, phase)

        _replace(method, receive=received, upload=uploaded)

    def _note_draws(self, client: Client) -> None:
        """Notes the keys of the random streams that a client draws from."""
        plain = client.random
        if self._active and not isinstance(plain, _Keys):
            client.random = _Keys(plain, partial(self.note, KEYS, client.info.client))
            for model in client.models.values():
                # A model of another name has purposes of its own.
                model.random = client.random if model.random is plain else model.random

    def serve(self, program: Program, before: FederationState | None) -> Server:
        """Opens a server that notes what the method's server part asks and gets."""
        self.enter(program.job)
        server = Server(program.job, program.rounds, self, before, self._device)
        self.trace.layers = [info.shapes for infos in server.context(0).models.values() for info in infos]
        method = server.algorithm
        plain = method.round

        def round(server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
            self.trace.note_tree(DRAW, SERVER, 0, "cohort", {"clients": list(cohort)})
            if ctx.round == 1:
                self.trace.note_tree(DRAW, SERVER, 1, "initial parameters", {"w": ctx.initial})
                self.trace.note_tree(DOWNLOAD, SERVER, 0, "server before round 1", server)
            keys = _Keys(ctx.random, partial(self.trace.note_tree, KEYS, SERVER))
            return (yield from self._drive(plain(server, replace(ctx, random=keys), cohort)))

        _replace(method, round=round)
        return server

    def _drive(self, requests: Requests) -> Requests:
        """Hands on what a method asks and gets, and notes it."""
        trace, reply, mixed = self.trace, None, 0
        while True:
            try:
                request = requests.send(reply)
            except StopIteration:
                return
            if isinstance(request, Ask):
                trace.phases.append(request.phase)
                mixed = 0
                trace.note_tree(DOWNLOAD, SERVER, 1, "download", request.shared)
                for i, tree in request.private.items():
                    trace.note_tree(DOWNLOAD, i, 1, "download of the client", tree)
            elif isinstance(request, Mix):
                mixed += 1
                trace.note_tree(REDUCTION, SERVER, 10 * mixed, "mixing weights", {request.entry: request.rows})
            reply = yield request
            if isinstance(reply, Replies):
                trace.note_tree(REDUCTION, SERVER, 0, "sum of weights", reply.weights)
                trace.note_tree(REDUCTION, SERVER, 1, "reduced", reply.entries)
                for name, tensors in reply.lists.items():
                    rows = {f"{name} of client {i}": t for i, t in zip(reply.ids, tensors)}
                    trace.note_tree(REDUCTION, SERVER, 2, "gathered", rows)
            elif isinstance(reply, Tensor) and isinstance(request, Mix):
                trace.note_tree(REDUCTION, SERVER, 10 * mixed + 1, "mixed", {request.entry: reply})

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        self._active = any(cell.phase for cell in cells)
        for cell in cells if self._active else ():
            for i in cell.ids:
                self.trace.cells.setdefault((len(self.trace.phases), i), (cell, shared))
                self.note(DOWNLOAD, i, 2, "inbox", cell.inboxes.get(i, {}))
        if self._only is not None and any(self._only == (cell.phase, i) for cell in cells for i in cell.ids):
            self._run_only(cells, shared)
        for position, outcome in super().run_cells(cells, shared):
            self._take(cells[position], outcome)
            yield position, outcome
        self._active = False

    def _run_only(self, cells: Sequence[Cell], shared: Tree) -> None:
        assert self._only is not None
        (cell,) = (cell for cell in cells if self._only[1] in cell.ids)
        # Clients that train in one batch share last bits, so their whole cell is run.
        if not (cell.train and cell.train.batched):
            (cell,) = (single for single in one_by_one(cell) if self._only[1] in single.ids)
        for _, outcome in super().run_cells([replace(cell, score=frozenset())], shared):
            self._take(cell, outcome)
        raise _Reached

    def _take(self, cell: Cell, outcome: Outcome) -> None:
        if not cell.phase:
            return
        for i, loss in zip(outcome.ids, outcome.losses):
            self.note(TRAINING, i, 2, "training", {"loss": torch.tensor(loss, dtype=torch.float64)})
        for i, notes in outcome.notes.items():
            if DIGEST in notes:
                self.trace.digests[cell.phase, i] = notes[DIGEST]


def _replace(method: Algorithm, **hooks: Callable[..., Any]) -> None:
    """Replaces hooks of one instance of a method, a frozen dataclass, which an ordinary assignment cannot change."""
    for hook, function in hooks.items():
        object.__setattr__(method, hook, function)


def _parameters(client: Client) -> Tree:
    return {f"{name}.w": model.w for name, model in client.models.items()}


def trace_round(program: Program, before: FederationState | None, only: Sender | None = None) -> Trace:
    """Makes the round after a state again, and notes its tensors.

    Args:
        before: The state of the run before the round; None: it is the first.
        only: A phase and a client, after whose upload the round stops.

    Raises ShoalError: the code of the round fails.
    """
    # Digests of uploads are compared with those that a run kept.
    with_digests = replace(program, job=replace(program.job, stages={**program.job.stages, "digests": True}))
    backend = _Tracing(with_digests, only)
    server = backend.serve(with_digests, before)
    trace = backend.trace
    with suppress(_Reached):
        trace.line = server.round(unwatched)
        trace.whole, trace.state = True, server.state
        trace.points |= points_of_state(server.state)
    trace.visits = backend.visits
    return trace


def draw_cohort(program: Program, before: FederationState | None, number: int) -> list[int]:
    """Draws the clients of a round after a state; no client is visited."""
    server = Server(program.job, program.rounds, Again(program).enter(program.job), before)
    return list(server.schedule.begin(number, {} if before is None else before.extras.get(SELECTION, {})).cohort)


@dataclass(frozen=True)
class Step:
    """A step of local training: its loss, the norm of the gradients, and these by model."""

    loss: float
    norm: float
    gradients: Tree


def watch_steps(program: Program, number: int, cell: Cell, shared: Tree, client: int) -> list[Step]:
    """Trains one client as a cell asks, by autograd, and returns its steps; a visit. Raises ShoalError: it fails."""
    (alone,) = (single for single in one_by_one(replace(cell, again=None, score=frozenset())) if client in single.ids)
    visit = open_watched(program.job, number).visit(client, alone, shared)
    steps = StepNotes(visit.client, keeps_gradients=True)
    if alone.train:
        with steps:
            visit.train()
    return [Step(loss, norm, tree) for (loss, norm), tree in zip(steps.found, steps.gradients)]
