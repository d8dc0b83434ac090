"""How far generated neighbours are from the nearest real node.

Axes: M generated nodes, H hidden nodes, Q pairs of a generated node and one that it may stand for.
"""

import torch
from torch import Tensor

from shoal.algorithms.methods.fedsage_plus.generator import GeneratedFeatures
from shoal.algorithms.methods.fedsage_plus.impaired import Impaired
from shoal.storage.graph.sparse_matrix import ranges

# Numbers of a block in the search for the nearest: 16 MB.
BLOCK = 2**22


def own_loss(new: GeneratedFeatures, impaired: Impaired) -> Tensor:
    """The sum of the mean squared differences of generated nodes from the nearest lost neighbour, over V; a scalar.

    `new` are neighbours of shown nodes; one of a node that lost none does not count.
    """
    seen_HPR = new.seen(impaired.x_HF)
    return _squares(new, seen_HPR, impaired, *nearest_lost(new, seen_HPR, impaired)) / len(impaired.missing_V)


def others_loss(new: GeneratedFeatures, nodes: int, impaired: Impaired) -> Tensor:
    """The sum of the mean squared differences of generated nodes from the nearest hidden node, over `nodes`; a scalar.

    `new` are neighbours of so many nodes of another client. At least one node is hidden.
    """
    seen_HPR = new.seen(impaired.x_HF)
    made_M = torch.arange(len(new), device=seen_HPR.device)
    return _squares(new, seen_HPR, impaired, made_M, nearest_hidden(new, seen_HPR, impaired)) / max(nodes, 1)


@torch.no_grad()
def nearest_lost(new: GeneratedFeatures, seen_HPR: Tensor, impaired: Impaired) -> tuple[Tensor, Tensor]:
    """Places of the generated nodes whose owner lost neighbours, and of the nearest of these among the hidden nodes.

    Of two equally near ones the first. Both are int64. The second argument is `new.seen` of the hidden nodes.
    """
    ends_V = impaired.missing_V.cumsum(0)
    count_M = impaired.missing_V[new.owner_M]
    hidden_Q = impaired.lost_L[ranges((ends_V - impaired.missing_V)[new.owner_M], count_M)]
    made_Q = torch.arange(len(new), device=hidden_Q.device).repeat_interleave(count_M)
    block = max(1, BLOCK // seen_HPR.shape[2])
    pairs = zip(made_Q.split(block), hidden_Q.split(block))
    product_Q = torch.cat([seen_HPR.new_empty(0), *(new.products(seen_HPR, made, hidden) for made, hidden in pairs)])
    # Without the term that all pairs of a generated node share.
    apart_Q = impaired.square_H[hidden_Q] - 2 * product_Q
    least_M = apart_Q.new_full((len(new),), torch.inf).scatter_reduce(0, made_Q, apart_Q, "amin")
    # The first of those that are as near as the nearest.
    place_Q = torch.arange(len(made_Q), device=made_Q.device)
    place_Q = torch.where(apart_Q == least_M[made_Q], place_Q, len(made_Q))
    first_M = torch.full_like(new.owner_M, len(made_Q)).scatter_reduce(0, made_Q, place_Q, "amin")
    found = (first_M < len(made_Q)).nonzero()[:, 0]
    return found, hidden_Q[first_M[found]]


@torch.no_grad()
def nearest_hidden(new: GeneratedFeatures, seen_HPR: Tensor, impaired: Impaired) -> Tensor:
    """The place of the nearest of all hidden nodes to every generated one, int64 `[M]`; arguments as above."""
    least_M, found_M = seen_HPR.new_full((len(new),), torch.inf), torch.zeros_like(new.owner_M)
    block, first = max(1, BLOCK // max(1, len(new))), 0
    for seen_BPR, square_B in zip(seen_HPR.split(block), impaired.square_H.split(block)):
        nearest = (square_B - 2 * new.all_products(seen_BPR)).min(1)
        nearer_M = nearest.values < least_M
        found_M = torch.where(nearer_M, first + nearest.indices, found_M)
        least_M = torch.where(nearer_M, nearest.values, least_M)
        first += len(square_B)
    return found_M


def _squares(new: GeneratedFeatures, seen_HPR: Tensor, impaired: Impaired, made_Q: Tensor, hidden_Q: Tensor) -> Tensor:
    """The sum of mean squared differences, pair by pair."""
    product_Q = new.products(seen_HPR, made_Q, hidden_Q)
    apart_Q = new.squares_M()[made_Q] - 2 * product_Q + impaired.square_H[hidden_Q]
    return apart_Q.sum() / new.shape[1]
