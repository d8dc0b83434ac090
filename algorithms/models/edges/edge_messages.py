"""Sums over neighbours of messages that also depend on the edge, with a row in memory for every edge.

Axes: N receivers, M senders, E entries, H heads of width D.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.storage.graph.edges.edge_matrix import EdgeMatrix


def softmax_of_entries(matrix: EdgeMatrix, score_EH: Tensor) -> Tensor:
    """Scales the exponentials of scores to sum to one over the senders of every node, `[E, H]`."""
    receiver = matrix.receiver.long()[:, None].expand_as(score_EH)
    highest_NH = score_EH.new_full((len(matrix), score_EH.shape[1]), -torch.inf)
    # The softmax does not depend on it: no gradient runs through it.
    highest_NH = highest_NH.scatter_reduce(0, receiver, score_EH.detach(), "amax")
    weight_EH = (score_EH - matrix.receivers @ highest_NH.nan_to_num(neginf=0.0)).exp()
    return weight_EH / (matrix.receivers @ (matrix.summing @ weight_EH))


def sum_weighted(matrix: EdgeMatrix, weight_EH: Tensor, message_EF: Tensor) -> Tensor:
    """Sums messages `[E, H D]`, those of a head by its weights, over the senders of every node, `[N, H D]`."""
    entries, heads = weight_EH.shape
    weighted_EHD = weight_EH[..., None] * message_EF.view(entries, heads, message_EF.shape[1] // heads)
    return matrix.summing @ weighted_EHD.flatten(1)


def add_edges(matrix: EdgeMatrix, x_MH: Tensor, edge_EH: Tensor) -> Tensor:
    """Sums ReLU(x_j + edge_ij) over the senders j of every node, by the weights of messages, `[N, H]` (GINE)."""
    return matrix.weighing @ F.relu(matrix.senders @ x_MH + edge_EH)
