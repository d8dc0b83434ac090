"""The hops of some nodes as GAMLP reads them: scores of all hops, then the MLP of their weighted sum."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.backbones.altered import products
from algorithms.backbones.head import Head
from algorithms.backbones.output import Output
from storage.sparse_matrix import Features, SparseMatrix


class WeightedHops(ABC):
    """Rows of all hops, hop 0 first.

    Attributes:
        shape: Rows N, hops K, features F.
    """

    shape: tuple[int, int, int]

    @abstractmethod
    def scores_NK(self, a_F: Tensor) -> Tensor:
        """Product of every hop with a vector."""

    @abstractmethod
    def first_N(self, a_F: Tensor) -> Tensor:
        """Product of hop 0 with a vector."""

    @abstractmethod
    def all_N(self, a_KF: Tensor) -> Tensor:
        """Product of all hops beside each other with a vector."""

    @abstractmethod
    def output(self, weights_NK: Tensor, head: Head) -> Output:
        """The head on the weighted sum of the hops."""


def weighted_hops(hops: Sequence[Features], head: Head) -> WeightedHops:
    """The hops in the form that a head needs: a single layer gives its input as embedding, which is dense."""
    if len(head.linears) > 1 and any(isinstance(hop, SparseMatrix) for hop in hops):
        return _Mixed(hops)
    return _Dense([hop.to_dense() if isinstance(hop, SparseMatrix) else hop for hop in hops], head)


class _Dense(WeightedHops):
    def __init__(self, hops: Sequence[Tensor], head: Head) -> None:
        # The one copy of the inputs; it makes scores and weighted sum one product each instead of one a hop.
        self._hops_NKF = torch.stack(tuple(hops), dim=1).to(head.dtype)
        n, k, f = self._hops_NKF.shape
        self.shape = n, k, f

    def scores_NK(self, a_F: Tensor) -> Tensor:
        return (self._hops_NKF.flatten(0, 1) @ a_F).view(self.shape[:2])

    def first_N(self, a_F: Tensor) -> Tensor:
        return self._hops_NKF[:, 0] @ a_F

    def all_N(self, a_KF: Tensor) -> Tensor:
        return self._hops_NKF.flatten(1) @ a_KF

    def output(self, weights_NK: Tensor, head: Head) -> Output:
        if weights_NK.device.type == "cpu":
            return head(torch.bmm(weights_NK.unsqueeze(1), self._hops_NKF).squeeze(1))
        # There a product for every row costs more than one pass for every hop.
        total_NF = weights_NK[:, :1] * self._hops_NKF[:, 0]
        for k in range(1, self.shape[1]):
            total_NF = torch.addcmul(total_NF, weights_NK[:, k : k + 1], self._hops_NKF[:, k])
        return head(total_NF)


class _Mixed(WeightedHops):
    """Some are sparse: the head's first layer is linear, so it may come before the sum."""

    def __init__(self, hops: Sequence[Features]) -> None:
        self._hops = [hop.float() for hop in hops]
        self.shape = len(hops[0]), len(hops), hops[0].shape[1]

    def scores_NK(self, a_F: Tensor) -> Tensor:
        return torch.cat(products(self._hops, a_F[:, None]), dim=1)

    def first_N(self, a_F: Tensor) -> Tensor:
        return (self._hops[0] @ a_F[:, None])[:, 0]

    def all_N(self, a_KF: Tensor) -> Tensor:
        parts = a_KF.view(self.shape[1], self.shape[2], 1)
        return torch.stack([hop @ a_F1 for hop, a_F1 in zip(self._hops, parts)]).sum(0)[:, 0]

    def output(self, weights_NK: Tensor, head: Head) -> Output:
        first: Any = head.linears[0]
        weighted = list(zip(self._hops, weights_NK.split(1, dim=1)))
        dense = [weight_N1 * hop for hop, weight_N1 in weighted if isinstance(hop, Tensor)]
        sparse = [(hop, weight_N1) for hop, weight_N1 in weighted if isinstance(hop, SparseMatrix)]
        through = products([hop for hop, _ in sparse], first.weight.t())
        parts = [weight_N1 * product_NH for (_, weight_N1), product_NH in zip(sparse, through)]
        if dense:
            parts.append(torch.stack(dense).sum(0) @ first.weight.t())
        return head.after_first(torch.stack(parts).sum(0) + first.bias)
