"""What models of several clients read at once: rows of hops, or whole graphs, padded to those of the longest.

Axes: B clients, N rows or nodes of the longest of them, T training rows of the one that has most, F features.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood, standalone
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures, stored

# Bytes of a group of clients, at most; and those up to which padding costs less than one more call of a device.
MOST, NO_MATTER = 2**31, 2**24


def joined(matrices: Sequence[Tensor], most: int) -> Tensor:
    """Square matrices in CSR as blocks on the diagonal of one `[B N, B N]`, each with room for `most` = N nodes."""
    clients = len(matrices)
    starts, columns, values = zip(*((m.crow_indices(), m.col_indices(), m.values()) for m in matrices))
    # Of every node its row's end within its own client; nodes beyond have that of the last one.
    pieces = [piece for own in starts for piece in (own[1:], own[-1:].expand(most - len(own) + 1))]
    entries_B = torch.cat([own[-1:] for own in starts])
    before_B = (entries_B.cumsum(0) - entries_B).to(entries_B.dtype)
    ends_N = (torch.cat(pieces).view(clients, most) + before_B[:, None]).flatten()
    device = ends_N.device
    shift_B = torch.arange(0, clients * most, most, dtype=entries_B.dtype, device=device)
    total = sum(len(own) for own in columns)
    shifted = torch.cat(columns) + torch.repeat_interleave(shift_B, entries_B.long(), output_size=total)
    row_starts, size = torch.cat([ends_N.new_zeros(1), ends_N]), (clients * most, clients * most)
    return torch.sparse_csr_tensor(
        row_starts, shifted, torch.cat(values), size=size, device=device, check_invariants=False
    )


class JoinedMatrices:
    """Matrices of several clients that one client's code multiplies by inside `torch.vmap`, all of them at once.

    To that code it is the `SparseMatrix` of one client with N nodes.
    """

    def __init__(self, matrices: Sequence[SparseMatrix], most: int) -> None:
        """`most` is N."""
        self._most = most
        csr = joined([matrix.csr for matrix in matrices], most)
        symmetric = all(matrix.transposed is matrix.csr for matrix in matrices)
        self.matrix = SparseMatrix(csr, csr if symmetric else joined([m.transposed for m in matrices], most))

    def __len__(self) -> int:
        return self._most

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
        """Nothing is kept: the product inside of `vmap` knows its own gradient."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], dense: Tensor, matrix: SparseMatrix) -> tuple[Tensor, int]:
        dense_BNH = dense.movedim(in_dims[0], 0)
        return (matrix @ dense_BNH.flatten(0, 1)).view(len(dense_BNH), -1, dense_BNH.shape[2]), 0


def padded(parts: Sequence[StoredFeatures], filling: int) -> Tensor:
    """Rows of every client, and the filling as often as others have more, `[B, N, …]`."""
    rows = [part.to_dense() if isinstance(part, SparseMatrix) else part for part in parts]
    most = max(map(len, rows))
    filling_N = rows[0].new_full((most, *rows[0].shape[1:]), filling)
    pieces = [piece for own in rows for piece in (own, filling_N[len(own) :])]
    return torch.cat(pieces).unflatten(0, (len(rows), most))


class BatchedRows:
    """Rows of hops, for decoupled models: `tensors`, by client along the first axis."""

    def __init__(self, gathered: Sequence[Sequence[StoredFeatures]]) -> None:
        self.tensors: Sequence[Tensor] = [padded(list(parts), 0) for parts in zip(*gathered)]
        self._rows = [len(own[0]) for own in gathered]

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        """What the model reads, from one client's part of the tensors, inside `torch.vmap`."""
        return list(tensors)

    def example(self) -> Inputs:
        """A small input of the same kind, for a look at what the model does."""
        return [hop[0, :1] for hop in self.tensors]

    def lengths(self, seen: int) -> Sequence[int]:
        """How many rows every client has where the model has so many rows of the example."""
        return self._rows


class BatchedGraphs:
    """Whole graphs, for coupled models, and the rows that are asked for; otherwise as `BatchedRows`.

    Sparse features are made dense. Nodes that are padded hear nobody and are heard by nobody.
    """

    # Of the example, and of its rows that are asked for.
    NODES, ROWS = 2, 1

    def __init__(self, gathered: Sequence[Neighbourhood]) -> None:
        rows = [own.rows for own in gathered if own.rows is not None]
        x_BNF = padded([stored(own.x_NF) for own in gathered], 0)
        # Without rows that are asked for the model answers for all nodes.
        self.tensors: Sequence[Tensor] = [x_BNF, *([padded(rows, 0)] if rows else [])]
        self._nodes, self._rows = [len(own.x_NF) for own in gathered], [len(own) for own in rows]
        # One matrix serves several layers.
        made: dict[int, JoinedMatrices] = {}
        for layer in zip(*(own.operators for own in gathered)):
            if id(layer[0]) not in made:
                made[id(layer[0])] = JoinedMatrices(layer, x_BNF.shape[1])
        self._operators = tuple(made[id(operator)] for operator in gathered[0].operators)

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        return Neighbourhood(tensors[0], self._operators, *tensors[1:])  # type: ignore[arg-type]

    def example(self) -> Inputs:
        x_BNF, *asked = self.tensors
        around = standalone(x_BNF.new_zeros(self.NODES, x_BNF.shape[2]), "sum", len(self._operators))
        return around._replace(rows=asked[0].new_zeros(self.ROWS)) if asked else around

    def lengths(self, seen: int) -> Sequence[int]:
        return self._nodes if seen == self.NODES else self._rows


BatchedInputs = BatchedRows | BatchedGraphs


def batched_inputs(gathered: Sequence[Inputs]) -> BatchedInputs:
    """Of what the model of every client gathered for its training rows."""
    if isinstance(gathered[0], Neighbourhood):
        return BatchedGraphs([one for one in gathered if isinstance(one, Neighbourhood)])
    rows = [one for one in gathered if not isinstance(one, Neighbourhood | ItemBatch)]
    return BatchedRows([[stored(hop) for hop in hops] for hops in rows])


def numbers_of_row(inputs: Inputs, coupled: Coupled | None) -> tuple[int, int]:
    """Rows that are padded, and about how many numbers each takes in training, what is computed from it included."""
    if coupled is None or not isinstance(inputs, Neighbourhood):
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        return len(inputs[0]), 3 * sum(part.shape[1] for part in inputs)
    width = coupled.head.linears[-1].in_features
    return len(inputs.x_NF), 3 * inputs.x_NF.shape[1] + 6 * coupled.depth * int(width)  # type: ignore[arg-type]


def size_groups(rows: Sequence[int], row_bytes: int, client_bytes: int, most: int | None = None) -> list[list[int]]:
    """Groups of clients to be worked on at once, each as ascending positions, the group of the longest first.

    The rows of a client are at least half of those of the longest in its group, or the group is small. It depends on
    the clients alone: another size of a group may change the last bits of its numbers. A client takes `client_bytes`
    beside its rows, a group of several at most `most` bytes.
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
