"""DisenGCN: parts of an embedding, one a latent factor, among which neighbours are divided."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.dropout import transform
from shoal.algorithms.models.layers.routing import divide_neighbours
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.options.types import Positive

# Shorter parts have no direction.
EPS = 1e-12


class DisenGCN(Coupled):
    """DisenGCN (Ma et al., ICML 2019, alg. 1), as FedIIH has it: one linear layer, then layers without parameters.

    H_0 = LeakyReLU(W X + b) has `factors` parts of width D = hidden / factors. A layer scales the parts z_j^k of each
    node to length one and, beginning with u_i = z_i, `routing` times takes

        p_j = softmax_k(<z_j^k, u_i^k>),  u_i^k <- (z_i^k + sum_{j in N(i)} p_j^k z_j^k) / |...|,

    then LeakyReLU with slope 0.01 and, but for the last layer, dropout. Original layers have a W each, and ReLU.
    """

    operator = "sum"
    weighs_entries = True
    first = ("lift.weight",)
    lifted = True

    def __init__(
        self,
        *shape: Any,
        hidden: int = 64,
        layers: int = 2,
        factors: Positive = 2,
        routing: Positive = 6,
        fanouts: list[int] | None = None,
    ) -> None:
        """Takes the arguments of `GAT`, and others instead of heads.

        Args:
            factors: Latent factors, which share the width of a layer.
            routing: Times that a layer divides neighbours among them.
        """
        if factors < 1 or hidden % factors:
            raise ShoalError("model.factors", f"must divide model.hidden, found {factors} and {hidden}")
        self.factors, self.routing = factors, routing
        super().__init__(*shape, hidden=hidden, layers=layers, fanouts=fanouts)

    def layer(self, number: int, width: int, out: int, last: bool) -> "Routed":
        return Routed()

    def activate(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x)

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        assert self.lift is not None
        x = self.activate(transform(x_NF, self.lift.weight, self.lift.bias))
        for operator in operators:
            x = self.disentangle(operator, self.drop(x))
        return x

    def disentangle(self, operator: SparseMatrix, x_MH: Tensor) -> Tensor:
        """Computes the output of a layer, `[N, H]`, for the first N of M nodes."""
        z_MKD = _unit(x_MH.unflatten(1, (self.factors, -1)))
        own_NKD = u_NKD = z_MKD[: len(operator)]
        for _ in range(self.routing):
            u_NKD = _unit(own_NKD + divide_neighbours(operator, z_MKD, u_NKD))
        return self.activate(u_NKD.flatten(1))


class Routed(nn.Module):
    """The parameters of a layer: none."""

    def reset_parameters(self) -> None:
        pass


def _unit(z: Tensor) -> Tensor:
    """Scales parts to length one; of a part that is zero the gradient is zero, too."""
    length = z.norm(dim=-1, keepdim=True)
    return z / length.where(length > EPS, torch.inf)
