"""Inputs of backbones: features, and one aggregation matrix a layer; of nodes, or of whole graphs or pairs."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.induced import Induced, entries_among
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix, StoredFeatures
from shoal.storage.shards.view import View

Operator = Literal["sum", "mean", "symmetric", "attention", "edges"]


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


@dataclass(frozen=True)
class ItemBatch:
    """Nodes of items that are more than a row: of graphs, or of pairs.

    Attributes:
        hops: Rows of the hops that a decoupled backbone reads, of all nodes; of a coupled one, of the features alone.
        operators: Of a coupled backbone: the matrix of every layer, square.
    """

    hops: Sequence[Features]
    operators: tuple[SparseMatrix, ...]

    @property
    def beside(self) -> tuple[Tensor, ...]:
        """Inputs of a coupled backbone of nodes, beside features and matrices."""
        return ()


@dataclass(frozen=True)
class GraphBatch(ItemBatch):
    """Several graphs behind one another, their first rows and the end of the last in `first`, int64 `[G + 1]`.

    The matrices have no entry between two. `codes_NQ` are structure codes of all nodes, for a backbone that reads them.
    """

    first: Tensor
    codes_NQ: Tensor | None = None

    @property
    def beside(self) -> tuple[Tensor, ...]:
        return () if self.codes_NQ is None else (self.codes_NQ,)


@dataclass(frozen=True)
class PairBatch(ItemBatch):
    """Several pairs; `ends` has both nodes of each, places among those of the batch, int64 `[M, 2]`."""

    ends: Tensor


# Rows of hops for a decoupled backbone, a neighbourhood for a coupled one; nodes of graphs or pairs for one of these.
Inputs = Sequence[Features] | Neighbourhood | ItemBatch
# Inputs that are gathered from a client's data: rows of hops are as these are stored, and none is altered.
Gathered = Sequence[StoredFeatures] | Neighbourhood | ItemBatch


class DrawnInputs:
    """Inputs of a model that are drawn anew in every step."""

    def __init__(self, draw: Callable[[], Inputs]) -> None:
        self._draw, self._ahead = draw, deque[Inputs]()

    def look(self, step: int) -> Inputs:
        """Returns those of a step, of which 0 is the next, and draws them, and those before, if need be."""
        while len(self._ahead) <= step:
            self._ahead.append(self._draw())
        return self._ahead[step]

    def take(self) -> Inputs:
        """Returns those of the next step, which is over then."""
        self.look(0)
        return self._ahead.popleft()


def all_nodes(data: View, operator: Operator, layers: int) -> Neighbourhood:
    """Returns all nodes of a client; the matrix is built once and kept on the host while there is room.

    It is, by operator: `sum`: A, of ones or the weights of edges. `mean`: A, its rows divided by their sums.
    `symmetric`: D^-1/2 (A + I) D^-1/2 with self loops in D. `attention`: the pattern of A + I, weighed by the layer.
    `edges`: A with the features of its edges.
    """
    if data.propagation is not None and data.propagation.first_layer:
        return _over_cross_edges(data, operator, layers)
    return Neighbourhood(data.whole(0), (matrix_of_all(data, operator),) * layers)


def _over_cross_edges(data: View, operator: Operator, layers: int) -> Neighbourhood:
    """Returns all nodes of a client with sums over neighbours at all clients, which no layer sums again.

    `gcn`: sums instead of features. `mean`: features, and behind them means over neighbours. `two_hop`: sums, and
    behind them those of neighbours at other clients, which the second layer reads by degrees of the whole graph.
    """
    assert data.propagation is not None
    form, sums = data.propagation.first_layer, data.whole(1)
    assert isinstance(sums, Tensor)
    further = (matrix_of_all(data, operator),) * (layers - 1)
    if form == "mean":
        x_NF = data.cache("features and means", lambda: torch.cat([_dense(data.whole(0)), sums]))
        return Neighbourhood(x_NF, (_places(data, data.nodes, data.nodes), *further))
    if form == "gcn" or layers == 1:
        return Neighbourhood(sums[: data.nodes], (_places(data, data.nodes), *further))
    second = data.cache("second layer", lambda: _build_second_layer(data))
    return Neighbourhood(sums, (_places(data, len(sums)), second, *further[1:]))


def _dense(x: Features) -> Tensor:
    return x if isinstance(x, Tensor) else x.to_dense()


def _places(data: View, rows: int, first: int = 0) -> SparseMatrix:
    """Builds the matrix that takes so many rows from a first one on, `[rows, first + rows]`."""

    def make() -> SparseMatrix:
        place = torch.arange(rows + 1, dtype=torch.int32)
        matrix = SparseMatrix.of(place, place[:-1] + first, torch.ones(rows), first + rows)
        return matrix.prepare().to(data.device)

    matrix: SparseMatrix = data.cache(("places", rows, first), make)
    return matrix


def _build_second_layer(data: View) -> SparseMatrix:
    """Builds the matrix of the second of two layers, `[nodes, nodes and their neighbours at other clients]`.

    A client has these edges with `data.cross_edges: two_hop`; all edges of its nodes count.
    """
    assert data.all_edges is not None, "a view with the edges to other clients"
    indptr, indices, degree, weight = data.all_edges
    drawn = Drawn(np.arange(len(degree)), indptr[: data.nodes + 1], indices)
    return _matrix("symmetric", drawn, degree, weight).prepare().to(data.device)


def receptive_field(data: View, operator: Operator, layers: int) -> Neighbourhood:
    """Cuts out the part of a client's graph that its training rows depend on; keeps it as `all_nodes` does.

    A layer's output has the nodes that the next layer reads, and the last one's the training rows, in their order.
    """
    if data.propagation is not None and data.propagation.first_layer:
        return all_nodes(data, operator, layers)._replace(rows=data.train)
    field: Neighbourhood = data.cache(("field", operator, layers), lambda: _field(data, operator, layers))
    return field


def _field(data: View, operator: Operator, layers: int) -> Neighbourhood:
    indptr, indices = data.csr
    weight = data.edge_weight
    degree, nodes = degrees(indptr, weight), data.train.cpu().numpy()
    matrices: list[SparseMatrix] = []
    for _ in range(layers):
        # All neighbours are drawn: the generator has no say.
        drawn = draw_neighbours(indptr, indices, nodes, -1, np.random.default_rng(0))
        of_edge = None
        if weight is not None:
            counts = np.diff(drawn.indptr)
            of_edge = weight[np.arange(len(drawn.indices)) + np.repeat(indptr[nodes] - drawn.indptr[:-1], counts)]
        nodes = drawn.nodes
        matrix = _matrix(operator, drawn, degree[nodes], of_edge)
        if operator == "edges":
            matrix = _with_features(matrix, drawn, data)
        if operator == "sum" and weight is None:
            matrix = SparseMatrix(matrix.csr, ones=True)
        matrices.insert(0, matrix.prepare().to(data.device))
    return Neighbourhood(kept_rows(data, 0, torch.from_numpy(nodes)), tuple(matrices))


def matrix_of_all(data: View, operator: Operator) -> SparseMatrix:
    """Returns the matrix of all nodes of a client, see `all_nodes`."""
    if operator == "sum":
        return SparseMatrix(data.adjacency, data.adjacency, ones=data.edge_weight is None)

    def make() -> SparseMatrix:
        if operator == "edges":
            return _all_edges(data)
        return operator_over(operator, *data.csr, weight=data.edge_weight).to(data.device)

    matrix: SparseMatrix = data.cache(("operator", operator), make)
    return matrix


def kept_rows(data: View, k: int, rows: Tensor, dtype: torch.dtype = torch.float32) -> StoredFeatures:
    """Gathers some rows of hop k, sparse ones float32, for many steps."""
    features = data.rows(k, rows)
    # The transpose is made now, while it is known that the rows stay: every step needs it.
    return features.prepare() if isinstance(features, SparseMatrix) else features.to(dtype)


def sample_neighbourhood(
    data: View, operator: Operator, fanouts: Sequence[int], rows: Tensor, rng: np.random.Generator
) -> Neighbourhood:
    """Draws neighbours for some rows, int64 `[n]`, each once (GraphSAGE, Alg. 2).

    Layers are drawn from the last to the first, as `fanouts` lie; -1 takes all neighbours. Where s of d were drawn, the
    entries of `sum` and `symmetric` are d/s times as large: the mean over draws is the whole graph's matrix.
    """
    return sample_nodes(data, operator, fanouts, rows, rng)[0]


def sample_nodes(
    data: View, operator: Operator, fanouts: Sequence[int], rows: Tensor, rng: np.random.Generator
) -> tuple[Neighbourhood, Tensor]:
    """Draws as `sample_neighbourhood` does; gives also the rows of all nodes that occur, int64 `[N]`."""
    indptr, indices = data.csr
    degree = data.degree.cpu().numpy()
    nodes = rows.cpu().numpy()
    matrices = []
    for fanout in fanouts:
        drawn = draw_neighbours(indptr, indices, nodes, fanout, rng)
        nodes = drawn.nodes
        matrix = _matrix(operator, drawn, degree[nodes])
        if operator == "edges":
            matrix = _with_features(matrix, drawn, data)
        matrices.append(matrix.to(data.device))
    rows_N = torch.from_numpy(nodes)
    return Neighbourhood(data.rows(0, rows_N), tuple(reversed(matrices))), rows_N.to(data.device)


def standalone(x_NF: Tensor, operator: Operator, layers: int) -> Neighbourhood:
    """Makes nodes whose neighbours all have the node's own features; `sum` has one neighbour."""
    nodes = np.arange(len(x_NF))
    if operator in ("sum", "mean", "edges"):
        matrix = _matrix(operator, Drawn(nodes, np.arange(len(nodes) + 1), nodes), np.full(len(nodes), 2))
        if operator == "edges":
            matrix = EdgeMatrix(matrix.csr, None)
    else:
        no_neighbours = Drawn(nodes, np.zeros(len(nodes) + 1, np.int64), np.zeros(0, np.int64))
        matrix = _matrix(operator, no_neighbours, np.ones(len(nodes), np.int64))
    return Neighbourhood(x_NF, (matrix.to(x_NF.device),) * layers)


