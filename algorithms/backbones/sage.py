"""GraphSAGE: a node's own features and the mean of its neighbours'."""

from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from algorithms.backbones.coupled import Coupled, first_rows
from algorithms.backbones.transform import transform
from storage.sparse_matrix import Features, SparseMatrix


class GraphSAGE(Coupled):
    """GraphSAGE with the mean aggregator (Hamilton et al., 2017): h'_i = W_1 mean_{j in N(i)} h_j + W_2 h_i + b.

    A node without neighbours has the mean 0.
    """

    operator = "mean"

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
        super().__init__(features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: SAGEConv(f, h))

    def convolve(self, conv: SAGEConv, operator: SparseMatrix, x: Features) -> Tensor:
        heard = operator @ transform(x, conv.lin_l.weight)
        return heard + transform(first_rows(x, len(operator)), conv.lin_r.weight, conv.lin_l.bias)

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("lin_l.weight"), self.convs[0].get_parameter("lin_r.weight")]
