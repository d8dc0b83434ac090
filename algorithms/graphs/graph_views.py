"""Views of a client's graph for augmentation: edges removed in pairs, features masked by column."""

import numba
import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import ClientModel
from shoal.algorithms.models.inputs.masked_features import AlteredFeatures, smoothing_over
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood, operator_over
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import Features


class GraphViews:
    """Draws what one of a client's models reads of altered copies of the client's graph; rows stay where they are.

    A coupled model passes messages along the edges that are left, by degrees that are left. A decoupled one reads hops
    that are smoothed over these; they are not written out, but smoothed after the product with the first weight.
    """

    def __init__(self, model: ClientModel, rng: torch.Generator) -> None:
        """Draws nothing yet; a `ShoalError` if the model reads hops whose graph the client does not have whole."""
        self._model, self._data, self._rng = model, model.data, rng
        kernel = model.data.propagation
        # Its arrays are looked up once, not in every draw.
        self._x_NF: Features = model.data.whole(0)
        self._reads_hops = model.coupled is None and any(model.flat.inputs)
        if self._reads_hops and kernel is not None and kernel.rows != "all":
            raise ShoalError(
                "propagation.rows",
                f"{kernel.rows} leaves a client no graph to smooth an altered copy of its features "
                "over; take rows: all, or switch off what reads such copies",
            )
        if self._reads_hops and kernel is not None and kernel.boundaries:
            raise ShoalError(
                "data.cross_edges",
                "hops: a client has no edges of others to smooth an altered copy of its features over; take drop, or "
                "switch off what reads such copies",
            )

    def draw(self, edges: float, features: float) -> Inputs:
        """Draws a view without a share of the undirected edges, and with a share of the columns masked, both in [0, 1).

        Each is missing with that probability; what is left of the features is not scaled up.
        """
        data, coupled = self._data, self._model.coupled
        kept_F = (self._rand(data.features) >= features).float()
        indptr, indices = self._drop_edges(edges)
        if coupled is not None:
            matrix = operator_over(coupled.operator, indptr, indices).to(data.device)
            return Neighbourhood(AlteredFeatures(self._x_NF, kept_F), (matrix,) * coupled.depth)
        smoothing = None
        if self._reads_hops:
            assert data.propagation is not None
            smoothing = smoothing_over(indptr, indices, data.propagation.r).to(data.device)
        return [AlteredFeatures(self._x_NF, kept_F, smoothing, k) for k in self._model.flat.inputs]

    def _rand(self, count: int) -> Tensor:
        return torch.rand(count, generator=self._rng, device=self._data.device)

    def _drop_edges(self, share: float) -> tuple[np.ndarray, np.ndarray]:
        """Drops a share of the edges; returns row starts and columns of the rest of the adjacency."""
        indptr, indices = self._data.csr
        kept_M = (self._rand(len(indices) // 2) >= share).cpu().numpy()
        pair_E = self._data.cache("pairs", lambda: torch.from_numpy(pairs(indptr, indices))).numpy()
        return _without(indptr, indices, pair_E, kept_M)


@numba.njit(cache=True, nogil=True)
def _without(
    indptr: np.ndarray, indices: np.ndarray, pair_E: np.ndarray, kept_M: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns row starts and columns of an adjacency without the edges that are not kept."""
    starts, columns, count = np.zeros(len(indptr), np.int32), np.empty(len(indices), indices.dtype), 0
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1]):
            columns[count] = indices[entry]
            count += kept_M[pair_E[entry]]
        starts[row + 1] = count
    return starts, columns[:count]


def pairs(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Numbers undirected edges: for each entry of a symmetric CSR without loops, that of its edge, int32 `[E]`.

    The entries (i, j) and (j, i) have one number, by which values of edges are looked up.
    """
    row = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    upper = indices > row
    number = np.empty(len(indices), dtype=np.int32)
    number[upper] = np.arange(upper.sum())
    # Entries of the upper triangle by column and row are those of the lower one by row and column.
    number[~upper] = number[upper][np.lexsort((row[upper], indices[upper]))]
    return number
