"""GCN: sums over neighbours, normalised by both degrees."""

from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.transform import transform
from storage.sparse_matrix import Features, SparseMatrix


class GCN(Coupled):
    """Graph Convolutional Network (Kipf and Welling, 2017): H' = D^-1/2 (A + I) D^-1/2 H W + b."""

    operator = "symmetric"

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
        super().__init__(
            features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: GCNConv(f, h, normalize=False)
        )

    def convolve(self, conv: GCNConv, operator: SparseMatrix, x: Features) -> Tensor:
        return operator @ transform(x, conv.lin.weight) + conv.bias

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("lin.weight")]
