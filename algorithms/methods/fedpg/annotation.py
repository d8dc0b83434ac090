"""Which class every node of a client is taken for, without a look at a label outside the training rows.

Where items are not nodes, nodes here are items.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.graphs.completed_graph import completed
from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.losses.prototypes import unit
from shoal.storage.store.view import View


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


class Annotated(NamedTuple):
    """What the current model of a client says of its nodes, in evaluation mode.

    Attributes:
        class_N: The label of a training row, else the predicted class, int64.
        centre_N: Nodes whose class is trusted, bool.
        z_NH: Embeddings of length one; no rows where they were not wanted.
        graph: What their neighbours are.
    """

    class_N: Tensor
    centre_N: Tensor
    z_NH: Tensor
    graph: ItemGraph


def annotate(client: Client, confident: float | None = None, similar: int = 0, embeddings: bool = True) -> Annotated:
    """Annotates all nodes; the training rows are centres, and nodes predicted with probability `confident` or more.

    Args:
        client: The client.
        confident: As above; None: training rows alone.
        similar: For `item_graph`.
        embeddings: Whether they are wanted.
    """
    embeddings = embeddings or (similar > 0 and not client.data.items_are_rows)
    classes, certain, z = [], [], []
    for out in client.model.outputs():
        if confident is None:
            classes.append(out.logits_NC.argmax(1))
        else:
            best = out.logits_NC.softmax(1).max(1)
            classes.append(best.indices)
            certain.append(best.values >= confident)
        z.append(unit(out.embedding_NH if embeddings else out.embedding_NH[:0]))
    class_N = torch.cat(classes)
    centre_N = torch.cat(certain) if certain else torch.zeros(client.data.items, dtype=torch.bool)
    train = client.data.train
    class_N[train] = client.data.label[train]
    centre_N[train] = True
    z_NH = torch.cat(z)
    return Annotated(class_N, centre_N, z_NH, item_graph(client.data, z_NH, similar))
