"""GAT: sums over neighbours and the node itself, weighted by attention."""

from torch import Tensor, nn
from torch_geometric.nn import GATConv

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.edge_attention import attend
from algorithms.backbones.transform import transform
from storage.errors import ShoalError
from storage.sparse_matrix import Features, SparseMatrix


class GAT(Coupled):
    """Graph Attention Network (Velickovic et al., 2018) with self loops and LeakyReLU slope 0.2.

    All layers but the last concatenate `heads` heads of width hidden / heads; the last one has a single head. A step
    keeps a weight of every head for every edge; on a GPU also its message, E x hidden floats.
    """

    operator = "attention"

    def __init__(
        self,
        features: int,
        classes: int,
        hops: int,
        dropout: float,
        *,
        hidden: int = 64,
        layers: int = 2,
        heads: int = 8,
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used.

        Raises:
            ShoalError: `model.hidden` is no multiple of `model.heads`.
        """
        if heads < 1 or hidden % heads:
            raise ShoalError(f"model.heads: must divide model.hidden, found {heads} and {hidden}")

        def conv(layer: int, width: int, out: int) -> GATConv:
            of_layer = heads if layer < layers - 1 else 1
            return GATConv(width, out // of_layer, of_layer, add_self_loops=False)

        super().__init__(features, classes, dropout, hidden, layers, fanouts, conv)

    def convolve(self, conv: GATConv, operator: SparseMatrix, x: Features) -> Tensor:
        said_MHD = transform(x, conv.lin.weight).view(-1, conv.heads, conv.out_channels)
        heard_NH = (said_MHD[: len(operator)] * conv.att_dst).sum(-1)
        weight_MH = (said_MHD * conv.att_src).sum(-1)
        return attend(operator, heard_NH, weight_MH, said_MHD, conv.negative_slope).flatten(1) + conv.bias

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("lin.weight")]
