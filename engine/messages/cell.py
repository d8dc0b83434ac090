"""Cells: the fixed small groups of clients that a host runs in one go, and what goes in and out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Tree


@dataclass(frozen=True)
class Cell:
    """Clients to visit, and what they are given.

    Attributes:
        ids: Clients, ascending.
        phase: Phase of the method; empty for a mere evaluation.
        private: Download of single clients beside the shared one.
        states: What the clients kept.
        inboxes: Results of mixing addressed to them.
        score: Clients to evaluate after training, or all of a mere evaluation.
        cost: Estimated work, for balance only.
        score_with: What is applied to these before they are evaluated after training.
        batched: Clients train in one batch, so that the last bits depend on which clients are in the cell.
        again: Client whose visit is made twice, with the same result; None: nobody's.
        first_loss: The largest loss of the phase's first round; infinite in that round.
    """

    round: int
    ids: Sequence[int]
    phase: str
    up: Mapping[str, Reduce]
    train: bool
    private: Mapping[int, Tree]
    states: Mapping[int, Tree]
    inboxes: Mapping[int, Tree]
    score: frozenset[int]
    cost: float
    score_with: Tree = field(default_factory=dict)
    batched: bool = False
    again: int | None = None
    first_loss: float = math.inf


@dataclass
class Outcome:
    """What comes back from a cell; lists follow `ids`.

    Attributes:
        ids: Clients that answered, ascending.
        failures: Clients whose code or upload failed: the error's line and the traceback.
        losses: Mean training loss; NaN where nothing was trained.
        states: New states.
        sums: Weighted sums of `Reduce.MEAN` entries, float64 if there is more than one client, and their weights.
        tensors: `Reduce.STACK` and `Reduce.MIX` entries, stacked.
        lists: `Reduce.GATHER` entries, one tensor a client.
        scores: Counts of the evaluated clients, int64 `[2, 3, C]` and more (see `shoal.engine.rounds.scoring`).
        bytes_up: Bytes that each client sent.
        seconds: Time by step: `train`, `upload`, `evaluate`.
        kernels: Seconds in which a host in a process of its own made kernels ready, which are in no other.
        memory: Resident bytes of the host, where it runs in a process of its own.
        halved: How often clients that were to be trained in one batch did not fit into the memory of a device.
        busy: Seconds of a host in a process of its own, all in all, without `kernels`.
        printed: What code printed in its process, by client, and how many lines more; on the first outcome of a call.
    """

    ids: list[int] = field(default_factory=list)
    failures: dict[int, tuple[str, str]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    states: dict[int, Tree] = field(default_factory=dict)
    sums: Tree = field(default_factory=dict)
    weights: Tree = field(default_factory=dict)
    tensors: Tree = field(default_factory=dict)
    lists: dict[str, list[Tensor]] = field(default_factory=dict)
    scores: dict[int, np.ndarray] = field(default_factory=dict)
    bytes_up: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    kernels: float = 0.0
    memory: int = 0
    halved: int = 0
    busy: float = 0.0
    printed: tuple[Sequence[tuple[int | None, str]], int] = ((), 0)


def one_by_one(cell: Cell) -> list[Cell]:
    """The clients of a cell as cells of their own."""
    return [
        replace(
            cell,
            ids=[i],
            private={i: cell.private[i]} if i in cell.private else {},
            states={i: cell.states[i]} if i in cell.states else {},
            inboxes={i: cell.inboxes[i]} if i in cell.inboxes else {},
            score=cell.score & {i},
            cost=cell.cost / len(cell.ids),
        )
        for i in cell.ids
    ]
