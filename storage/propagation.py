"""Hops of a graph: X, ÃX, Ã²X, … computed once, before any training."""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from storage.errors import ShoalError


@dataclass(frozen=True)
class Kernel:
    """Which hops are kept, and how they are computed (`propagation` in a config).

    Attributes:
        hops: Number of hops K beyond the features themselves, at least 0.
        r: Exponent of the normalisation, in [0, 1]: 0.5 is symmetric, 0 averages over a node and its
            neighbours, 1 divides what a node sends by its degree.
        dtype: How a hop is stored, `float32` or `float16`; sums are always float32.
    """

    hops: int
    r: float = 0.5
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.hops < 0:
            raise ShoalError(f"propagation.hops: must be at least 0, found {self.hops}")
        if not 0 <= self.r <= 1:
            raise ShoalError(f"propagation.r: must lie between 0 and 1, found {self.r}")
        if self.dtype not in ("float32", "float16"):
            raise ShoalError(f"propagation.dtype: must be float32 or float16, found {self.dtype!r}")

    @property
    def name(self) -> str:
        """Folder of these hops inside a store, such as `r0.5-k3-float32`."""
        return f"r{float(self.r)}-k{self.hops}-{self.dtype}"


def propagate(
    indptr: np.ndarray, indices: np.ndarray, x: np.ndarray, r: float, out: np.ndarray, column_block: int = 256
) -> None:
    """One hop: out = D^(r-1) (A + I) D^(-r) x, D being the degrees with self loop (FedGTA, equation 1).

    Columns are independent, so working in blocks of them changes no bit of the result and bounds the memory:
    beside the arrays given, three float32 blocks `[N, column_block]` and four bytes an entry of A.

    Args:
        indptr: Row pointer of A, int32 or int64 `[N + 1]`; fewer than 2^31 entries.
        indices: Neighbours, int32 `[E]`; A is symmetric, has no self loops, and its entries are ones.
        x: Features, float32 or float16 `[N, F]`; a read-only memory map will do.
        r: Exponent of the normalisation, in [0, 1].
        out: Written, float32 or float16 `[N, F]`; sums are float32 and rounded once.
        column_block: Columns of x worked on at a time.

    Raises:
        ShoalError: A value of the result is too large for a float16 `out`.
    """
    assert x.shape == out.shape, (x.shape, out.shape)
    assert len(indptr) == len(x) + 1, (len(indptr), len(x))
    assert int(indptr[-1]) == len(indices) < 2**31, (int(indptr[-1]), len(indices))
    adjacency = _adjacency(indptr, indices)
    degree = torch.from_numpy(np.diff(indptr) + 1.0)[:, None]
    sent, received = degree.pow(-r).float(), degree.pow(r - 1).float()
    source, target = _shared(x), torch.from_numpy(out)
    limit = torch.finfo(target.dtype).max
    for start in range(0, x.shape[1], column_block):
        columns = slice(start, start + column_block)
        scaled = torch.empty(source[:, columns].shape)
        scaled.copy_(source[:, columns]).mul_(sent)
        # A third faster than `adjacency @ scaled` on one core, and needs no MKL.
        result = torch.sparse.mm(adjacency, scaled, "sum")
        result.add_(scaled).mul_(received)
        if target.dtype == torch.float16 and len(result):
            low, high = result.aminmax()
            if (peak := float(max(-low, high))) > limit:
                raise ShoalError(
                    f"propagation.dtype: float16 ends at {limit:g}, but a hop reaches {peak:g}; use float32"
                )
        target[:, columns] = result


def hops(indptr: np.ndarray, indices: np.ndarray, x: np.ndarray, kernel: Kernel) -> list[np.ndarray]:
    """Hop 1 to K of a graph that fits in memory, each `[N, F]` of `kernel.dtype`; see `propagate`.

    A hop is computed from the one before as stored, so hops in memory and on disk are the same.
    """
    result: list[np.ndarray] = []
    for _ in range(kernel.hops):
        out = np.empty(x.shape, dtype=kernel.dtype)
        propagate(indptr, indices, result[-1] if result else x, kernel.r, out)
        result.append(out)
    return result


def _adjacency(indptr: np.ndarray, indices: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            _shared(indptr.astype(np.int32, copy=False)),
            _shared(indices.astype(np.int32, copy=False)),
            torch.ones(len(indices)),
            size=(len(indptr) - 1, len(indptr) - 1),
            check_invariants=False,
        )


def _shared(array: np.ndarray) -> Tensor:
    """A tensor on the memory of an array that is only read, which torch would warn about."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
