"""Mixing: a matrix times what clients uploaded as `Reduce.MIX`, tile by tile of columns.

Tiles are the same wherever they are multiplied, so that no bit depends on hosts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

# Columns of a product at a time.
TILE = 8192


def mixed(rows: Tensor, held: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    """Writes the product of `rows` `[k, clients]` and `held`, a flat tensor a client, into the k flat tensors of `out`.

    These may be those of `held`: each tile is read before it is written.
    """
    width = held[0].numel()
    for start in range(0, width, TILE):
        tile = slice(start, min(start + TILE, width))
        for row, part in zip(out, rows @ torch.stack([t[tile] for t in held])):
            row[tile] = part


@dataclass(frozen=True)
class Mixed:
    """A row of a product that lies in a cluster's memory, in blocks of columns.

    Attributes:
        refs: References to the blocks, or their places in a list of references; flat tensors.
        shape: Of the whole.
        nbytes: Bytes of the whole.
    """

    refs: tuple[Any, ...]
    shape: torch.Size
    nbytes: int


# Results of mixing for a client, by entry: tensors, or `Mixed` on the way to where they are read.
Inbox = dict[str, Any]


class Uploads(Protocol):
    """Uploads of one entry of `Reduce.MIX`, of all clients that answered, ascending, until they are mixed.

    Attributes:
        shape: Of one.
        dtype: Of all.
        clients: How many.
    """

    shape: torch.Size
    dtype: torch.dtype
    clients: int

    def product(self, rows: Tensor) -> Tensor:
        """The product with `rows` `[k, clients]`, `[k, …]`."""
        ...

    def give(self, rows: Tensor) -> Sequence[Tensor | Mixed]:
        """The rows of the product, for clients; uploads are lost: their memory may be that of the product."""
        ...


class UploadsHere:
    """See `Uploads`; in this process."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Takes tensors of one shape and type, none of which shares memory that stays with another."""
        self.shape, self.dtype, self.clients = tensors[0].shape, tensors[0].dtype, len(tensors)
        self._flat = [t.reshape(-1) for t in tensors]

    def product(self, rows: Tensor) -> Tensor:
        out = self._flat[0].new_empty(len(rows), self.shape.numel())
        mixed(rows, self._flat, list(out))
        return out.reshape((len(rows), *self.shape))

    def give(self, rows: Tensor) -> list[Tensor]:
        more = len(rows) - self.clients
        out = [*self._flat[: len(rows)], *(torch.empty_like(self._flat[0]) for _ in range(more))]
        mixed(rows, self._flat, out)
        self._flat = []
        return [row.reshape(self.shape) for row in out]
