"""Which class every node of a client is taken for, without a look at a label outside the training rows."""

from typing import NamedTuple

import torch
from torch import Tensor

from algorithms.client import Client
from algorithms.losses.prototypes import unit


class Annotated(NamedTuple):
    """What the current model of a client says of its nodes, in evaluation mode.

    Attributes:
        class_N: The label of a training row, else the predicted class, int64.
        centre_N: Nodes whose class is trusted, bool.
        z_NH: Embeddings of length one; no rows where they were not wanted.
    """

    class_N: Tensor
    centre_N: Tensor
    z_NH: Tensor


def annotate(client: Client, confident: float | None = None, embeddings: bool = True) -> Annotated:
    """Annotates all nodes; the training rows are centres, and nodes predicted with probability `confident` or more."""
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
    centre_N = torch.cat(certain) if certain else torch.zeros(client.data.nodes, dtype=torch.bool)
    train = client.data.train
    class_N[train] = client.data.label[train]
    centre_N[train] = True
    return Annotated(class_N, centre_N, torch.cat(z))
