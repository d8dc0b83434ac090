"""The same new nodes added to every graph of a batch, behind its own.

Axes: N nodes of G graphs, K new nodes of each, F features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.algorithms.models.items.plain_graphs import graphs_of_rows


@dataclass(frozen=True)
class WithAdded:
    """Graphs that have new nodes, which no edge joins yet.

    Attributes:
        x_MF: Features of all nodes, M = N + G K.
        first: First row of every graph and the end of the last, int64 `[G + 1]`.
        own_N: Where the nodes of the graphs are now, int64.
        added_GK: Where the new nodes are, int64.
        graph_N: The graph of every one of its own nodes, int64.
    """

    x_MF: Tensor
    first: Tensor
    own_N: Tensor
    added_GK: Tensor
    graph_N: Tensor

    def joins(self, joined_NK: Tensor) -> Tensor:
        """Rows of nodes and of the new nodes of their graph that they are joined to, int32 `[2, E]`, where true."""
        node, new = joined_NK.nonzero(as_tuple=True)
        return torch.stack([self.own_N[node], self.added_GK[self.graph_N[node], new]]).int()


def with_added(x_NF: Tensor, first: Tensor, new_KF: Tensor) -> WithAdded:
    """Adds new nodes, whose features may be differentiated, to every graph."""
    graphs, new = len(first) - 1, len(new_KF)
    graph_N = graphs_of_rows(first)
    own_N = torch.arange(len(x_NF), device=first.device) + new * graph_N
    number_G = torch.arange(graphs, device=first.device)
    added_GK = (first[1:] + new * number_G)[:, None] + torch.arange(new, device=first.device)
    place_M = torch.cat([own_N, added_GK.flatten()]).argsort()
    x_MF = torch.cat([x_NF, new_KF.repeat(graphs, 1)]).index_select(0, place_M)
    return WithAdded(x_MF, first + new * torch.arange(graphs + 1, device=first.device), own_N, added_GK, graph_N)
