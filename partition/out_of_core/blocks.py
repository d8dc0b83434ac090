"""Reading a graph on disk: whole rows, block by block, in order."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shoal.storage.files.mapped import read, row_blocks
from shoal.storage.progress import step

# A pass over at least so many entries is shown as a step.
LONG_PASS = 1 << 27


@dataclass(frozen=True)
class Level:
    """A graph of the multilevel scheme, undirected and without self loops; every array may be a memory map.

    Attributes:
        indptr: Row pointer, int64 `[N + 1]`.
        indices: Neighbours of every node, int32 `[E]`; every edge appears both ways.
        weights: Weight of every entry, int32 `[E]`; None: all one.
        node_weights: Nodes of the finest graph that every node stands for, int32 `[N]`; None: all one.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None = None
    node_weights: np.ndarray | None = None

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def entries(self) -> int:
        """Number of directed entries: twice the number of undirected edges."""
        return int(self.indptr[-1])


class Block(NamedTuple):
    """Consecutive whole rows of a level from node `first` on, as compiled loops take them; `indptr` starts at 0."""

    first: int
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None
    node_weights: np.ndarray | None


def blocks(level: Level, entries: int) -> Iterator[Block]:
    """All rows in ascending order, in blocks of at most `entries` entries, or of one row where that has more.

    A long pass is shown as a step.
    """
    if level.entries < LONG_PASS:
        yield from _blocks(level, entries)
        return
    with step("pass over the edges", level.entries, "entries") as advance:
        for block in _blocks(level, entries):
            yield block
            advance(len(block.indices))


def _blocks(level: Level, entries: int) -> Iterator[Block]:
    for first, indptr, low, high in row_blocks(level.indptr, entries):
        yield Block(
            first,
            indptr,
            read(level.indices, low, high),
            None if level.weights is None else read(level.weights, low, high),
            None if level.node_weights is None else level.node_weights[first : first + len(indptr) - 1],
        )


@dataclass(frozen=True)
class Passes:
    """Passes of one kind, until one moves at most the share `converged` of the nodes, or there were `most`."""

    name: str
    most: int
    converged: float

    def run(self, level: Level, entries: int, move: Callable[[Block], int], report: Callable[[str], None]) -> None:
        """Moves nodes block by block; `move` gives how many moved, and `report` gets a line a pass."""
        for number in range(1, self.most + 1):
            moved = sum(move(block) for block in blocks(level, entries))
            report(f"{self.name}, pass {number}: {moved} of {level.nodes} nodes moved")
            if moved <= self.converged * level.nodes:
                return
