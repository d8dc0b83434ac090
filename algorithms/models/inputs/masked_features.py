"""Features of an altered graph: some columns are zero, and rows are smoothed over other edges. Never written out."""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features, SparseMatrix


class AlteredFeatures(FeatureMatrix):
    """P^k X diag(m), `[N, F]`: its product with a weight W is P^k (X (diag(m) W)), so that X is not copied."""

    def __init__(self, x_NF: Features, kept_F: Tensor, smoothing: SparseMatrix | None = None, hops: int = 0) -> None:
        """Takes X and m, float32; P is `smoothing`, `[N, N]`, and k `hops`."""
        self._x, self._kept_F = x_NF, kept_F
        self._smoothing, self._hops = smoothing, hops

    @property
    def shape(self) -> torch.Size:
        return self._x.shape

    def __matmul__(self, weight_FH: Tensor) -> Tensor:
        return self._smoothed(self._x @ (self._kept_F[:, None] * weight_FH))

    def float(self) -> "AlteredFeatures":
        return self

    def to_dense(self) -> Tensor:
        x_NF = self._x if isinstance(self._x, Tensor) else self._x.to_dense()
        return self._smoothed(x_NF * self._kept_F)

    def _smoothed(self, y: Tensor, done: int = 0) -> Tensor:
        for _ in range(done, self._hops):
            assert self._smoothing is not None
            y = self._smoothing @ y
        return y

    def further(self, other: "AlteredFeatures", product_NH: Tensor) -> Tensor:
        """The product with a weight from that of a lower hop of the same view."""
        return self._smoothed(product_NH, other._hops)


def products(hops: Sequence[Features], weight_FH: Tensor) -> list[Tensor]:
    """The product of each hop with a weight, `[N, H]`; altered hops of one view, ascending, go on from each other."""
    found: list[Tensor] = []
    before: Features | None = None
    for hop in hops:
        if isinstance(hop, AlteredFeatures) and isinstance(before, AlteredFeatures):
            found.append(hop.further(before, found[-1]))
        else:
            found.append(hop @ weight_FH)
        before = hop
    return found
