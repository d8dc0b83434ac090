"""Where cells run, as the server sees it."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from shoal.algorithms.protocol import Tree
from shoal.engine.messages.cell import Cell, Outcome


class Pool(Protocol):
    """Hosts on Ray, or this process.

    Attributes:
        retried: How often a cell, or a client of one, was lost with its host, since the pool was made.
        transfer: Seconds this process spent on sending cells and taking in outcomes, since the pool was made.
    """

    retried: int
    transfer: float

    @property
    def hosts(self) -> tuple[int, int]:
        """Hosts at work, of how many."""
        ...

    def events(self) -> list[str]:
        """What happened to hosts since this was last asked, a line each."""
        ...

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        """Runs cells in any order; yields the position of each with its outcome."""
        ...
