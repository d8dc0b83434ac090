"""The networks that a client learns by itself from what the common model knows (AdaFGL, phase 2).

Axes: N nodes, C classes, F features, K steps of propagation.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.adafgl.knowledge import Knowledge, propagated
from shoal.algorithms.models.layers.head import Head
from shoal.storage.graph.sparse_matrix import Features


class Scores(NamedTuple):
    """Class scores of all nodes, `[N, C]`: of the homophilous branch, and of the three of the heterophilous one."""

    homo: Tensor
    own: Tensor
    smooth: Tensor
    message: Tensor


class Branches(nn.Module):
    """Four perceptrons: of two layers for a graph whose neighbours are similar, and three of three layers for another.

    The latter read a node's features alone (`own`), propagated features (`smooth`), and signed messages (`message`),
    for which `beta` is the share of the common model in the similarity.
    """

    def __init__(self, features: int, classes: int, steps: int, hidden: int, dropout: float, beta: float) -> None:
        """Draws the parameters from torch's default generator."""
        super().__init__()
        self.beta = beta
        wide = (steps + 1) * features
        self.homo = Head(wide, hidden, classes, 2, dropout, activation="prelu")
        self.own = Head(features, hidden, classes, 3, dropout, activation="prelu")
        self.smooth = Head(wide, hidden, classes, 3, dropout, activation="prelu")
        self.message = Head(wide, hidden, classes, 3, dropout, activation="prelu")

    def forward(self, known: Knowledge, x_NF: Features) -> Scores:
        """Scores by what is known and by the features, `[N, F]`."""
        weights = [branch.first_weights()[0] for branch in (self.homo, self.smooth, self.message)]
        homo_NH, smooth_NH, message_NH = propagated(known, x_NF, weights)
        return Scores(
            _after(self.homo, homo_NH),
            self.own(x_NF).logits_NC,
            _after(self.smooth, smooth_NH),
            signed_messages(_after(self.message, message_NH), known.similar_NN, self.beta),
        )


def _after(branch: Head, product_NH: Tensor) -> Tensor:
    """Scores of a branch whose first weight is multiplied already."""
    return branch.after_first(product_NH + branch.linears[0].get_parameter("bias")).logits_NC


def signed_messages(y_NC: Tensor, similar_NN: Tensor, beta: float) -> Tensor:
    """(y + softmax(R+ y) - softmax(R- y)) / 2, `[N, C]`: similar nodes attract, others repel.

    R+ and R- are the positive and negative parts of R, which tells how much more, or less, similar than the mean pair
    two nodes are: 1 as much as the most similar pair, -1 not at all; 1 on the diagonal. The authors' code turns the
    negative half round, so that the least similar nodes weigh least.

    With M = beta S + (1 - beta) S(softmax(y)), m its mean off the diagonal and M* its largest entry, R is
    (M - m) / (M* - m) where M is above m, and (M - m) / m elsewhere. Both divisors are taken out of the products, which
    have fewer entries. S is zero on the diagonal.
    """
    nodes, least = len(y_NC), torch.finfo(y_NC.dtype).eps
    direction_NC = unit(y_NC.softmax(1))
    mixed_NN = torch.addmm(similar_NN, direction_NC, direction_NC.T, beta=beta, alpha=1 - beta).fill_diagonal_(0)
    mean = mixed_NN.sum() / max(nodes * (nodes - 1), 1)
    above_NN = mixed_NN - mean
    near_NC = F.relu(above_NN) @ y_NC / (mixed_NN.max() - mean).clamp_min(least) + y_NC
    # The diagonal, -m, is no dissimilar node.
    far_NC = (above_NN.clamp_max(0) @ y_NC + mean * y_NC) / -mean.clamp_min(least)
    return (y_NC + near_NC.softmax(1) - far_NC.softmax(1)) / 2
