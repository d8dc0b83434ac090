"""GCN: sums over neighbours, normalised by both degrees."""

from collections.abc import Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, JumpingKnowledge

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.transform import transform
from storage.sparse_matrix import Features, SparseMatrix


class GCN(Coupled):
    """Graph Convolutional Network (Kipf and Welling, 2017): H' = D^-1/2 (A + I) D^-1/2 H W + b.

    With `jumping: max` (Xu et al., ICML 2018, section 4) ReLU follows every layer, the last included, and the
    embedding is the largest of all layers' outputs, entry by entry, before their dropout.
    """

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
        jumping: Literal["none", "max"] = "none",
        fanouts: list[int] | None = None,
    ) -> None:
        """As for `Coupled`; `hops` is not used; `jumping`: `max`, or `none` for the last layer's output alone."""
        super().__init__(features, classes, dropout, hidden, layers, fanouts, lambda _, f, h: GCNConv(f, h))
        self.jump = JumpingKnowledge(jumping) if jumping != "none" else None

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        if self.jump is None:
            return super().embed(x_NF, operators)
        first, *others = zip(self.convs, operators)
        x = F.relu(self.convolve(*first, x_NF))
        outputs = [x]
        for conv, operator in others:
            x = F.relu(self.convolve(conv, operator, self.drop(x)))
            outputs.append(x)
        # With fanouts every layer hears for fewer nodes than the one before.
        return self.jump([x[: len(operators[-1])] for x in outputs])

    def convolve(self, conv: GCNConv, operator: SparseMatrix, x: Features) -> Tensor:
        return operator @ transform(x, conv.lin.weight) + conv.bias

    def first_weights(self) -> list[nn.Parameter]:
        return [self.convs[0].get_parameter("lin.weight")]
