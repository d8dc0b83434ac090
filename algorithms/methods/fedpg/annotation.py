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
        z_NH: Embeddings of length one.
    """

    class_N: Tensor
    centre_N: Tensor
    z_NH: Tensor


def annotate(client: Client, confident: float | None = None) -> Annotated:
    """Annotates all nodes; the training rows are centres, and nodes predicted with probability `confident` or more."""
    blocks = [(out.logits_NC.softmax(1).max(1), unit(out.embedding_NH)) for out in client.model.outputs()]
    class_N = torch.cat([best.indices for best, _ in blocks])
    centre_N = torch.zeros(client.data.nodes, dtype=torch.bool)
    if confident is not None:
        centre_N = torch.cat([best.values for best, _ in blocks]) >= confident
    train = client.data.train
    class_N[train] = client.data.label[train]
    centre_N[train] = True
    return Annotated(class_N, centre_N, torch.cat([z for _, z in blocks]))
