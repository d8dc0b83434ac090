"""Which class every node of a client is taken for, without a look at a label outside the training rows.

Where items are not nodes, nodes here are items.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.client import Client
from algorithms.losses.prototypes import unit
from algorithms.methods.fedpg.item_graph import ItemGraph, item_graph


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
