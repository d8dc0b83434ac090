"""GIN: sums over neighbours, then an MLP."""

from typing import Literal

from torch import Tensor, nn
from torch_geometric.nn import GINConv

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.transform import transform
from storage.sparse_matrix import Features, SparseMatrix

Norm = Literal["layer", "none"]


class GIN(Coupled):
    """Graph Isomorphism Network (Xu et al., 2019): h'_i = norm(MLP((1 + e) h_i + sum_{j in N(i)} h_j)).

    e is learnt and starts at 0; the MLP is linear, ReLU, linear. The norm is LayerNorm (`layer`), which keeps the sums
    of hubs in bounds, or `none`, which keeps how much a node sums up: readouts of whole graphs live from that. The
    paper's batch normalisation has running statistics, which are not exchanged.

    Attributes:
        norm: As above.
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
        norm: Norm = "layer",
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used.

        Args:
            features: See there.
            classes: See there.
            hops: Not used.
            dropout: See there.
            hidden: See there.
            layers: See there.
            norm: `layer` or `none`.
            fanouts: See there.

        Raises:
            ShoalError: As there.
        """
        super().__init__(features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: gin_layer(f, h, norm))
        self.norm = norm

    def convolve(self, conv: GINConv, operator: SparseMatrix, x: Features) -> Tensor:
        return gin_output(conv, operator, x)

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("nn.0.weight")]


def gin_layer(width: int, hidden: int, norm: Norm = "layer") -> GINConv:
    """A layer that makes rows of `hidden` numbers of rows of `width`."""
    scaled = [nn.LayerNorm(hidden)] if norm == "layer" else []
    return GINConv(
        nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), *scaled), train_eps=True
    )


def gin_output(conv: GINConv, operator: SparseMatrix, x: Features) -> Tensor:
    """What such a layer gives, `[n_l, H]`, the operator being that of sums."""
    first, *others = conv.nn
    said = transform(x, first.weight)
    out = operator @ said + (1 + conv.eps) * said[: len(operator)] + first.bias
    for module in others:
        out = module(out)
    return out
