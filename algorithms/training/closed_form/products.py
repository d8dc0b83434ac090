"""Products with features and with what nodes hear, into memory that is there.

Axes: n nodes that hear, m nodes that are heard, F inputs, H outputs.
"""

import torch
from torch import Tensor

from storage.sparse_matrix import Features, SparseMatrix


def product(x: Features, weight: Tensor, out: Tensor) -> Tensor:
    """x W', `[m, H]`."""
    return torch.addmm(out, x.csr if isinstance(x, SparseMatrix) else x, weight.t(), beta=0, out=out)


def heard(operator: SparseMatrix, said: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """What nodes hear of what others say, or that added to `out`."""
    return torch.addmm(out, operator.csr, said, beta=float(add), out=out)


def told(operator: SparseMatrix, gradient: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """The gradient of what nodes say from that of what is heard, or that added to `out`."""
    return torch.addmm(out, operator.transposed, gradient, beta=float(add), out=out)


def weight_gradient(weight: Tensor, x: Features, gradient: Tensor) -> None:
    """Writes the gradient G' x of a weight whose product x W' has the gradient G."""
    assert weight.grad is not None
    if isinstance(x, SparseMatrix):
        into = weight.grad.t()
        torch.addmm(into, x.transposed, gradient, beta=0, out=into)
    else:
        torch.mm(gradient.t(), x, out=weight.grad)
