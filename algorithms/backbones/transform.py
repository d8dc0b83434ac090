"""The first thing that a layer does with features: a product with its weight."""

import torch.nn.functional as F
from torch import Tensor

from storage.sparse_matrix import Features, SparseMatrix


def transform(x: Features, weight_HF: Tensor, bias_H: Tensor | None = None) -> Tensor:
    """x W^T + b, `[N, H]`, for dense rows or sparse ones `[N, F]`.

    For sparse rows the memory of W should run by columns (`FlatModel` sees to it), else it is copied in every step.
    """
    if not isinstance(x, SparseMatrix):
        return F.linear(x, weight_HF, bias_H)
    product_NH = x @ weight_HF.t()
    return product_NH if bias_H is None else product_NH + bias_H
