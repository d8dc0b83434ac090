"""GIN: sums over neighbours, then an MLP."""

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.transform import transform
from storage.sparse_matrix import Features, SparseMatrix


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
        super().__init__(features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: gin_layer(f, h))

    def convolve(self, conv: GINConv, operator: SparseMatrix, x: Features) -> Tensor:
        return gin_output(conv, operator, x)

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("nn.0.weight")]


def gin_layer(width: int, hidden: int) -> GINConv:
    """A layer that makes rows of `hidden` numbers of rows of `width`."""
    mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.LayerNorm(hidden))
    return GINConv(mlp, train_eps=True)


def gin_output(conv: GINConv, operator: SparseMatrix, x: Features) -> Tensor:
    """What such a layer gives, `[n_l, H]`, the operator being that of sums."""
    first, *others = conv.nn
    said = transform(x, first.weight)
    out = operator @ said + (1 + conv.eps) * said[: len(operator)] + first.bias
    for module in others:
        out = module(out)
    return out
