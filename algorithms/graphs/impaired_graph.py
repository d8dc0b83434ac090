"""A client's graph without some of its nodes, which a generator of neighbours learns to make.

Axes: N nodes of the client, V of them shown and H hidden, L lost edges, F features; T training nodes that are shown.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, kept_rows, operator_over
from shoal.algorithms.models.layers.readout import ROUNDING
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix, require_stored
from shoal.storage.shards.view import View


class Impaired(NamedTuple):
    """The graph of the nodes that are shown, and what they lost; tensors, so that `View.cache` can keep it.

    Attributes:
        indptr, indices: The shown nodes' adjacency as CSR, int32, on the processor.
        operator: `mean` over it, see `shoal.algorithms.models.inputs.neighbourhood.all_nodes`.
        x_VF, x_HF: Features of shown and of hidden nodes, float32; `square_H` are squares of the latter's norms.
        train_T, label_T: Places of training rows among the shown nodes, int64, and their labels, int64.
        hidden_H: Rows of the hidden nodes, int64, ascending.
        missing_V: How many hidden neighbours a shown node has, int64.
        lost_L: Places of these among the hidden nodes, int64, those of the first shown node first.
    """

    indptr: Tensor
    indices: Tensor
    operator: SparseMatrix
    x_VF: Features
    train_T: Tensor
    label_T: Tensor
    hidden_H: Tensor
    x_HF: Features
    square_H: Tensor
    missing_V: Tensor
    lost_L: Tensor

    def around(self, layers: int) -> Neighbourhood:
        """Returns all shown nodes, for a backbone of so many layers."""
        return Neighbourhood(self.x_VF, (self.operator,) * layers)


def impair(data: View, share: float, seed: int) -> Impaired:
    """Hides a share of the nodes, in (0, 1), rounded down, drawn uniformly; kept on the host while there is room."""
    graph: Impaired = data.cache(("impaired", share, seed), lambda: _impair(data, share, seed))
    return graph


def _impair(data: View, share: float, seed: int) -> Impaired:
    indptr, indices = data.csr
    shown_N = np.ones(data.nodes, dtype=bool)
    shown_N[np.random.default_rng(seed).permutation(data.nodes)[: int(share * data.nodes + ROUNDING)]] = False
    # A node has a place among the shown nodes, or among the hidden ones.
    place_N = np.where(shown_N, np.cumsum(shown_N), np.cumsum(~shown_N)) - 1
    row_E = np.repeat(np.arange(data.nodes), np.diff(indptr))
    kept_E, lost_E = (shown_N[row_E] & (shown_N[indices] == stays) for stays in (True, False))
    degree_V, missing_V = (np.bincount(row_E[entries], minlength=data.nodes)[shown_N] for entries in (kept_E, lost_E))
    starts = np.concatenate([[0], np.cumsum(degree_V)]).astype(np.int32)
    columns = place_N[indices[kept_E]].astype(np.int32)

    def there(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(data.device)

    train = data.train.cpu().numpy()
    seen_T = shown_N[train]
    hidden_H = there(np.flatnonzero(~shown_N))
    x_HF = kept_rows(data, 0, hidden_H)
    return Impaired(
        torch.from_numpy(starts),
        torch.from_numpy(columns),
        operator_over("mean", starts, columns).to(data.device),
        kept_rows(data, 0, there(np.flatnonzero(shown_N))),
        there(place_N[train[seen_T]]),
        data.train_label[there(np.flatnonzero(seen_T))],
        hidden_H,
        x_HF,
        _row_squares(x_HF),
        there(missing_V),
        there(place_N[indices[lost_E]]),
    )


def _row_squares(x_HF: Features) -> Tensor:
    """Squares the norm of every row."""
    x_HF = require_stored(x_HF)
    if isinstance(x_HF, Tensor):
        return torch.linalg.vecdot(x_HF, x_HF)
    indptr, _, values = x_HF.parts()
    rows = torch.arange(len(x_HF), device=values.device).repeat_interleave(indptr.diff())
    return values.new_zeros(len(x_HF)).index_add_(0, rows, values.square())
