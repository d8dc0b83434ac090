"""Mean embeddings by class of clients that were trained at once, as many at a time as a GPU has room for.

Axes: B clients, T training rows of the one that has most, C classes, H width.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.training.batched.batched_inputs import NO_ROW, batched_inputs, numbers_of_row, padded
from shoal.algorithms.training.batched.batched_model import outputs
from shoal.algorithms.training.batched.size_groups import size_groups

# Of what the model reads and computes.
BYTES_AT_A_TIME = 2**28


def batched_class_means(clients: Sequence[Client], w: Sequence[Tensor]) -> list[Tensor]:
    """What `class_means` gives of the embeddings of every client's training rows, `[C, H]`, to rounding.

    Args:
        clients: Clients of one kind that have training rows and may be trained in one batch.
        w: Their parameters `[P]`.
    """
    model = clients[0].model
    gathered = [client.model.gathered("train") for client in clients]
    rows, numbers = zip(*(numbers_of_row(one, model.coupled) for one in gathered))
    found: dict[int, Tensor] = {}
    for group in size_groups(rows, 4 * numbers[0], 4 * len(w[0]), BYTES_AT_A_TIME):
        inputs = batched_inputs([gathered[i] for i in group])
        z_BTH = outputs(model.pattern, torch.stack([w[i] for i in group]), inputs).embedding_NH.float()
        found |= zip(group, _means([clients[i] for i in group], z_BTH))
    return [found[i] for i in range(len(clients))]


def _means(clients: Sequence[Client], z_BTH: Tensor) -> Tensor:
    classes = clients[0].info.classes
    label_BT = padded([client.data.train_label for client in clients], NO_ROW)
    size = len(clients) * classes
    first_B1 = torch.arange(0, size, classes, device=label_BT.device)[:, None]
    # Rows that are none have a place behind all others.
    place_N = torch.where(label_BT == NO_ROW, size, label_BT + first_B1).flatten()
    z_NH = z_BTH.flatten(0, 1)
    sums_PH = z_NH.new_zeros(size + 1, z_NH.shape[1]).index_add(0, place_N, z_NH)
    counts_P = z_NH.new_zeros(size + 1).index_add(0, place_N, torch.ones_like(place_N, dtype=z_NH.dtype))
    return (sums_PH / counts_P.clamp_min(1)[:, None])[:-1].unflatten(0, (len(clients), classes))
