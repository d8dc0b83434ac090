"""Inputs of several clients' models at once: rows of hops, or whole graphs, padded to those of the longest.

Axes: B clients, N rows or nodes of the longest of them, T training rows of the one that has most, F features.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures, require_stored

# Bytes of a group of clients, at most; and those up to which padding costs less than one more call of a device.
MOST, NO_MATTER = 2**31, 2**24


def block_diagonal(matrices: Sequence[Tensor], rows: int, columns: int) -> Tensor:
    """Joins matrices in CSR as blocks on a diagonal, each of so many rows and columns, `[B rows, B columns]`."""
    clients = len(matrices)
    starts, places, values = zip(*((m.crow_indices(), m.col_indices(), m.values()) for m in matrices))
    # Every row has its end within its own client; rows beyond have that of the last one.
    pieces = [piece for part in starts for piece in (part[1:], part[-1:].expand(rows - len(part) + 1))]
    entries_B = torch.cat([part[-1:] for part in starts])
    before_B = (entries_B.cumsum(0) - entries_B).to(entries_B.dtype)
    ends_N = (torch.cat(pieces).view(clients, rows) + before_B[:, None]).flatten()
    device = ends_N.device
    shift_B = torch.arange(clients, dtype=entries_B.dtype, device=device) * columns
    total = sum(len(part) for part in places)
    shifted = torch.cat(places) + torch.repeat_interleave(shift_B, entries_B.long(), output_size=total)
    row_starts, size = torch.cat([ends_N.new_zeros(1), ends_N]), (clients * rows, clients * columns)
    return torch.sparse_csr_tensor(
        row_starts, shifted, torch.cat(values), size=size, device=device, check_invariants=False
    )


class JoinedMatrices:
    """Matrices of several clients that one client's code multiplies by inside `torch.vmap`, all of them at once.

    To that code it is the `SparseMatrix` of one client, with the rows and columns of the largest.
    """

    def __init__(self, matrices: Sequence[SparseMatrix]) -> None:
        rows, columns = (max(matrix.shape[axis] for matrix in matrices) for axis in (0, 1))
        self._rows = rows
        csr = block_diagonal([matrix.csr for matrix in matrices], rows, columns)
        symmetric = all(matrix.transposed is matrix.csr for matrix in matrices)
        transposed = csr if symmetric else block_diagonal([matrix.transposed for matrix in matrices], columns, rows)
        self.matrix = SparseMatrix(csr, transposed)

    def __len__(self) -> int:
        return self._rows

    def __matmul__(self, dense: Tensor) -> Tensor:
        """The product with one client's float32 `[N, H]`; only inside `torch.vmap`."""
        product: Tensor = _Product.apply(dense, self.matrix)
        return product


class _Product(torch.autograd.Function):
    """A product that all clients of a `vmap` take part in."""

    @staticmethod
    def forward(dense: Tensor, matrix: SparseMatrix) -> Tensor:
        raise RuntimeError("expected batched clients (torch.vmap), got one client")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing: the product inside of `vmap` knows its own gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], dense: Tensor, matrix: SparseMatrix) -> tuple[Tensor, int]:
        dense_BNH = dense.movedim(in_dims[0], 0)
        return (matrix @ dense_BNH.flatten(0, 1)).view(len(dense_BNH), -1, dense_BNH.shape[2]), 0


def pad(parts: Sequence[StoredFeatures], filling: int) -> Tensor:
    """Pads the rows of every client by the filling to the most that a client has, `[B, N, …]`."""
    rows = [part.to_dense() if isinstance(part, SparseMatrix) else part for part in parts]
    most = max(map(len, rows))
    filling_N = rows[0].new_full((most, *rows[0].shape[1:]), filling)
    pieces = [piece for part in rows for piece in (part, filling_N[len(part) :])]
    return torch.cat(pieces).unflatten(0, (len(rows), most))


class BatchedRows:
    """Rows of hops, for decoupled models: `tensors`, by client along the first axis, padded by zeros."""

    def __init__(self, tensors: Sequence[Tensor], rows: Sequence[int]) -> None:
        """Takes hops `[B, N, F]` of clients that have so many rows."""
        self.tensors, self._rows = tensors, rows

    @classmethod
    def of(cls, gathered: Sequence[Sequence[StoredFeatures]]) -> "BatchedRows":
        """Batches the rows that each client has of every hop."""
        return cls([pad(list(parts), 0) for parts in zip(*gathered)], [len(inputs[0]) for inputs in gathered])

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        """Returns the model's inputs from one client's part of the tensors, inside `torch.vmap`."""
        return list(tensors)

    def example(self) -> Inputs:
        """Makes a small input of the same kind, for a look at what the model does."""
        return [hop[0, :1] for hop in self.tensors]

    def lengths(self, seen: int) -> Sequence[int]:
        """Returns the rows that every client has where the model has so many rows of the example."""
        return self._rows


