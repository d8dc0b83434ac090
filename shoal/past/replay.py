"""One visit of one client in one round of a run, made again alone in this process, and compared with the record."""

import math
import pdb
from bdb import BdbQuit
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shoal.algorithms.base import Algorithm, overrides
from shoal.algorithms.client import Client
from shoal.algorithms.protocol import Tree
from shoal.engine.hosts.backend import server_device
from shoal.engine.hosts.host import Host, Visit
from shoal.engine.messages.cell import Cell, one_by_one
from shoal.engine.messages.job import Job, make_job
from shoal.engine.records.client_scores import read_upload_digests
from shoal.engine.rounds.costs import unwatched
from shoal.engine.scores.counts import scores_of
from shoal.engine.screen.progress import say
from shoal.past.fork import plan_fork
from shoal.past.reader import Reading
from shoal.past.recording import Recorder, Recording
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.options.target_names import CLASSIFICATION
from shoal.tables.text_table import TextTable

# Predictions are counted in these parts of a client's data. A table shows at most `MOST_STEPS` steps, and a line names
# at most `MOST_NAMED` clients.
PARTS = ("train", "val", "test")
MOST_STEPS, MOST_NAMED = 20, 20
Confusion = dict[str, np.ndarray]


@dataclass(frozen=True)
class Visited:
    """A visit of the client in one phase.

    Attributes:
        steps: Loss and norm of the gradients of the client's models, of each step of local training; None: they were
            not noted, as the debugger was there.
        before: Counts of items by part, class (rows) and predicted class, int64 `[C, C]`, after the download.
        after: The same after local training.
        digest: The digest of its upload; empty where no stage takes digests.
    """

    phase: str
    loss: float
    steps: Sequence[tuple[float, float]] | None
    before: Confusion
    after: Confusion
    digest: str


@dataclass(frozen=True)
class Replay:
    """The visits of a client in a round, and the digests that the run kept of its uploads, with their phases."""

    round: int
    client: int
    visits: Sequence[Visited]
    recorded: Sequence[tuple[str, str]]

    @property
    def verdict(self) -> str:
        """Returns a line that says whether the uploads are those of the run."""
        who = f"round {self.round}, client {self.client}"
        if not self.recorded:
            return f"{who}: no digest of its upload was kept (run.keep_digests), with which to compare it"
        return f"{who}: the upload {'is that of' if self.equal else 'differs from'} the run"

    @property
    def equal(self) -> bool:
        """Returns whether no upload differs from what was recorded."""
        return not self.recorded or [(visit.phase, visit.digest) for visit in self.visits] == list(self.recorded)


def open_watched(job: Job, number: int) -> Host:
    """Opens a job on a host that trains by autograd, so that each step of a round has a loss and gradients, equal but
    for last bits.
    """
    host = Host()
    train = replace(job.train.in_round(number), schedule=None)
    compute = replace(job.compute, trainer="autograd")
    host.open(replace(job, id=f"{job.id} watched", compute=compute, train=train))
    return host


class _AllMade(Exception):
    """A sign that all visits of the round were made, so that the round may stop."""


class StepNotes(TorchFunctionMode):
    """Notes loss and gradients of every call of `backward` on a loss.

    Attributes:
        found: Loss and norm of the gradients of the client's models, of each step.
        gradients: Gradients of the client's models by name, of each step, where they are to be kept.
    """

    def __init__(self, client: Client, keeps_gradients: bool = False) -> None:
        """Watches the training of a client."""
        super().__init__()
        self._client, self._keeps = client, keeps_gradients
        self.found: list[tuple[float, float]] = []
        self.gradients: list[Tree] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # A loss has one number; other backward calls are parts of a step.
        if func is Tensor.backward and args[0].numel() == 1:
            both = {name: model.flat.w.grad for name, model in self._client.models.items()}
            gradients = {name: g for name, g in both.items() if g is not None}
            norms = [float(g.norm()) for g in gradients.values()]
            if self._keeps:
                self.gradients.append({name: g.clone() for name, g in gradients.items()})
            self.found.append((float(args[0].detach()), math.hypot(*norms)))
        return result


