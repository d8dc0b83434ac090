"""Features that are smoothed after their product with a weight, some columns of them zero. Never written out."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import operator_over
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features, SparseMatrix, StoredFeatures
from shoal.storage.shards.view import View

# All products with a weight are in memory at once, and not a block of rows at a time.
MOST_NODES = 65_536
# Entries of a dense matrix that are multiplied in the time of a sparse one.
DENSE_ENTRIES = 8
# Products are smoothed instead of stored hops if these need so many times as many multiplications, at least.
GAIN = 2


class AlteredFeatures(FeatureMatrix):
    """P^k X diag(m), `[N, F]`: its product with a weight W is P^k (X (diag(m) W)), so that X is not copied."""

    def __init__(
        self, x_NF: Features, kept_F: Tensor | None, smoothing: SparseMatrix | None = None, hops: int = 0
    ) -> None:
        """Takes X and m, float32, None: ones; P is `smoothing`, `[N, N]`, and k `hops`."""
        self._x, self._kept_F = x_NF, kept_F
        self._smoothing, self._hops = smoothing, hops

    @property
    def shape(self) -> torch.Size:
        return self._x.shape

    @property
    def masked(self) -> tuple[SparseMatrix, Tensor] | None:
        """X and m, where X is sparse and nothing is smoothed."""
        if self._hops or self._kept_F is None or type(self._x) is not SparseMatrix:
            return None
        return self._x, self._kept_F

    def __matmul__(self, weight_FH: Tensor) -> Tensor:
        return self._smooth(self._x @ (weight_FH if self._kept_F is None else self._kept_F[:, None] * weight_FH))

    def to_dense(self) -> Tensor:
        x_NF = self._x.to_dense()
        return self._smooth(x_NF if self._kept_F is None else x_NF * self._kept_F)

    def _smooth(self, y: Tensor, done: int = 0) -> Tensor:
        for _ in range(done, self._hops):
            assert self._smoothing is not None
            y = self._smoothing @ y
        return y

    def further(self, other: "AlteredFeatures", product_NH: Tensor) -> Tensor:
        """Computes the product with a weight from that of a lower hop of the same view."""
        return self._smooth(product_NH, other._hops)


def products(hops: Sequence[Features], weight_FH: Tensor) -> list[Tensor]:
    """Multiplies each hop by a weight, `[N, H]`; altered hops of one view, ascending, go on from each other."""
    results: list[Tensor] = []
    before: Features | None = None
    for hop in hops:
        if isinstance(hop, AlteredFeatures) and isinstance(before, AlteredFeatures):
            results.append(hop.further(before, results[-1]))
        else:
            results.append(hop @ weight_FH)
        before = hop
    return results


class SmoothedHops(list[Features]):
    """Hops P^k X of all nodes of a client, of the same X and P, for several k."""

    def __init__(self, x_NF: StoredFeatures, smoothing: SparseMatrix, powers: Sequence[int]) -> None:
        """Takes X, float32, P, and k of every hop."""
        super().__init__(AlteredFeatures(x_NF, None, smoothing, k) for k in powers)
        self.factors, self.powers = (x_NF, smoothing), tuple(powers)


def smoothing_pays(data: View, hops: Sequence[int], rows: int) -> bool:
    """Whether `smoothed_hops` take less time than so many rows of the stored hops, which smoothing must have made."""
    options = data.propagation
    if options is None or options.dtype != "float32" or options.rows != "all" or not any(hops):
        return False
    if options.boundaries or options.relations:
        return False
    if data.device.type != "cpu" or data.nodes > MOST_NODES or data.edge_weight is not None:
        return False
    x = data.hop(0)
    # Hops of dense features are dense, and need not be there to be counted.
    stored = (
        sum(_multiplications(x if isinstance(x, Tensor) else data.hop(k)) for k in hops) * rows / max(data.nodes, 1)
    )
    return stored >= GAIN * (_multiplications(x) + max(hops) * (data.entries + data.nodes))


def smoothed_hops(data: View, hops: Sequence[int]) -> SmoothedHops:
    """Makes the hops of all nodes of a client whose products with a weight W are smoothed, hop to hop, P^k (X W).

    Hops grow dense, and X is not: the products of the stored ones with W take up to thirty times as long. The results
    are the same to rounding.
    """
    assert data.propagation is not None
    r = data.propagation.r
    smoothing: SparseMatrix = data.cache(("smoothing", r), lambda: smoothing_over(*data.csr, r))
    return SmoothedHops(data.hop(0).float(), smoothing, hops)


def _multiplications(x: StoredFeatures) -> float:
    """Counts the multiplications, a column, of its product with a weight, in units of a sparse matrix's."""
    return x.numel() / DENSE_ENTRIES if isinstance(x, Tensor) else len(x.parts()[2])


def smoothing_over(indptr: np.ndarray, indices: np.ndarray, r: float) -> SparseMatrix:
    """Builds D^(r-1) (A + I) D^(-r) of a CSR A, D being degrees with loop, and its transpose (FedGTA, eq. 1)."""
    nodes, degree_N = len(indptr) - 1, np.diff(indptr) + 1.0
    starts, columns, _ = operator_over("attention", indptr, indices).parts()
    row_E, column_E = np.repeat(np.arange(nodes), degree_N.astype(np.int64)), columns.numpy()
    values_E = degree_N[row_E] ** (r - 1) * degree_N[column_E] ** -r
    back_E = values_E if r == 0.5 else degree_N[column_E] ** (r - 1) * degree_N[row_E] ** -r
    matrix, transposed = (
        SparseMatrix.of(starts, columns, values.astype(np.float32), nodes).csr for values in (values_E, back_E)
    )
    return SparseMatrix(matrix, matrix if r == 0.5 else transposed)
