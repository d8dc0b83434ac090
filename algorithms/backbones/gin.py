"""GIN: sums over neighbours, then an MLP."""

from torch import nn
from torch_geometric.nn import GINConv

from algorithms.backbones.coupled import Coupled


class GIN(Coupled):
    """Graph Isomorphism Network (Xu et al., 2019): h'_i = LayerNorm(MLP((1 + e) h_i + sum_{j in N(i)} h_j)).

    e is learnt and starts at 0; the MLP is linear, ReLU, linear. LayerNorm keeps the sums of hubs in bounds; the
    paper's batch normalisation has running statistics, which are not exchanged.
    """

    operator = "sum"

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 2,
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used."""

        def conv(layer: int, width: int, out: int) -> GINConv:
            mlp = nn.Sequential(nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out), nn.LayerNorm(out))
            return GINConv(mlp, train_eps=True)

        super().__init__(features, classes, dropout, hidden, layers, fanouts, conv)
