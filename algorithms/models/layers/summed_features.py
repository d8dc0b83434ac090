"""Hops added up with weights that are not learnt, dense or sparse."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.algorithms.models.inputs.masked_features import products
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features


class SummedFeatures(FeatureMatrix):
    """sum_k w_k X_k, `[N, F]`, some X_k sparse: its product with a weight W is sum_k w_k (X_k W), so no sum is kept.

    It has no arrays of its own.
    """

    def __init__(self, hops: Sequence[Features], weights: Sequence[float]) -> None:
        """Wraps the hops, each `[N, F]`, float32."""
        self._hops, self._weights = hops, weights

    @property
    def shape(self) -> torch.Size:
        return self._hops[0].shape

    def __matmul__(self, weight_FH: Tensor) -> Tensor:
        return _sum(products(self._hops, weight_FH), self._weights)

    def float(self) -> "SummedFeatures":
        return self

    def to_dense(self) -> Tensor:
        dense = [hop.to_dense() if isinstance(hop, FeatureMatrix) else hop for hop in self._hops]
        return _sum(dense, self._weights)


def summed(hops: Sequence[Features], weights: Sequence[float], dtype: torch.dtype) -> Features:
    """sum_k w_k X_k, `[N, F]`: a tensor of `dtype` where all hops are dense.

    Args:
        hops: X_k, each `[N, F]`, float32 or float16.
        weights: w_k, one a hop.
        dtype: Type to sum in.
    """
    if any(isinstance(hop, FeatureMatrix) for hop in hops):
        return SummedFeatures([hop.float() for hop in hops], weights)
    return _sum([hop.to(dtype) for hop in hops if isinstance(hop, Tensor)], weights)


def _sum(terms: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    first, *others = zip(weights, terms, strict=True)
    total = first[0] * first[1]
    for weight, term in others:
        total = torch.add(total, term, alpha=weight)
    return total
