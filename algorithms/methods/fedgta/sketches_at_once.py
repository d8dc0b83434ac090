"""Sketches of clients that were trained at once, as many at a time as a GPU has room for."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.methods.fedgta.batched_sketch import batched_sketch
from shoal.algorithms.methods.fedgta.label_sketch import SketchForm
from shoal.algorithms.training.batched.batched_inputs import padded
from shoal.algorithms.training.batched.batched_model import evaluated
from shoal.algorithms.training.batched.size_groups import size_groups
from shoal.storage.graph.sparse_matrix import SparseMatrix

# Of the hops that a pass of the model reads, and of labels and their powers.
BYTES_AT_A_TIME = 2**28


def at_once(clients: Sequence[Client], form: SketchForm) -> list[list[int]]:
    """Clients of one kind by their places, those of like size together; none that would be alone.

    Left out are all whose model reads edges or sparse hops, or answers for something else than the nodes of the shard.
    """
    model = clients[0].model
    if model.coupled is not None or any(client.model.items is not None for client in clients):
        return []
    data = clients[0].data
    if any(isinstance(data.hop(k), SparseMatrix) for k in model.pattern.inputs):
        return []
    steps = form.lp_steps if form.moment_steps == "all" else 1
    # The powers, what they are powers of, and the same for central moments.
    labels = 4 * steps * data.classes + form.lp_steps * data.classes
    numbers = data.features * len(model.pattern.inputs) + labels
    groups = size_groups([client.data.nodes for client in clients], 4 * numbers, 0, BYTES_AT_A_TIME)
    return [group for group in groups if len(group) > 1]


def sketches(
    clients: Sequence[Client], w: Sequence[Tensor], form: SketchForm, seed: Literal["labels", "predictions"]
) -> tuple[Tensor, Tensor]:
    """Moments and confidence of what every client predicts with its parameters `[P]`; see `batched_sketch`."""
    hops = [padded(list(parts), 0) for parts in zip(*(client.model.gathered("all") for client in clients))]
    logits_BNC = evaluated(clients[0].model.pattern, torch.stack(list(w)), hops)
    return batched_sketch([client.data for client in clients], logits_BNC, form, seed == "labels")
