"""Stages: what happens to uploads between the clients of any method and its server.

A job has a list of stages, made by the sections of its config. On a host each may change an upload, in their order; at
the server each is asked before a phase, and may change the replies after it, in reverse order. Rounds and hosts know no
stage by its name. A run whose config asks for nothing has no stages, and nothing is called.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Received
from shoal.algorithms.client import Client
from shoal.algorithms.protocol import Ask, Reduce, Replies, Tree, Upload
from shoal.engine.messages.cell import Adder, Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.reduction import require_one_shape
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import SECTIONS
from shoal.storage.errors import ShoalError
from shoal.storage.shards.view import View

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan


class SkipRound(Exception):
    """A stage cannot answer, so that the round changes nothing and the run goes on.

    Attributes:
        columns: What the line of the round says of it.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        """Takes the columns of the round's line."""
        super().__init__()
        self.columns = dict(columns)


@dataclass(frozen=True)
class AtClient:
    """The place where a stage finds an upload: at the end of one visit of a client, on a host.

    Attributes:
        client: Its number.
        cell: The cell that is visited: round, phase, entries (`up`), and in `stages.notes` what `before` sent along.
        received: Downloads and inbox of this visit, by name.
        kept: Tensors that stages keep with the client between its visits; may change. Names begin with
            one of `BY_STAGES`, but for stages of the user's, which see their own alone.
        notes: Goes to the server beside the upload, in `Outcome.notes` of the client; may change.
        rng: Gives a random stream of the client for a purpose.
        random: Gives a seed of the client for a purpose.
    """

    client: int
    cell: Cell
    received: Tree
    kept: Tree
    notes: dict[str, Any]
    rng: Callable[[str], torch.Generator]
    random: Callable[[str], int]


@dataclass
class Round:
    """A round as the server sees it before its first phase.

    Attributes:
        number: From 1.
        cohort: Clients that take part, ascending.
        missing: Clients that were drawn and take no part to the end.
    """

    number: int
    cohort: Sequence[int]
    missing: frozenset[int]


@dataclass
class Phase:
    """A phase as the server sees it before and after its clients run.

    Attributes:
        ask: The request of the method.
        round: Number of the round, from 1.
        cohort: Clients of the round, ascending.
        ids: Clients that are asked now, ascending.
        lost: Clients that were drawn for the round and cannot answer any more.
        number: Of the exchange within its round, from 1; phases in which clients send nothing are not counted.
        first: Whether the method has asked nothing before in this round.
        kept: Tensors that the stage keeps at the server between rounds, in checkpoints; may change.
        columns: What stages add to the line of the round; may change.
        outcomes: Of all cells that answered, after the clients ran.
    """

    ask: Ask
    round: int
    cohort: Sequence[int]
    ids: Sequence[int]
    lost: frozenset[int]
    number: int
    first: bool
    kept: Tree
    columns: dict[str, Any]
    outcomes: Sequence[Outcome] = ()


@dataclass(frozen=True)
class ToHosts:
    """The values that a stage sends along with a phase.

    Attributes:
        note: For the same stage on hosts, which reads it as `at.cell.stages.notes[self.name]`; plain values.
        adder: How means are added up; None: as weighted sums. One stage of a run may set it.
        added: Entries that the stage adds to those of the method on hosts.
    """

    note: Any = None
    adder: Adder | None = None
    added: Mapping[str, Reduce] = field(default_factory=dict)


class Opened(Protocol):
    """A job on a host, as far as a stage needs it to score a client.

    Attributes:
        job: The job.
        algorithm: Its method.
        view: Gives the data of a client that is scored, changed by arguments of `Job.view`.
    """

    job: Job
    algorithm: Algorithm
    view: Callable[..., View]


