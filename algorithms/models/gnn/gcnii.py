"""GCNII: a deep GCN whose layers keep a share of the input and stay near the identity."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.message_layers import GCN2Conv
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.options.types import AboveZero, Share


class GCNII(Coupled):
    """GCNII (Chen et al., ICML 2020, eq. 5): with H_0 = ReLU(X W_0 + b_0) and P = D^-1/2 (A + I) D^-1/2,

    H_l = ReLU(((1 - alpha) P H_{l-1} + alpha H_0) ((1 - beta_l) I + beta_l W_l)), beta_l = log(theta / l + 1).

    The paper ends in a linear layer, as `head: linear` does. GCNII's layer keeps the width, so that the
    classifier of `head: conv` is GCN's: P H_L W + b. Where edges have weights, they are the entries of A.
    """

    operator = "symmetric"
    traced = True
    first = ("lift.weight",)
    weighs_edges = True
    in_batches = True
    lifted = True

    def __init__(self, *shape: Any, alpha: Share = 0.1, theta: AboveZero = 0.5, **options: Any) -> None:
        """Takes the arguments of `Coupled`, and two more.

        Args:
            alpha: Share of the first layer's input in every layer.
            theta: Strength of a layer's weights, which falls with its depth.
        """
        self.alpha, self.theta = alpha, theta
        super().__init__(*shape, **options)

    def layer(self, number: int, width: int, out: int, last: bool) -> GCN2Conv:
        return GCN2Conv(out, self.alpha, self.theta, number + 1)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        assert self.lift is not None
        x = initial = F.relu(transform(x_NF, self.lift.weight, self.lift.bias))
        layers: Iterable[tuple[Any, SparseMatrix]] = zip(self.convs, operators)
        for conv, operator in layers:
            mixed = torch.lerp(operator @ self.drop(x), initial[: len(operator)], conv.alpha)
            x = F.relu(torch.addmm(mixed, mixed, conv.weight1, beta=1 - conv.beta, alpha=conv.beta))
        return x
