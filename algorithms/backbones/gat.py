"""GAT: sums over neighbours and the node itself, weighted by attention."""

from torch_geometric.nn import GATConv

from algorithms.backbones.coupled import Coupled
from storage.errors import ShoalError


class GAT(Coupled):
    """Graph Attention Network (Velickovic et al., 2018) with self loops and LeakyReLU slope 0.2.

    All layers but the last concatenate `heads` heads of width hidden / heads; the last one has a single head. An edge
    is a row of every head's messages, so a step takes memory of E x hidden floats, unlike the other backbones.
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