class Stage:
    """A stage of uploads; every hook has a default that does nothing.

    Each host and the server have instances of their own: what they must share travels by the hooks' arguments.

    Attributes:
        name: Of its section, or of the user's class; its notes have this name.
        whole: Needs the upload of every client at the server, and reduces them itself (`reduce`).
        empty_rounds: Acts in rounds without a cohort, too.
        adds: Adds entries to uploads (`ToHosts.added`); a stage of the user's that does must say so.
        hides: Hides the upload of each single client from the server.
        bounds: Bounds the norm of each upload, so that the mean of all says little of one client.
        hides_sizes: Sizes of clients are no business of the method.
        guarded: Is a user's: visits are made twice in round 1, and what they write is looked for.
    """

    name: str = ""
    whole: bool = False
    empty_rounds: bool = False
    adds: bool = False
    hides: bool = False
    bounds: bool = False
    hides_sizes: bool = False
    guarded: bool = False

    def on_data(self, client: int) -> Mapping[str, Any]:
        """Returns what is done to the data that a client trains on, as arguments of `Job.view`; on a host."""
        return {}

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        """Returns the upload of one visit after this stage; on a host, on the device of the client's model."""
        return upload

    def score(self, counts: np.ndarray, client: Client, received: Received, opened: Opened) -> np.ndarray:
        """Returns the counts of an evaluated client with what this stage adds to them; on a host."""
        return counts

    def begin(self, round: Round) -> None:
        """Looks at a round before its first phase, at the server; raises SkipRound if it cannot take place."""

    def before(self, phase: Phase) -> ToHosts | None:
        """Prepares a phase at the server; raises a ShoalError to refuse it, and SkipRound."""
        return None

    def reduce(self, outcomes: Sequence[Outcome], phase: Phase) -> Replies:
        """Returns the replies of a phase, from cells that kept each upload; of `whole` stages alone."""
        raise NotImplementedError

    def after(self, replies: Replies, phase: Phase) -> Replies:
        """Returns what the method sees of a phase; at the server."""
        return replies


def rows_of(outcomes: Sequence[Outcome]) -> tuple[list[int], dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Returns the uploads of all clients from cells that kept each: clients, ascending, and by entry rows and weights.

    Rows are the tensors of the clients, weights float64, numbers or tensors that broadcast against the entry.
    Raises ShoalError: clients' shapes differ.
    """
    ids = [client for outcome in outcomes for client in outcome.ids]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    rows: dict[str, list[Tensor]] = {}
    weights: dict[str, list[Tensor]] = {}
    for entry in outcomes[0].tensors:
        require_one_shape(entry, [(o.ids[0], o.tensors[entry].shape[1:]) for o in outcomes])
        pairs = [pair for outcome in outcomes for pair in zip(outcome.tensors[entry], outcome.lists[entry])]
        rows[entry], weights[entry] = ([pairs[place][part] for place in order] for part in (0, 1))
    return sorted(ids), rows, weights


def make_stages(job: Job, plan: "Plan | None" = None) -> list[Stage]:
    """Makes the stages of a job in their order, on a host without a plan, at the server with it.

    Raises ShoalError: as the stages do.
    """
    named = [(section.feature, section) for section in SECTIONS]
    on = [(name, section) for name, section in named if name in job.stages]
    places = sorted((rank, name, place) for name, section in on for rank, place in section.stages)
    stages = list[Stage]()
    for _, name, place in places:
        made: list[Stage] = load(place)(job, plan)
        for stage in made:
            stage.name = stage.name or name
        stages += made
    require_compatible(stages)
    return stages


# Two stages of a run cannot have these properties, with the reason.
PAIRS = (
    ("whole", "whole", "both need every upload, and reduce them"),
    ("whole", "hides", "the first needs every upload, and the second hides single ones"),
    ("whole", "bounds", "the first reduces uploads, and the second bounds their mean"),
    ("adds", "bounds", "the first adds entries to uploads, which the second does not bound"),
)


def require_compatible(stages: Sequence[Stage]) -> None:
    """Raises a ShoalError if two stages exclude one another by what they declare; see `PAIRS`."""
    for first, second, why in PAIRS:
        for stage in (stage for stage in stages if getattr(stage, first)):
            for other in (other for other in stages if other is not stage and getattr(other, second)):
                raise ShoalError("stages", f"{stage.name} and {other.name}: {why}; take one of them")


def require_means(method: str, up: Mapping[str, Reduce], key: str, kind: str, does: str, other: str) -> None:
    """Raises a ShoalError, which names the key, if entries of a method are not reduced as means."""
    if others := [entry for entry, how in up.items() if how is not Reduce.MEAN]:
        how = "mixed" if up[others[0]] is Reduce.MIX else "kept for every client"
        raise ShoalError(
            key,
            f"{kind} {does} means, and {others[0]!r} of {method} is {how}; take {key}={other}, or a "
            "method that sends means alone",
        )