class _Visits(Recorder):
    """A recorder of the visits of one client, each of which is made alone."""

    def __init__(self, job: Job, number: int, client: int, visits: int, debug: bool) -> None:
        """Takes the number of `visits` that the run recorded, after which the round may stop; 0: it recorded none."""
        self._client, self._expected, self._debug = client, visits, debug
        # The digest comes from the way that the run trained.
        self._watched = open_watched(job, number)
        self.visits: list[Visited] = []

    def before(self, host: Recording, cell: Cell, shared: Tree) -> None:
        if self._client in cell.ids:
            self.visits.append(self._visit(host, cell, shared))
            if len(self.visits) == self._expected:
                raise _AllMade

    def _visit(self, host: Recording, cell: Cell, shared: Tree) -> Visited:
        cell = replace(cell, again=None, score=frozenset())
        (alone,) = (single for single in one_by_one(cell) if self._client in single.ids)
        before = _confusion(self._watched.visit(self._client, alone, shared), "before")
        visit = self._watched.visit(self._client, alone, shared)
        steps = StepNotes(visit.client)
        if self._debug:
            _stop_in(visit, alone)
        with steps if not self._debug else nullcontext():
            loss = visit.train() if alone.train else float("nan")
        visit.upload()
        after = _confusion(visit, "after")
        # Clients that train in one batch share last bits, so the whole cell is run.
        outcome = host.run_alone(cell if cell.train and cell.train.batched else alone, shared)
        if self._client in outcome.failures:
            line, detail = outcome.failures[self._client]
            raise ShoalError(line, detail=detail)
        digest = outcome.notes.get(self._client, {}).get("digest", "")
        return Visited(cell.phase, loss, None if self._debug else steps.found, before, after, digest)


def _stop_in(visit: Visit, cell: Cell) -> None:
    """Makes the debugger stop at the start of the functions of the method that run on a client; in `loss` once."""
    method = visit.algorithm
    of_training = ("train", "loss") if cell.train else ()
    for hook in (hook for hook in (*of_training, "upload") if overrides(method, hook)):
        # A method is a frozen dataclass, which an ordinary assignment cannot change.
        object.__setattr__(method, hook, partial(_run_in_debugger, method, hook))


def _run_in_debugger(method: Algorithm, hook: str, *arguments: Any) -> Any:
    """Runs a hook as it is, for the first time in the debugger."""
    plain = getattr(type(method), hook).__get__(method)
    first = vars(method).pop(hook, None) is not None
    if not first:
        return plain(*arguments)
    debugger = _Debugger()
    made = debugger.runcall(plain, *arguments)
    if debugger.left:
        raise BdbQuit
    return made


class _Debugger(pdb.Pdb):
    """A debugger that says whether its user left it, which `runcall` hides."""

    left = False

    def set_quit(self) -> None:
        """Notes that the user left, and ends the debugger."""
        self.left = True
        super().set_quit()


def _confusion(visit: Visit, when: str) -> Confusion:
    """Counts the client's items by part, class and predicted class; empty where the method predicts nothing yet, or no
    classes.
    """
    client, counts_of = visit.scored, {}
    if client.data.target != CLASSIFICATION:
        return {}
    try:
        received = visit.received_to_score()
        for part in PARTS:
            rows = getattr(client.data, part)
            if len(rows):
                predicted = scores_of(visit.algorithm, client, received, part, len(rows)).argmax(1)
                pair = client.data.label[rows] * client.info.classes + predicted
                counts = torch.bincount(pair.cpu(), minlength=client.info.classes**2)
                counts_of[part] = counts.reshape(client.info.classes, -1).numpy()
    except ShoalError as error:
        say(f"no predictions {when} the visit: {error}")
    return counts_of