def operator_over(
    operator: Operator,
    indptr: np.ndarray,
    indices: np.ndarray,
    symmetric: bool = True,
    weight: np.ndarray | None = None,
    zero_features: bool = False,
) -> SparseMatrix:
    """Builds the matrix of all nodes of a graph without loops; with its transpose, if it is `symmetric`.

    Where not, a node's degree is the number of its senders. `weight` has the entries of A, float32 `[E]`, else ones.
    Where layers read features of edges, these are zero by `zero_features`. Raises ValueError: nothing says what they
    are.
    """
    if operator == "edges" and zero_features:
        return EdgeMatrix(operator_over("sum", indptr, indices, symmetric, weight).csr, None)
    if operator == "edges":
        raise ValueError("a graph that a method makes has no features of edges; set data.edge_features to drop")
    nodes, degree = len(indptr) - 1, degrees(indptr, weight)
    matrix = _matrix(operator, Drawn(np.arange(nodes), indptr, indices), degree, weight)
    if not symmetric:
        return matrix
    # The matrix is its own transpose, except that a mean divides by the degree of the receiver.
    transposed = matrix.csr
    if operator == "mean":
        starts, columns, _ = matrix.parts()
        shares = (1 / np.maximum(degree - 1, 1)).astype(np.float32)
        transposed = SparseMatrix.of(starts, columns, shares[indices], nodes).csr
    return SparseMatrix(matrix.csr, transposed)


