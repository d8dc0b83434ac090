"""A matrix of a layer that also reads features of edges."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import SparseMatrix, ranges

# Pairs of nodes that a path may join at a client: of each, attention keeps a weight a head.
MOST_OF_PATH = 1 << 25


class EdgeMatrix(SparseMatrix):
    """Weights of messages, `[N, M]`, whose row i weighs the senders of node i, and features of its E entries.

    Attributes:
        attr_ED: Features of the entries, float32 `[E, D]`; None: they are zero, of any number.
    """

    def __init__(self, csr: Tensor, attr_ED: Tensor | None, transposed: Tensor | None = None) -> None:
        super().__init__(csr, transposed)
        self._of_kinds: list[SparseMatrix] = []
        self._by_relation: tuple[list[SparseMatrix], SparseMatrix] | None = None
        self._paths: dict[Hashable, SparseMatrix] = {}
        self.attr_ED = attr_ED

    def features(self, width: int) -> Tensor:
        """Returns the features of the entries, `[E, width]`."""
        if self.attr_ED is None:
            return torch.zeros(len(self.receiver), width, device=self.device)
        return self.attr_ED

    @cached_property
    def receiver(self) -> Tensor:
        """The row of every entry, int32 `[E]`."""
        starts, _, _ = self.parts()
        return torch.arange(len(self), dtype=torch.int32, device=self.device).repeat_interleave(starts.diff())

    @cached_property
    def senders(self) -> SparseMatrix:
        """The matrix that takes the row of the sender of every entry, `[E, M]`."""
        return _taking(self.parts()[1], self.shape[1]).prepare()

    @cached_property
    def receivers(self) -> SparseMatrix:
        """The matrix that takes the row of the receiver of every entry, `[E, N]`; its transpose sums over senders."""
        starts, columns, _ = self.parts()
        entry = torch.arange(len(columns), dtype=torch.int32, device=self.device)
        ones = torch.ones(len(columns), device=self.device)
        summing = SparseMatrix.of(starts, entry, ones, len(columns))
        return SparseMatrix(_taking(self.receiver, len(self)).csr, summing.csr)

    @cached_property
    def summing(self) -> SparseMatrix:
        """The matrix that sums rows of entries over the senders of every node, `[N, E]`."""
        return SparseMatrix(self.receivers.transposed, self.receivers.csr)

    @cached_property
    def weighing(self) -> SparseMatrix:
        """The same with the weight of every message."""
        starts, columns, values = self.parts()
        entry = torch.arange(len(columns), dtype=torch.int32, device=self.device)
        taken = SparseMatrix.of(*_one_a_row(self.receiver), values, len(self))
        return SparseMatrix.of(starts, entry, values, len(columns), taken.csr)

    @cached_property
    def with_loops(self) -> "EdgeMatrix":
        """The same with an edge from each node to itself, in front of its row, with the mean of its edges' features."""
        starts, columns, values = self.parts()
        rows, entries = len(self), len(columns)
        row = torch.arange(rows, dtype=torch.int32, device=self.device)
        place = torch.arange(entries, device=self.device) + self.receiver.long() + 1
        first = starts[:-1] + row
        new_columns, new_values = columns.new_empty(rows + entries), values.new_ones(rows + entries)
        new_columns[place], new_columns[first.long()] = columns, row
        new_values[place] = values
        attr_ED = None
        if self.attr_ED is not None:
            means_ND = self.summing.times(self.attr_ED) / starts.diff().clamp(min=1)[:, None]
            attr_ED = self.attr_ED.new_empty(rows + entries, self.attr_ED.shape[1])
            attr_ED[place], attr_ED[first.long()] = self.attr_ED, means_ND
        new_starts = starts + torch.arange(rows + 1, dtype=torch.int32, device=self.device)
        return EdgeMatrix(SparseMatrix.of(new_starts, new_columns, new_values, self.shape[1]).csr, attr_ED)

    def relations(self, kinds: int) -> list[SparseMatrix]:
        """Returns the matrix of means over senders of every kind of edge, `[N, M]` each, made once.

        An entry is of those kinds that it has ones of. Raises ShoalError: features are no kinds.
        """
        if not self._of_kinds:
            self._of_kinds = [self._mean(np.flatnonzero(kind_E)) for kind_E in self.kinds("rgcn", kinds).T]
        return self._of_kinds

    def kinds(self, model: str, kinds: int) -> np.ndarray:
        """Returns of which kinds every entry is, bool `[E, kinds]`. Raises ShoalError: features are no kinds."""
        kind_ED = self.features(kinds)[:, :kinds].cpu().numpy()
        if ((kind_ED != 0) & (kind_ED != 1)).any():
            raise ShoalError(
                "model.name", f"{model} reads kinds of edges, features that are 0 or 1, found others; take gine"
            )
        return kind_ED != 0

    def by_relation(self, kinds: int) -> tuple[list[SparseMatrix], SparseMatrix]:
        """Splits senders by the relations by which they send, made once: S_r nodes for relation r, S in all.

        Returns the matrix that takes the senders of every relation, `[S_r, M]` each, and the pattern of who receives
        from these, one relation behind the other, `[N, S]`. An entry of several relations is in each. Raises
        ShoalError: as `kinds`.
        """
        if self._by_relation is None:
            entry, relation = np.nonzero(self.kinds("hgt", kinds))
            senders = self.shape[1]
            key = relation * senders + self.parts()[1].cpu().numpy()[entry].astype(np.int64)
            sender, place = np.unique(key, return_inverse=True)
            receiver = self.receiver.cpu().numpy()[entry]
            order = np.lexsort((place, receiver))
            starts = np.searchsorted(receiver[order], np.arange(len(self) + 1)).astype(np.int32)
            ones = np.ones(len(place), dtype=np.float32)
            pattern = SparseMatrix.of(starts, place[order].astype(np.int32), ones, len(sender)).to(self.device)
            ends = np.searchsorted(sender, senders * np.arange(kinds + 1))
            takes = [
                _taking(torch.from_numpy((sender[low:high] - senders * number).astype(np.int32)), senders)
                for number, (low, high) in enumerate(pairwise(ends))
            ]
            self._by_relation = [take.prepare().to(self.device) for take in takes], pattern
        return self._by_relation

    def path(self, key: Hashable, steps: Callable[[], Sequence[np.ndarray]]) -> SparseMatrix:
        """Returns who reaches whom along a path of edges, the pattern `[N, M]`, made once by its key.

        `steps` marks the entries of each step, bool `[E]`, the first step first; of several, the matrix is square.
        Raises ShoalError: more than `MOST_OF_PATH` pairs of nodes may be joined.
        """
        if key not in self._paths:
            starts, columns, _ = (part.cpu().numpy() for part in self.parts())
            csr = sp.csr_array((np.ones(len(columns), np.float32), columns, starts), self.shape)
            pattern = _product([_of_entries(csr, step) for step in steps()])
            pattern.sort_indices()
            ones = np.ones(pattern.nnz, dtype=np.float32)
            arrays = pattern.indptr.astype(np.int32), pattern.indices.astype(np.int32)
            self._paths[key] = SparseMatrix.of(*arrays, ones, self.shape[1]).to(self.device)
        return self._paths[key]

    def _mean(self, entries: np.ndarray) -> SparseMatrix:
        """Makes the matrix of means over the senders of some entries."""
        columns, receiver = self.parts()[1].cpu().numpy()[entries], self.receiver.cpu().numpy()[entries]
        counts = np.bincount(receiver, minlength=len(self))
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        shares = (1 / np.maximum(counts, 1)).astype(np.float32)[receiver]
        return SparseMatrix.of(starts, columns, shares, self.shape[1]).prepare().to(self.device)

    @property
    def most_bytes(self) -> int:
        """Bytes of its arrays, and of all that layers make of them."""
        starts, columns, values = self.parts()
        attr = 0 if self.attr_ED is None else self.attr_ED.nbytes
        return 2 * (starts.nbytes + attr) + 14 * (columns.nbytes + values.nbytes)

    def to(self, device: torch.device) -> "EdgeMatrix":
        if device == self.device:
            return self
        moved = super().to(device)
        return EdgeMatrix(moved.csr, None if self.attr_ED is None else self.attr_ED.to(device), moved._transposed)

    def float(self) -> "EdgeMatrix":
        return self

    def diagonal_blocks(self, first: Tensor, blocks: Tensor) -> "EdgeMatrix":
        chosen = super().diagonal_blocks(first, blocks)
        if self.attr_ED is None:
            return EdgeMatrix(chosen.csr, None)
        starts, _, _ = self.parts()
        low = starts[first[blocks]].long()
        places = ranges(low, starts[first[blocks + 1]].long() - low)
        return EdgeMatrix(chosen.csr, self.attr_ED.index_select(0, places))


