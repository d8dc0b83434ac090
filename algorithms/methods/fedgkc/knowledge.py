"""How much a model knows of a client's graph, in one number (FedGKC, equations 7 to 9).

Axes: N nodes, C classes.
"""

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.losses.prototypes import unit
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.store.view import View

Clarity = Literal["literal", "margin_mean"]
Term = Literal["strength", "clarity", "smoothness"]
TERMS: tuple[Term, ...] = ("strength", "clarity", "smoothness")


def knowledge(
    data: View, logits_NC: Tensor, smoothing: float, clarity: Clarity = "literal", terms: Collection[Term] = TERMS
) -> float:
    """Pcal: the mean over nodes of strength + clarity - smoothing * smoothness; it may be negative, 0 without nodes.

    With p = softmax(logits): the strength is max p (eq. 7); the clarity by how much it exceeds the others; the
    smoothness the mean cosine of a node's p with those of its neighbours, 0 for a node without any. Uniform p give
    1/C - (C - 2) / (C (C - 1)) = 1/(C (C - 1)) less smoothing times the share of nodes that have neighbours.

    Args:
        data: The client's graph.
        logits_NC: Scores of all nodes.
        smoothing: Lambda, the weight of the smoothness.
        clarity: `literal`, as eq. 8 is written: (max p - sum of the others) / (C - 1); `margin_mean`: max p - mean of
            the others.
        terms: What is counted.
    """
    p_NC = logits_NC.softmax(1)
    others = max(p_NC.shape[1] - 1, 1)
    top_N = p_NC.max(1).values
    total_N = torch.zeros_like(top_N)
    if "strength" in terms:
        total_N += top_N
    if "clarity" in terms:
        total_N += (2 * top_N - 1) / others if clarity == "literal" else top_N - (1 - top_N) / others
    if "smoothness" in terms and smoothing:
        total_N -= smoothing * likeness_to_neighbours(data, p_NC)
    return float(total_N.double().mean()) if len(total_N) else 0.0


def likeness_to_neighbours(data: View, p_NC: Tensor) -> Tensor:
    """Mean cosine of every node's row with those of its neighbours, `[N]`; 0 for a node without neighbours."""
    direction_NC = unit(p_NC)
    heard_NC = SparseMatrix(data.adjacency) @ direction_NC
    return (direction_NC * heard_NC).sum(1) / (data.degree - 1).clamp_min(1)