class BatchedGraphs:
    """Graphs, for coupled models, and the rows that are asked for; otherwise as `BatchedRows`.

    Sparse features are made dense. Padded nodes have no neighbours.
    """

    def __init__(self, gathered: Sequence[Neighbourhood]) -> None:
        rows = [graph.rows for graph in gathered if graph.rows is not None]
        # The model answers for all nodes of the last layer if no rows are asked for.
        self.tensors: Sequence[Tensor] = [
            pad([require_stored(graph.x_NF) for graph in gathered], 0),
            *([pad(rows, 0)] if rows else []),
        ]
        layers = [*zip(*(graph.operators for graph in gathered))]
        # One matrix serves several layers.
        made = {id(layer[0]): JoinedMatrices(layer) for layer in layers}
        self._operators = tuple(made[id(layer[0])] for layer in layers)
        # Nodes of every client by layer, the input first, and its rows that are asked for.
        counts = [[len(graph.x_NF) for graph in gathered], *([*map(len, layer)] for layer in layers)]
        counts += [[len(asked) for asked in rows]] if rows else []
        self._counts = dict(zip(range(len(counts), 0, -1), counts))

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        return Neighbourhood(tensors[0], self._operators, *tensors[1:])  # type: ignore[arg-type]

    def example(self) -> Inputs:
        """Makes a graph in which every layer has one node less than the one below; each receives from itself alone."""
        x_BNF, *asked = self.tensors
        nodes, layers = len(self._counts), len(self._operators)
        ones, places = x_BNF.new_ones(nodes), torch.arange(nodes, dtype=torch.int32, device=x_BNF.device)
        receivers = range(nodes - 1, nodes - 1 - layers, -1)
        operators = tuple(SparseMatrix.of(places[: n + 1], places[:n], ones[:n], n + 1) for n in receivers)
        rows = asked[0].new_zeros(1) if asked else None
        return Neighbourhood(x_BNF.new_zeros(nodes, x_BNF.shape[2]), operators, rows)

    def lengths(self, seen: int) -> Sequence[int]:
        return self._counts[seen]


BatchedInputs = BatchedRows | BatchedGraphs


def batched_inputs(gathered: Sequence[Inputs]) -> BatchedInputs:
    """Batches what the model of every client gathered for its training rows."""
    if isinstance(gathered[0], Neighbourhood):
        return BatchedGraphs([inputs for inputs in gathered if isinstance(inputs, Neighbourhood)])
    rows = [inputs for inputs in gathered if not isinstance(inputs, Neighbourhood | ItemBatch)]
    return BatchedRows.of([[require_stored(hop) for hop in hops] for hops in rows])


def numbers_of_row(inputs: Inputs, coupled: Coupled | None) -> tuple[int, int]:
    """Counts rows that are padded, and about how many numbers each takes in training, computed ones included."""
    if coupled is None or not isinstance(inputs, Neighbourhood):
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        return len(inputs[0]), 3 * sum(part.shape[1] for part in inputs)
    width = coupled.head.linears[-1].in_features
    return len(inputs.x_NF), 3 * inputs.x_NF.shape[1] + 6 * coupled.depth * int(width)  # type: ignore[arg-type]


def size_groups(rows: Sequence[int], row_bytes: int, client_bytes: int, most: int | None = None) -> list[list[int]]:
    """Groups of clients to be worked on at once, each as ascending positions, the group of the longest first.

    The rows of a client are at least half of those of the longest in its group, or the group is small. A client takes
    `client_bytes` beside its rows, a group of several at most `most` bytes.
    """
    most = MOST if most is None else most
    groups: list[list[int]] = []
    for i in sorted(range(len(rows)), key=lambda i: -rows[i]):
        if groups:
            longest = rows[groups[-1][0]]
            size = (len(groups[-1]) + 1) * (longest * row_bytes + client_bytes)
            if size <= NO_MATTER or (size <= most and 2 * rows[i] >= longest):
                groups[-1].append(i)
                continue
        groups.append([i])
    return [sorted(group) for group in groups]
