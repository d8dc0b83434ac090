"""What a coupled backbone reads: features, and one aggregation matrix a layer."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.inputs.graph_batch import ItemBatch
from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.neighbour_sampling import Drawn, draw_neighbours
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.store.view import View

Operator = Literal["sum", "mean", "symmetric", "attention"]


class Neighbourhood(NamedTuple):
    """The input of a backbone of L layers, of which a classifier that passes messages is the last.

    Attributes:
        x_NF: Features of all nodes that occur, float32, dense or sparse.
        operators: Matrix of every layer, `[n_l, n_{l-1}]` with n_0 = N: row i weighs the senders of node i. The
            first n_l nodes of a layer's input are those of its output.
        rows: Rows of the last layer's output that are asked for, int64; None: all of them.
    """

    x_NF: Features
    operators: tuple[SparseMatrix, ...]
    rows: Tensor | None = None


# Rows of hops for a decoupled backbone, a neighbourhood for a coupled one; nodes of graphs or pairs for one of these.
Inputs = Sequence[Features] | Neighbourhood | ItemBatch


def all_nodes(data: View, operator: Operator, layers: int) -> Neighbourhood:
    """All nodes of a client; the matrix is built once and kept on the host while there is room.

    Args:
        data: The client's graph.
        operator: `sum`: A, of ones or the weights of edges. `mean`: A, its rows divided by their sums. `symmetric`:
            D^-1/2 (A + I) D^-1/2 with self loops in D. `attention`: the pattern of A + I, weighed by the layer.
        layers: Number of layers L.
    """
    return Neighbourhood(data.whole(0), (matrix_of_all(data, operator),) * layers)


def matrix_of_all(data: View, operator: Operator) -> SparseMatrix:
    """The matrix of all nodes of a client; arguments as for `all_nodes`."""
    if operator == "sum":
        return SparseMatrix(data.adjacency, data.adjacency)
    matrix: SparseMatrix = data.cache(("operator", operator), lambda: _operator(data, operator))
    return matrix


def kept_rows(data: View, k: int, items: Tensor) -> Features:
    """The rows of some items in hop k, float32, for many steps."""
    found = data.rows(k, data.rows_of(items))
    # Made now, while it is known that it stays: every step needs it.
    return found.prepared() if isinstance(found, SparseMatrix) else found


def sampled(
    data: View, operator: Operator, fanouts: Sequence[int], rows: Tensor, rng: np.random.Generator
) -> Neighbourhood:
    """Some rows and neighbours drawn for them, layer by layer from the last to the first (GraphSAGE, Alg. 2).

    Where s of d neighbours were drawn, the entries of `sum` and `symmetric` are d/s times as large: the mean over draws
    is the whole graph's matrix, and drawing all neighbours gives the numbers of the whole graph.

    Args:
        data: The client's graph.
        operator: As for `all_nodes`.
        fanouts: Neighbours drawn of a node, for the last layer first; -1 takes all.
        rows: Rows whose output is asked for, int64 `[n]`, each once.
        rng: Where randomness comes from.
    """
    indptr, indices = data.csr
    degree = data.degree.cpu().numpy()
    nodes = rows.cpu().numpy()
    matrices = []
    for fanout in fanouts:
        drawn = draw_neighbours(indptr, indices, nodes, fanout, rng)
        nodes = drawn.nodes
        matrices.append(_matrix(operator, drawn, degree[nodes]).to(data.device))
    return Neighbourhood(data.rows(0, torch.from_numpy(nodes)), tuple(reversed(matrices)))


def standalone(x_NF: Tensor, operator: Operator, layers: int) -> Neighbourhood:
    """Nodes whose neighbours all have the node's own features; `sum` has one neighbour."""
    nodes = np.arange(len(x_NF))
    if operator in ("sum", "mean"):
        matrix = _matrix(operator, Drawn(nodes, np.arange(len(nodes) + 1), nodes), np.full(len(nodes), 2))
    else:
        no_neighbours = Drawn(nodes, np.zeros(len(nodes) + 1, np.int64), np.zeros(0, np.int64))
        matrix = _matrix(operator, no_neighbours, np.ones(len(nodes), np.int64))
    return Neighbourhood(x_NF, (matrix.to(x_NF.device),) * layers)


def _operator(data: View, operator: Operator) -> SparseMatrix:
    return operator_over(operator, *data.csr, weight=data.edge_weight).to(data.device)


def operator_over(
    operator: Operator,
    indptr: np.ndarray,
    indices: np.ndarray,
    symmetric: bool = True,
    weight: np.ndarray | None = None,
) -> SparseMatrix:
    """The matrix of all nodes of a graph without loops; with its transpose, if it is symmetric.

    Where it is not, a node's degree is the number of its senders.

    Args:
        operator: As for `all_nodes`.
        indptr: Row starts, int32 `[N + 1]`.
        indices: Columns, int32 `[E]`.
        symmetric: Every edge has both directions.
        weight: Entries of A, float32 `[E]`, for `sum` and `symmetric`; None: ones.
    """
    nodes, degree = len(indptr) - 1, degrees(indptr, weight)
    matrix = _matrix(operator, Drawn(np.arange(nodes), indptr, indices), degree, weight)
    if not symmetric:
        return matrix
    # It is its own transpose, but that a mean divides by the degree of the receiver.
    transposed = matrix.csr
    if operator == "mean":
        starts, columns, _ = matrix.parts()
        shares = (1 / np.maximum(degree - 1, 1)).astype(np.float32)
        transposed = SparseMatrix.of(starts, columns, shares[indices], nodes).csr
    return SparseMatrix(matrix.csr, transposed)


def _matrix(operator: Operator, drawn: Drawn, degree: np.ndarray, weight: np.ndarray | None = None) -> SparseMatrix:
    """The matrix of a layer; `degree` is with self loop in the client's whole graph, `[m]`.

    With weights of entries, float32 `[E]`, all neighbours are drawn.
    """
    assert weight is None or operator in ("sum", "symmetric"), operator
    indptr, indices = drawn.indptr, drawn.indices
    n, counts = len(indptr) - 1, np.diff(indptr)
    row = np.repeat(np.arange(n), counts)
    scale = ((degree[:n] - 1) / np.maximum(counts, 1))[row] if weight is None else weight.astype(np.float64)
    loops = np.ones(0)
    if operator == "sum":
        values = scale
    elif operator == "symmetric":
        root = 1 / np.sqrt(degree.astype(np.float64))
        values, loops = scale * root[row] * root[indices], root[:n] ** 2
    elif operator == "mean":
        values = (1 / np.maximum(counts, 1))[row]
    else:
        values, loops = np.ones(len(indices)), np.ones(n)
    if len(loops):
        values = np.insert(values, indptr[:-1], loops)
        indices = np.insert(indices, indptr[:-1], np.arange(n))
        indptr = indptr + np.arange(n + 1, dtype=indptr.dtype)
    # Copies: what is kept of a matrix must not keep the map of a shard open.
    parts = indptr.astype(np.int32), indices.astype(np.int32), values.astype(np.float32)
    return SparseMatrix.of(*parts, columns=len(drawn.nodes))
