"""A user's model: `model.name: examples/model.py:Residual`.

Whatever torch and PyG offer may stand in it. Shoal puts the classifier on top of the embeddings that `forward` gives.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

import shoal


class Residual(shoal.Backbone):
    """Graph convolutions, each added to what came in."""

    def __init__(self, features: int, dropout: float, *, hidden: int = 32, layers: int = 2) -> None:
        super().__init__(width=hidden)
        self.lift = nn.Linear(features, hidden)
        self.convs = nn.ModuleList(GCNConv(hidden, hidden) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.lift(x)
        for conv in self.convs:
            h = h + self.dropout(torch.relu(conv(h, edge_index)))
        return h


class HopAttention(shoal.Backbone):
    """A weight for every hop, learnt: a model that reads hops and no edges."""

    reads = "hops"

    def __init__(self, features: int, hops: int, *, hidden: int = 32) -> None:
        super().__init__(width=hidden)
        self.weight = nn.Parameter(torch.zeros(hops + 1))
        self.linear = nn.Linear(features, hidden)

    def forward(self, hops: list[Tensor]) -> Tensor:
        weight = self.weight.softmax(0)
        return torch.relu(self.linear(sum(w * x for w, x in zip(weight, hops, strict=True))))
