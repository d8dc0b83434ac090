"""SIGN: every hop through a linear layer of its own, then a classifier on their concatenation.

Axes: N nodes, K hops counting hop 0 (the features), F features, H hidden width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from shoal.algorithms.models.layers.dropout import drop, transform
from shoal.algorithms.models.layers.head import GAIN, Head, Output, undrawn
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features


class SIGN(nn.Module):
    """Scalable Inception Graph Neural Networks (Frasca et al., 2020), with the powers of one operator P:

    Z = PReLU([X W_0 + b_0 ‖ P X W_1 + b_1 ‖ … ‖ P^K X W_K + b_K]), logits = dropout(Z) V + c.

    P is D^-1/2 (A + I) D^-1/2 with `propagation.r: 0.5`, the paper's simple operators. Triangles and PageRank, which
    the paper also knows, are no hops here. With one layer above the hops' own, as in the paper, the embedding is Z, of
    width H times the hops; with more they are an MLP of width H, whose last hidden activation it is.
    """

    traced = True

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, *, hidden: int = 64, layers: int = 1
    ) -> None:
        """Takes the arguments of `FixedHops`, and two more; no hops make it an MLP.

        Args:
            features, classes, hops, dropout: As for `FixedHops`.
            hidden: Width H of what every hop becomes, and of the layers above, but the last.
            layers: Number of linear layers above those of the hops.
        """
        super().__init__()
        self.inputs = tuple(range(hops + 1))
        self.dropout = dropout
        self.head = Head(len(self.inputs) * hidden, hidden, classes, layers, dropout, activation="prelu")
        self.of_hops = nn.ModuleList(undrawn(features, hidden) for _ in self.inputs)
        self.prelu = nn.PReLU()
        self._reset_hops()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator, those of hops as the layers of a `Head`."""
        self.head.reset_parameters()
        self._reset_hops()

    def _reset_hops(self) -> None:
        for linear in self.of_hops:
            nn.init.xavier_uniform_(linear.get_parameter("weight"), gain=GAIN)
            nn.init.zeros_(linear.get_parameter("bias"))
        self.prelu.reset_parameters()

    def first_weights(self) -> list[nn.Parameter]:
        return [linear.get_parameter("weight") for linear in self.of_hops]

    def forward(self, hops: Sequence[Features]) -> Output:
        """Computes the output for rows of all hops, hop 0 first: `[N, F]`, float32 or float16, dense or sparse."""
        layers: Any = zip(self.of_hops, hops, strict=True)
        z = self.prelu(
            torch.cat([transform(self._rows(hop), linear.weight, linear.bias) for linear, hop in layers], dim=1)
        )
        one_above = len(self.head.linears) == 1
        drops = not one_above or (self.head.drops_embedding and not self.head.pooled)
        out = self.head(drop(z, self.dropout, self.training) if drops else z)
        return Output(out.logits_NC, z) if one_above else out

    def _rows(self, hop: Features) -> Features:
        return hop.float() if isinstance(hop, FeatureMatrix) else hop.to(self.head.dtype)
