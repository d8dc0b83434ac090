"""Cells that cannot run in one go: their clients run one by one, and what comes back is put together again."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.rounds.reduction import merge
from engine.wire.cell import Cell, Outcome, one_by_one


@dataclass(eq=False)
class Piece:
    """A cell, or one client of a cell, on its way through the hosts.

    Attributes:
        position: Of the whole cell among the cells of a phase.
        cell: What a host runs.
        losses: How often it was lost with its host.
    """

    position: int
    cell: Cell
    losses: int = 0


class Assembly:
    """The cells of one phase that run client by client."""

    def __init__(self) -> None:
        """Starts without any."""
        self._ids: dict[int, Sequence[int]] = {}
        self._found: dict[int, dict[int, Outcome]] = {}

    def split(self, piece: Piece) -> list[Piece]:
        """The clients of a cell as pieces of their own."""
        if len(piece.cell.ids) == 1:
            return [piece]
        self._ids[piece.position] = piece.cell.ids
        return [Piece(piece.position, single, piece.losses) for single in one_by_one(piece.cell)]

    def join(self, piece: Piece, outcome: Outcome) -> Outcome | None:
        """The outcome of the whole cell, to the bit that of one go; None while other clients of it are missing."""
        ids = self._ids.get(piece.position)
        if ids is None:
            return outcome
        found = self._found.setdefault(piece.position, {})
        found[piece.cell.ids[0]] = outcome
        return merge([found[i] for i in ids]) if len(found) == len(ids) else None
