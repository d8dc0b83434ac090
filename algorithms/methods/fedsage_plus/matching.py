"""How far generated neighbours are from the nearest real node.

Axes: M generated nodes, F features, Q pairs of a generated node and one that it may stand for.
"""

import torch
from torch import Tensor

from algorithms.methods.fedsage_plus.impaired import Impaired
from storage.ranges import ranges
from storage.sparse_matrix import SparseMatrix
from storage.view import View

# Numbers of rows of features that are gathered at once: 16 MB.
BLOCK = 2**22


def own_loss(new_MF: Tensor, count_V: Tensor, impaired: Impaired, data: View) -> Tensor:
    """The sum of the mean squared differences of generated nodes from the nearest lost neighbour, over V; a scalar.

    A generated neighbour of a node that lost none does not count.

    Args:
        new_MF: Features, those of the first shown node first; differentiable.
        count_V: How many neighbours of a shown node they are, int64.
        impaired: What was lost.
        data: The client's graph.
    """
    owner_M = torch.arange(len(count_V), device=count_V.device).repeat_interleave(count_V)
    found_M, row_M = nearest_lost(new_MF.detach(), owner_M, impaired, data)
    return _squares(new_MF[found_M], row_M, data) / len(count_V)


def others_loss(new_MF: Tensor, nodes: int, rows: Tensor, data: View) -> Tensor:
    """The sum of the mean squared differences of generated nodes from the nearest of some rows, over `nodes`; a scalar.

    Args:
        new_MF: Features, differentiable.
        nodes: Number of nodes that they are neighbours of; of none there is nothing to sum up.
        rows: Rows of `data`, int64; at least one.
        data: The graph of another client than the nodes'.
    """
    return _squares(new_MF, nearest_row(new_MF.detach(), rows, data), data) / max(nodes, 1)


def nearest_lost(new_MF: Tensor, owner_M: Tensor, impaired: Impaired, data: View) -> tuple[Tensor, Tensor]:
    """Which generated nodes have an owner that lost neighbours, bool `[M]`, and for these the nearest one, rows int64.

    Of two equally near ones the one of the smaller row.
    """
    ends_V = impaired.missing_V.cumsum(0)
    count_M = impaired.missing_V[owner_M]
    row_Q = impaired.lost_L[ranges((ends_V - impaired.missing_V)[owner_M], count_M)]
    made_Q = torch.arange(len(owner_M), device=owner_M.device).repeat_interleave(count_M)
    pairs = zip(made_Q.split(_rows_of_a_block(data)), row_Q.split(_rows_of_a_block(data)))
    apart = [(new_MF[made] - _dense(data, row)).square().sum(1) for made, row in pairs]
    apart_Q = torch.cat([new_MF.new_empty(0), *apart])
    least_M = new_MF.new_full((len(new_MF),), torch.inf).scatter_reduce(0, made_Q, apart_Q, "amin")
    # The first of those that are as near as the nearest.
    place_Q = torch.arange(len(made_Q), device=made_Q.device)
    place_Q = torch.where(apart_Q == least_M[made_Q], place_Q, len(made_Q))
    first_M = torch.full_like(owner_M, len(made_Q)).scatter_reduce(0, made_Q, place_Q, "amin")
    found_M = first_M < len(made_Q)
    return found_M, row_Q[first_M[found_M]]


def nearest_row(new_MF: Tensor, rows: Tensor, data: View) -> Tensor:
    """The nearest of some rows to every generated node, int64 `[M]`."""
    least_M, found_M = new_MF.new_full((len(new_MF),), torch.inf), rows[:1].expand(len(new_MF))
    for block in rows.split(_rows_of_a_block(data)):
        x_BF = _dense(data, block)
        # What all candidates of a row have in common is left out.
        apart_MB = x_BF.square().sum(1) - 2 * new_MF @ x_BF.t()
        nearest = apart_MB.min(1)
        nearer_M = nearest.values < least_M
        found_M = torch.where(nearer_M, block[nearest.indices], found_M)
        least_M = torch.where(nearer_M, nearest.values, least_M)
    return found_M


def _squares(new_MF: Tensor, row_M: Tensor, data: View) -> Tensor:
    return (new_MF - _dense(data, row_M)).square().mean(1).sum()


def _rows_of_a_block(data: View) -> int:
    return max(1, BLOCK // data.features)


def _dense(data: View, rows: Tensor) -> Tensor:
    x = data.rows(0, rows)
    return x.to_dense() if isinstance(x, SparseMatrix) else x
