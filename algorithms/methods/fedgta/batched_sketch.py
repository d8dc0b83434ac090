"""FedGTA's sketches of several clients at once: a GPU takes as long to be told as to compute.

Axes: B clients, N nodes of the largest of them, C classes, S propagation steps, K orders, T training rows of the one
that has most.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.label_propagation import row_stochastic
from shoal.algorithms.methods.fedgta.label_sketch import SketchForm, confidence_of_nodes
from shoal.algorithms.training.batched.batched_inputs import joined, padded, training_places
from shoal.storage.store.view import View, smoothed


def batched_sketch(
    views: Sequence[View], logits_BNC: Tensor, form: SketchForm, seeds_labels: bool
) -> tuple[Tensor, Tensor]:
    """`sketch_labels` of every client, to rounding.

    Args:
        views: The clients' graphs; none is empty.
        logits_BNC: What their models say of all their nodes, float32; of padded rows anything.
        form: What is wanted.
        seeds_labels: The seed is one-hot at training rows, as `with_training_labels` makes it.

    Returns:
        Moments, float32 `[B, S * K, C]`, S and K as `form` wants them; and confidence, float64 `[B]`.
    """
    clients, most, classes = logits_BNC.shape
    degree_BN = padded([view.degree for view in views], 0)
    real_BN1 = (degree_BN > 0)[:, :, None]
    seed_BNC = F.softmax(logits_BNC, dim=2) * real_BN1
    if seeds_labels:
        seed_BNC = _with_labels(views, seed_BNC)
    seed_NC, degree_N = seed_BNC.flatten(0, 1), degree_BN.flatten().clamp_min(1)
    adjacency = joined([view.adjacency for view in views], most)
    steps, y_NC = [], seed_NC
    for _ in range(form.lp_steps):
        y_NC = smoothed(adjacency, degree_N, y_NC).lerp_(seed_NC, form.lp_seed_weight)
        steps.append(y_NC)
    y_SBNC = torch.stack(steps if form.moment_steps == "all" else steps[-1:]).view(-1, clients, most, classes)
    rows_SBNC = row_stochastic(y_SBNC) if form.rows == "stochastic" else y_SBNC
    confidence_B = degree_BN.new_ones(clients, dtype=torch.float64)
    if form.confidence != "uniform":
        of_nodes_BN = confidence_of_nodes(rows_SBNC[-1], form.confidence)
        confidence_B = (degree_BN.double() * of_nodes_BN.double()).sum(1)
    return _moments(rows_SBNC, real_BN1, form).flatten(1, 2), confidence_B


def _with_labels(views: Sequence[View], seed_BNC: Tensor) -> Tensor:
    """The seeds, one-hot at training rows."""
    _, most, classes = seed_BNC.shape
    place_R, label_R = training_places(views, most)
    seed_NC = torch.cat([seed_BNC.flatten(0, 1), seed_BNC.new_zeros(1, classes)])
    seed_NC[place_R] = F.one_hot(label_R, classes).to(seed_NC.dtype)
    return seed_NC[:-1].view_as(seed_BNC)


def _moments(y_SBNC: Tensor, real_BN1: Tensor, form: SketchForm) -> Tensor:
    """Moments 1..K over the nodes of every client, `[B, S, K, C]`; `hybrid`, raw then central: `[B, S, 2K, C]`."""
    count_B11 = real_BN1.sum(1, keepdim=True)
    bases = []
    if form.moments != "central":
        bases.append(y_SBNC)
    if form.moments != "raw":
        bases.append((y_SBNC - y_SBNC.sum(2, keepdim=True) / count_B11) * real_BN1)
    base_OSBNC = torch.stack(bases)
    power_OSBNC, sums = base_OSBNC, [base_OSBNC.sum(3)]
    for _ in range(form.orders - 1):
        power_OSBNC = power_OSBNC * base_OSBNC
        sums.append(power_OSBNC.sum(3))
    moment_OKSBC = torch.stack(sums, 1) / count_B11[:, 0]
    return moment_OKSBC.permute(3, 2, 0, 1, 4).flatten(2, 3)
