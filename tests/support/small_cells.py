"""Cells for a host, outcomes and states compared to the bit, and a pool that is watched."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.algorithms.protocol import Reduce, Tree
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, Outcome, PartialSum, Training
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.reduction import Sums
from shoal.engine.rounds.server import Server


def cell_of(ids: Sequence[int], up: dict[str, Reduce] | None = None, **more: Any) -> Cell:
    """A cell of round 1 that trains and has nothing kept; more of it by keyword."""
    empty: dict[str, Any] = {"private": {}, "states": {}, "inboxes": {}, "score": frozenset(), "cost": 1.0}
    empty["places"] = range(len(ids))
    return Cell(**{"round": 1, "ids": ids, "phase": "train", "up": up or {}, "train": Training(), **empty, **more})


def run_cells(job: Job, cells: Sequence[Cell], shared: Tree | None = None, host: Host | None = None) -> list[Outcome]:
    """Runs cells on a host of this process, a fresh one by default."""
    host = host or Host()
    host.open(job)
    outcomes = [outcome for outcome in host.run_cells(job.id, cells, shared or {}) if outcome is not None]
    assert len(outcomes) == len(cells)
    return outcomes


def require_same_outcome(found: Outcome, expected: Outcome) -> None:
    """All but time and lists is equal to the bit; a sum of one client may have travelled in its own precision."""
    assert (found.ids, found.bytes_up) == (expected.ids, expected.bytes_up)
    np.testing.assert_array_equal(found.losses, expected.losses)
    assert found.states.keys() == expected.states.keys()
    require_same_tree(found.tensors, expected.tensors)
    if found.sums or expected.sums:
        one, other = summed(found), summed(expected)
        require_same_tree(one.total, other.total, wide=True)
        assert list(map(str, one.weight.items())) == list(map(str, other.weight.items()))
    for i, tree in expected.states.items():
        require_same_tree(found.states[i], tree)
    require_same_scores(found.scores, expected.scores)


def summed(outcome: Outcome) -> PartialSum:
    """The sums of an outcome, added up as the server does."""
    sums = Sums()
    for places, part in outcome.sums.items():
        sums.take(places, part)
    return sums.whole


def require_same_tree(found: Tree, expected: Tree, wide: bool = False) -> None:
    """Equal to the bit; `wide`: as float64."""
    assert found.keys() == expected.keys()
    for name, t in expected.items():
        assert torch.equal(found[name].double(), t.double()) if wide else torch.equal(found[name], t), name


def require_same_scores(found: Mapping[int, np.ndarray], expected: Mapping[int, np.ndarray]) -> None:
    """Equal counts of the same clients."""
    assert found.keys() == expected.keys()
    for i, counts in expected.items():
        np.testing.assert_array_equal(found[i], counts)


def tensors_of(server: Server, scores: bool = True) -> Tree:
    """The state of a server by flat names, with or without counts."""
    return {name: t for name, t in server.state.to_tensors()[0].items() if scores or not name.startswith("score")}


class Watched:
    """A pool that remembers who was trained, and who was evaluated without a visit of another kind."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.trained: set[int] = set()
        self.evaluated: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        for cell in cells:
            if cell.phase:
                self.trained |= set(cell.ids)
            else:
                self.evaluated += cell.ids
        return self.pool.run_cells(cells, shared)


def evaluated_in_a_round(server: Server) -> list[int]:
    """Runs a round of a server whose pool is watched, and says who was evaluated beside it."""
    pool: Any = server._pool
    pool.evaluated.clear()
    server.round()
    return sorted(pool.evaluated)
