"""The graph that clients' condensed graphs make together, no edge running between two of them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.inputs.masked_features import AlteredFeatures
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood, operator_over
from shoal.storage.graph.sparse_matrix import SparseMatrix

# Row starts and columns, int32, and weights, float32, of a symmetric matrix without loops.
Csr = tuple[np.ndarray, np.ndarray, np.ndarray]


def edges_of(weight_MM: Tensor) -> Tensor:
    """Lists the weights above the diagonal row by row, `[M (M - 1) / 2]`."""
    rows, columns = torch.triu_indices(len(weight_MM), len(weight_MM), 1, device=weight_MM.device)
    return weight_MM[rows, columns]


def joined(sizes: Sequence[int], edges_E: Tensor) -> Csr:
    """Builds the matrix of all graphs, one behind another, from their sizes M and the results of `edges_of`."""
    count = sum(sizes)
    degree_N = np.repeat(np.array(sizes, dtype=np.int64) - 1, sizes)
    starts = np.concatenate([[0], degree_N.cumsum()]).astype(np.int32)
    columns, weights = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.float32)]
    first = 0
    for size, edges in zip(sizes, edges_E.cpu().split([size * (size - 1) // 2 for size in sizes])):
        weight_MM = np.zeros((size, size), dtype=np.float32)
        weight_MM[np.triu_indices(size, 1)] = edges.numpy()
        others_MM = ~np.eye(size, dtype=bool)
        weights.append((weight_MM + weight_MM.T)[others_MM])
        columns.append((first + others_MM.nonzero()[1]).astype(np.int32))
        first += size
    assert first == count, (first, count)
    return starts, np.concatenate(columns), np.concatenate(weights)


def smoothing_of(graph: Csr, device: torch.device) -> SparseMatrix:
    """Builds D^-1/2 (A + I) D^-1/2."""
    starts, columns, weights = graph
    return operator_over("symmetric", starts, columns, weight=weights).to(device)


def inputs_of(model: FlatModel, x_NF: Tensor, graph: Csr) -> Inputs:
    """Makes what a model that reads weights of edges, or rows of hops, reads of all nodes."""
    if (coupled := model.coupled) is not None:
        starts, columns, weights = graph
        matrix = operator_over(coupled.operator, starts, columns, weight=weights).to(x_NF.device)
        return Neighbourhood(x_NF, (matrix,) * coupled.depth)
    smoothing = smoothing_of(graph, x_NF.device)
    return [AlteredFeatures(x_NF, None, smoothing, k) if k else x_NF for k in model.inputs]