class Drawn(NamedTuple):
    """The neighbours drawn for some rows, as CSR of int32: column j is row `nodes[j]` of the shard.

    `nodes`, int64 `[m]`, are first those drawn for, then the others in the order in which they were first drawn.
    """

    nodes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray


def _matrix(operator: Operator, drawn: Drawn, degree: np.ndarray, weight: np.ndarray | None = None) -> SparseMatrix:
    """Builds the matrix of a layer; degrees `[m]` count a self loop; with weights of entries, `[E]`, all are drawn."""
    assert weight is None or operator in ("sum", "symmetric", "edges"), operator
    csr = (array.astype(np.int32, copy=False) for array in (drawn.indptr, drawn.indices))
    weight_E = None if weight is None else weight.astype(np.float64)
    starts, columns, values = _entries(*csr, degree.astype(np.float64), weight_E, *_KINDS[operator])
    return SparseMatrix.of(starts, columns, values, columns=len(drawn.nodes))


def _all_edges(data: View) -> EdgeMatrix:
    """Builds A with the features of its edges, of memory of its own: the map of the shard ends before what is kept."""
    starts, columns, values = (part.clone() for part in SparseMatrix(data.adjacency).parts())
    attr_ED = None if data.edge_attr is None else torch.from_numpy(data.edge_attr.copy()).to(data.device)
    csr = SparseMatrix.of(starts, columns, values, data.nodes).csr
    return EdgeMatrix(csr, attr_ED, csr)