@dataclass(frozen=True)
class ReplayReader:
    """The reader that makes the visits of a client in a round again; options are the arguments of `replay`."""

    round: Annotated[int, Field(ge=1)]
    client: Annotated[int, Field(ge=0)]
    changes: tuple[str, ...] = ()
    pdb: bool = False

    def read(self, past: PastRun) -> Reading:
        """Returns the tables of the visits, and whether their uploads are those of the run. Raises as `replay`."""
        result = replay(past.path, self.round, self.client, self.changes, self.pdb)
        shown = list(tables(result))
        return Reading(
            shown, {f"table-{i}": table.csv() for i, table in enumerate(shown)}, result.verdict, result.equal
        )


def replay(run: Path, number: int, client: int, changes: Sequence[str] = (), debug: bool = False) -> Replay:
    """Makes the visits of a client in a round of a run again; see `Replay`.

    Args:
        changes: Keys with other values for this round alone, as `algorithm=my.py:Mine`; see `fork`.
        debug: Stop in the debugger at the start of the method's functions of the client.

    Raises:
        ShoalError: The run has no such round, the client no visit in it, or the method's code failed.
    """
    past = PastRun(run).of_round(number)
    if not past.config.schedule.synchronous:
        name = past.config.schedule.name
        raise ShoalError(run, "schedule.name", f"only visits of synchronous rounds are replayed, not those of {name}")
    cohort = past.cohort(number)
    digests = [(phase, digest) for phase, i, digest in read_upload_digests(run, number) if i == client]
    if client not in cohort and not digests:
        named = ", ".join(map(str, cohort[:MOST_NAMED])) + (f", … ({len(cohort)})" if len(cohort) > MOST_NAMED else "")
        raise ShoalError(run, "--client", f"client {client} took no part in round {number}; its clients are {named}")
    before = past.after(number - 1)
    now = plan_fork(past, changes, number) if changes else past.plan
    job = past.job if now is past.plan else make_job(now.config, past.store, run.name)
    visits = _Visits(job, number, client, len(digests), debug)
    recording = Recording(replace(job, stages={**job.stages, "digests": True}), visits)
    try:
        with suppress(_AllMade):
            recording.start(now.rounds, before, server_device(now.config)).round(unwatched)
    except ShoalError as error:
        if isinstance(error.__cause__, BdbQuit):
            raise KeyboardInterrupt from None
        raise
    return Replay(number, client, visits.visits, digests)


def tables(result: Replay) -> Iterator[TextTable]:
    """Yields for each visit a table of its training steps, and for each part the confusion before and after them."""
    for visit in result.visits:
        of_phase = f"round {result.round}, client {result.client}, phase {visit.phase}"
        steps = list(enumerate(visit.steps or (), 1))
        every = -(-len(steps) // MOST_STEPS) or 1
        shown = [step for step in steps if step[0] % every == 0 or step[0] == 1]
        rows = tuple((str(step), f"{loss:.6g}", f"{norm:.4g}") for step, (loss, norm) in shown)
        notes = () if len(shown) == len(steps) else (f"{len(shown)} of {len(steps)} steps",)
        title = f"{of_phase}: loss {visit.loss:.6g}" + ("" if steps else ", no step of training by gradients")
        if visit.steps is None:
            yield TextTable(("phase", "loss"), ((visit.phase, f"{visit.loss:.6g}"),), 1, title=of_phase)
        else:
            yield TextTable(("step", "loss", "norm of gradients"), rows, 1, title=title, notes=notes)
        for part in (part for part in PARTS if part in visit.before and part in visit.after):
            yield _confusion_table(part, visit.before[part], visit.after[part])


def _confusion_table(part: str, before_CC: np.ndarray, after_CC: np.ndarray) -> TextTable:
    """Makes a table of counts by class and predicted class, of the classes that occur."""
    both_CC = before_CC + after_CC
    classes = np.flatnonzero(both_CC.sum(0) + both_CC.sum(1)).tolist()
    rows = tuple((str(c), *(f"{before_CC[c, p]} → {after_CC[c, p]}" for p in classes)) for c in classes)
    right = [f"{100 * np.trace(counts) / counts.sum():.1f} %" for counts in (before_CC, after_CC)]
    title = f"{part}: accuracy {right[0]} before local training, {right[1]} after it"
    return TextTable(("class", *(f"as {p}" for p in classes)), rows, 1, title=title)
