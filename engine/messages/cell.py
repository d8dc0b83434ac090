"""Cells: the fixed small groups of clients that a host runs in one go, and what goes in and out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.algorithms.train_options import TrainOptions


class OnDevice(NamedTuple):
    """The place of a state that stays on a host's device.

    Attributes:
        process: The host's; one that replaces it does not have the state.
        version: Number of the state among all that clients kept in that process.
    """

    process: str
    client: int
    version: int


@dataclass(frozen=True)
class Kept:
    """The state that a client keeps where it was visited last, in a cluster's memory or on a host's device.

    Attributes:
        ref: Reference to the tensors by name, or `OnDevice`.
        names: Their names.
        nbytes: Bytes of all of them.
        host: Number of the host that made them.
    """

    ref: Any
    names: tuple[str, ...]
    nbytes: int
    host: int


class Adder(Protocol):
    """An adder of the means of a phase, where plain sums are not enough; it travels to hosts with each cell."""

    def hidden(self, client: int, upload: Upload, up: Mapping[str, Reduce]) -> Upload:
        """Returns what a client sends instead of an upload of finite means."""
        ...

    def join(self, first: "PartialSum", second: "PartialSum") -> "PartialSum":
        """Returns the sum of two; raises a ShoalError if shapes differ."""
        ...

    def read(self, whole: "PartialSum", answered: Sequence[int]) -> None:
        """Makes the sum over the clients that answered readable: values and weights float64, in their shapes.

        Raises SkipRound: too few clients answered.
        """
        ...


@dataclass(frozen=True)
class OfStages:
    """The requests of a run's stages to the hosts in a phase; see `shoal.engine.rounds.stage`.

    Attributes:
        notes: What a stage at the server sends to the same stage on hosts, by its name.
        added: Entries that stages add to those of the method.
        adder: How means are added up; None: as weighted sums.
        rows: Entries of `Reduce.MEAN` come as the tensor and the weight of every client, and are not added up.
    """

    notes: Mapping[str, Any] = field(default_factory=dict)
    added: Mapping[str, Reduce] = field(default_factory=dict)
    adder: Adder | None = None
    rows: bool = False


NO_STAGES = OfStages()


class Training(NamedTuple):
    """The way in which the clients of a cell are trained.

    Attributes:
        batched: In one batch, so that the last bits depend on which clients are in the cell.
        epochs: Epochs of local training; None: as the job has them.
    """

    batched: bool = False
    epochs: int | None = None


@dataclass(frozen=True)
class Cell:
    """A group of clients to visit, and what they are given.

    Attributes:
        ids: Clients, ascending.
        phase: Phase of the method; empty for a mere evaluation.
        train: How they are trained; None: they are not.
        private: Download of single clients beside the shared one.
        states: What the clients kept.
        inboxes: Results of mixing addressed to them.
        score: Clients to evaluate after training, or all of a mere evaluation.
        cost: Estimated work, for balance only.
        score_with: What is applied to these before they are evaluated after training.
        again: Client whose visit is made twice, with the same result; None: nobody's.
        first_loss: The largest loss of the phase's first round; infinite in that round.
        kept: States that are in a cluster's memory or on devices, by client; a host has them in `states`.
        stages: What stages ask of the hosts.
        places: Of the clients, in the tree by which means are added up; behind them may be empty ones.
    """

    round: int
    ids: Sequence[int]
    phase: str
    up: Mapping[str, Reduce]
    train: Training | None
    private: Mapping[int, Tree]
    states: Mapping[int, Tree]
    inboxes: Mapping[int, Tree]
    score: frozenset[int]
    cost: float
    score_with: Tree = field(default_factory=dict)
    again: int | None = None
    first_loss: float = math.inf
    kept: Mapping[int, Kept] = field(default_factory=dict)
    places: range = range(0)
    stages: OfStages = NO_STAGES

    @property
    def entries(self) -> Mapping[str, Reduce]:
        """Returns all entries that come back, those of the method and of stages."""
        return {**self.up, **self.stages.added} if self.stages.added else self.up

    def train_options(self, train: TrainOptions) -> TrainOptions:
        """Returns the options that clients train with; raises a ShoalError if the schedule gives the round no rate."""
        options = train if train.schedule is None else train.in_round(self.round)
        epochs = None if self.train is None else self.train.epochs
        return options if epochs is None else replace(options, epochs=epochs)


@dataclass
class PartialSum:
    """The weighted sums of `Reduce.MEAN` entries over the clients in a range of places.

    Attributes:
        first: The first of these clients.
        total: By entry; float64 if there is more than one client.
        weight: By entry the sum of weights, a number or float64.
        own: Whether `total` was made by adding up in this process, and may be written to.
    """

    first: int
    total: Tree
    weight: dict[str, float | Tensor]
    own: bool = False


@dataclass
class Outcome:
    """The results of a cell; lists follow `ids`.

    Attributes:
        ids: Clients that answered, ascending.
        failures: Clients whose code or upload failed: the error's line and the traceback.
        losses: Mean training loss; NaN where nothing was trained.
        states: New states.
        kept: New states that stay in a cluster's memory or on a device.
        sums: Partial sums of `Reduce.MEAN` entries, by range of places; see `shoal.engine.rounds.reduction.Sums`.
        tensors: `Reduce.STACK` and `Reduce.MIX` entries, stacked; so those of `Reduce.MEAN` of cells with `rows`.
        blocks: `Reduce.MIX` entries that are in a cluster's memory.
        lists: `Reduce.GATHER` entries, one tensor a client; weights of `Reduce.MEAN` entries of cells with `rows`.
        scores: Counts of the evaluated clients, int64 `[2, 3, C]` and more (see `shoal.engine.scores.counts`).
        bytes_up: Bytes that each client sent.
        seconds: Time by step: `train`, `upload`, `evaluate`.
        kernels: Seconds in which a host in a process of its own made kernels ready, which are in no other.
        memory: Resident bytes of the host, where it runs in a process of its own.
        halved: How often clients that were to be trained in one batch did not fit into the memory of a device.
        busy: Seconds of a host in a process of its own, all in all, without `kernels`.
        printed: What code printed in its process, by client, and how many lines more; on the first outcome of a call.
        predicted: Predicted classes and labels of the evaluated clients, by part, where a callback asks for them.
        notes: What stages on hosts send beside the uploads, by client and name.
    """

    ids: list[int] = field(default_factory=list)
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    states: dict[int, Tree] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    sums: dict[range, PartialSum] = field(default_factory=dict)
    tensors: Tree = field(default_factory=dict)
    blocks: dict[str, list[Any]] = field(default_factory=dict)
    lists: dict[str, list[Tensor]] = field(default_factory=dict)
    scores: dict[int, np.ndarray] = field(default_factory=dict)
    bytes_up: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    kernels: float = 0.0
    memory: int = 0
    halved: int = 0
    busy: float = 0.0
    printed: tuple[Sequence[tuple[int | None, str]], int] = ((), 0)
    predicted: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    notes: dict[int, dict[str, Any]] = field(default_factory=dict)


def one_by_one(cell: Cell) -> list[Cell]:
    """Splits a cell into cells of one client each."""
    return [
        replace(
            cell,
            ids=[i],
            private={i: cell.private[i]} if i in cell.private else {},
            states={i: cell.states[i]} if i in cell.states else {},
            inboxes={i: cell.inboxes[i]} if i in cell.inboxes else {},
            kept={i: cell.kept[i]} if i in cell.kept else {},
            score=cell.score & {i},
            cost=cell.cost / len(cell.ids),
            # Empty places behind the last client are its own.
            places=cell.places[number : None if number == len(cell.ids) - 1 else number + 1],
        )
        for number, i in enumerate(cell.ids)
    ]