def _with_features(matrix: SparseMatrix, drawn: Drawn, data: View) -> EdgeMatrix:
    """Adds the features of the edges that were drawn to the matrix of a layer."""
    if data.edge_attr is None:
        return EdgeMatrix(matrix.csr, None)
    part = Induced(drawn.nodes, drawn.indptr, drawn.indices)
    return EdgeMatrix(matrix.csr, torch.from_numpy(data.edge_attr[entries_among(part, *data.csr)]))


# Whether a row has a loop in front, and whether entries count their degrees, and the roots of both.
_KINDS = {
    "sum": (False, True, False),
    "edges": (False, True, False),
    "symmetric": (True, True, True),
    "mean": (False, False, False),
    "attention": (True, False, False),
}


@numba.njit(cache=True, nogil=True)
def _entries(
    indptr: np.ndarray, indices: np.ndarray, degree: np.ndarray, weight: np.ndarray | None, loops: bool, scales: bool,
    roots: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Computes row starts, columns and values of a layer's matrix, of its own memory; see `_matrix`."""
    rows, count = len(indptr) - 1, 0
    starts, columns = np.zeros(rows + 1, np.int32), np.empty(len(indices) + rows * loops, np.int32)
    values, root = np.empty(len(columns), np.float32), 1 / np.sqrt(degree)
    for row in range(rows):
        drawn, of_row = max(indptr[row + 1] - indptr[row], 1), 1.0
        if scales:
            of_row = (degree[row] - 1) / drawn
        elif not loops:
            of_row = 1 / drawn
        if loops:
            columns[count], values[count] = row, root[row] * root[row] if roots else 1
            count += 1
        for entry in range(indptr[row], indptr[row + 1]):
            value = of_row if weight is None else weight[entry]
            columns[count], values[count] = indices[entry], value * root[row] * root[indices[entry]] if roots else value
            count += 1
        starts[row + 1] = count
    return starts, columns, values


def draw_neighbours(
    indptr: np.ndarray, indices: np.ndarray, rows: np.ndarray, fanout: int, rng: np.random.Generator
) -> Drawn:
    """Draws up to `fanout` neighbours of every row, uniformly and without replacement (GraphSAGE, Alg. 2, N_k).

    Rows are int64 `[n]`, each once; of one with at most `fanout` neighbours, or for -1, all are taken, whatever `rng`
    is.
    """
    degree = indptr[rows + 1] - indptr[rows]
    counts = degree if fanout < 0 else np.minimum(degree, fanout)
    pointer = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(counts, out=pointer[1:])
    columns = np.empty(pointer[-1], dtype=np.int32)
    nodes = np.empty(len(rows) + len(columns), dtype=np.int64)
    nodes[: len(rows)] = rows
    column_of = np.full(len(indptr) - 1, -1, dtype=np.int32)
    column_of[rows] = np.arange(len(rows), dtype=np.int32)
    count = _draw((indptr, indices), rows, rng.random(len(columns)), column_of, (pointer, columns, nodes))
    return Drawn(nodes[:count].copy(), pointer, columns)


@numba.njit(cache=True)
def _draw(
    csr: tuple[np.ndarray, ...],
    rows: np.ndarray,
    uniform: np.ndarray,
    column_of: np.ndarray,
    drawn: tuple[np.ndarray, ...],
) -> int:
    """Draws neighbours of rows into `drawn`, the arrays of a `Drawn`; returns how many nodes occur.

    Args:
        csr: Row starts and columns of the graph.
        rows: The rows, which are the first of the drawn nodes.
        uniform: A number in [0, 1) for each entry to draw.
        column_of: The place of every node of the graph among the drawn ones, -1 for others; it is filled.
        drawn: Row starts, which are given; columns and further nodes, which are filled.
    """
    (indptr, indices), (pointer, columns, nodes) = csr, drawn
    count = len(rows)
    for i in range(len(rows)):
        start, first, end = indptr[rows[i]], pointer[i], pointer[i + 1]
        degree = indptr[rows[i] + 1] - start
        for place in range(first, end):
            # Floyd's algorithm takes position t of 0..j, or j itself if t was drawn before.
            j = degree - end + place
            position = j
            if end - first < degree:
                position = int(uniform[place] * (j + 1))
                for earlier in range(first, place):
                    if columns[earlier] == position:
                        position = j
                        break
            columns[place] = position
        for place in range(first, end):
            node = indices[start + columns[place]]
            if column_of[node] < 0:
                column_of[node] = count
                nodes[count] = node
                count += 1
            columns[place] = column_of[node]
    return count
