"""What a client's items have for neighbours: nodes their graph's, and where graphs are items, those they look like.

Axes: N items, H width, K nearest.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from algorithms.completed_graph import completed
from algorithms.nearest import nearest
from storage.view import View


class ItemGraph(Protocol):
    """How a client's items are connected; the data of a client whose items are nodes is such a graph by itself."""

    @property
    def classes(self) -> int:
        """Number of classes C of the federation."""
        ...

    @property
    def items(self) -> int:
        """How many items N there are."""
        ...

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """Row starts `[N + 1]` and columns, ascending in rows, of the symmetric adjacency without loops, int32."""
        ...


@dataclass(frozen=True)
class KnownEdges:
    """An `ItemGraph` whose edges are at hand.

    Attributes:
        classes: Number of classes.
        items: How many items there are.
        edges: As `ItemGraph` has them.
    """

    classes: int
    items: int
    edges: tuple[Tensor, Tensor]


def item_graph(data: View, z_NH: Tensor, similar: int) -> ItemGraph:
    """The graph of nodes, or an edge from every other item to each of its most similar ones, in both directions.

    It is symmetric because an item that is near many, but has nearer ones itself, is their neighbour all the same, and
    because walks of two steps are then counted as they are in a graph of nodes. N^2 H operations: a client has tens to
    thousands of graphs.

    Args:
        data: The client's data.
        z_NH: Embeddings; read only where items are not nodes and `similar` is not 0.
        similar: K, nearest others by the cosine of their embeddings (see `nearest`); 0: no item has a neighbour.
    """
    if data.items_are_rows:
        return data
    nobody = np.zeros(data.items + 1, dtype=np.int32), np.empty(0, dtype=np.int32)
    found = completed(*nobody, nearest(z_NH, min(similar, data.items - 1)), data.device)
    return KnownEdges(data.classes, data.items, (found.indptr.to(data.device), found.indices.to(data.device)))
