"""Parameters sent as products of thin matrices: of every matrix its largest singular values.

Axes: a matrix is `[A, B]`, its truncation has rank R.
"""

import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.protocol import Tree


def truncated(matrix: Tensor, energy: float) -> Tensor:
    """What is sent of a matrix: factors, or itself where these take as much.

    The rank is the least whose squared singular values hold a share of the sum of all: at least 1 for a matrix that is
    not zero, 0 for one that is. What is no matrix, or not finite, stays as it is.

    Args:
        matrix: float32, of any number of axes.
        energy: The share, in (0, 1].

    Returns:
        Factors `[R, A + B + 1]`, a row being a left singular vector, the right one, and their singular value; or a
        copy of the matrix. float32 on its device.
    """
    if matrix.dim() == 2 and bool(matrix.isfinite().all()):
        # On the processor and in float64: squares of small numbers do not vanish, and no device rounds otherwise.
        left, s, right = torch.linalg.svd(matrix.cpu().double(), full_matrices=False)
        held = s.square().cumsum(0)
        rank = int((held < energy * held[-1]).sum()) + 1 if s[0] > 0 else 0
        if rank * (sum(matrix.shape) + 1) < matrix.numel():
            parts = left[:, :rank].t(), right[:rank], s[:rank, None]
            return torch.cat(parts, dim=1).float().to(matrix.device)
    return matrix.clone(memory_format=torch.contiguous_format)


def restored(part: Tensor, shape: torch.Size) -> Tensor:
    """A matrix of a shape from what `truncated` gave, the same to the bit wherever it is computed, float32."""
    if part.shape == shape:
        return part
    rows, columns = shape
    left, right, s = part.cpu().double().split([rows, columns, 1], dim=1)
    # What libraries round otherwise in float64 does not reach the float32.
    return (left.t() @ (s * right)).float().to(part.device)


def compressed(model: FlatModel, change: Tensor, energy: float) -> Tree:
    """A change of a model's parameters, `[P]`, as it is sent: `change.<k>` is what goes of the k-th parameter."""
    return {f"change.{k}": truncated(part, energy) for k, part in enumerate(model.parts(change))}


def expanded(model: FlatModel, sent: Tree) -> Tensor:
    """The change of the parameters, `[P]`, from what `compressed` gave; other entries are not read."""
    change = torch.empty_like(model.w.detach())
    for k, part in enumerate(model.parts(change)):
        part.copy_(restored(sent[f"change.{k}"], part.shape))
    return change