def _of_entries(csr: sp.csr_array, chosen: np.ndarray) -> sp.csr_array:
    """Returns the matrix of some entries of another, marked by a bool `[E]`."""
    entry = np.flatnonzero(chosen)
    return sp.csr_array((csr.data[entry], csr.indices[entry], np.searchsorted(entry, csr.indptr)), csr.shape)


def _product(steps: Sequence[sp.csr_array]) -> sp.csr_array:
    """Multiplies the patterns of steps, the last one from the left, those first that have the fewest products."""
    factors = list(steps)[::-1]
    while len(factors) > 1:
        products = [_products_of(*pair) for pair in pairwise(factors)]
        place = int(np.argmin(products))
        if products[place] > MOST_OF_PATH:
            raise ShoalError(
                "model.metapaths",
                f"a path joins up to {products[place]:,} pairs of nodes at one client, at most {MOST_OF_PATH:,} are "
                "held; take a shorter one, or more clients",
            )
        pattern = factors[place] @ factors[place + 1]
        pattern.data[:] = 1
        factors[place : place + 2] = [pattern]
    return factors[0]


def _products_of(left: sp.csr_array, right: sp.csr_array) -> int:
    """Counts the products of a product of two matrices: no fewer than its entries."""
    return int(np.diff(right.indptr)[left.indices].sum(dtype=np.int64))


def _one_a_row(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Returns row starts and columns of a matrix with one entry a row."""
    return torch.arange(len(columns) + 1, dtype=torch.int32, device=columns.device), columns


def _taking(columns: Tensor, width: int) -> SparseMatrix:
    """Makes the matrix that takes rows of another, `[len(columns), width]`."""
    return SparseMatrix.of(*_one_a_row(columns), torch.ones(len(columns), device=columns.device), width)
