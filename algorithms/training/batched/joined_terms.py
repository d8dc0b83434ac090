"""Terms of the losses of several clients that train in one batch.

Axes: B clients, R further rows and K sums of the clients that have most of them, H width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.base import RowTerm, SumTerm
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.training.batched.batched_inputs import BatchedRows, block_diagonal, pad
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures, require_stored


class JoinedSums(NamedTuple):
    """The sums of squares of all clients, see `SumTerm`.

    Attributes:
        sums: Blocks on a diagonal, `[B K, B R]`.
        target_BKH, weight_BK: Zeros where a client has fewer sums, or none.
    """

    weight: float
    inputs: BatchedRows
    sums: SparseMatrix
    target_BKH: Tensor
    weight_BK: Tensor
    scales: bool

    @classmethod
    def of(cls, several: Sequence[SumTerm | None]) -> "JoinedSums":
        """Joins the terms of clients; None: a client has none, and reads no further row."""
        first = next(term for term in several if term is not None)
        starts, columns, values = first.sums_KR.parts()
        no_entries = SparseMatrix.of(starts[:1], columns[:0], values[:0], 0)
        sums = [(no_entries if term is None else term.sums_KR).csr for term in several]
        joined = block_diagonal(sums, *(max(matrix.shape[axis] for matrix in sums) for axis in (0, 1)))
        targets = pad([first.target_KH[:0] if term is None else term.target_KH for term in several], 0)
        weights = pad([first.weight_K[:0] if term is None else term.weight_K for term in several], 0)
        inputs = BatchedRows.of([_hops(first.inputs, 0) if term is None else _hops(term.inputs) for term in several])
        return cls(first.weight, inputs, SparseMatrix(joined), targets, weights, first.scales)

    def of_clients(self, z_BRH: Tensor) -> Tensor:
        """Computes the terms of all clients, `[B]`, from embeddings of the further rows."""
        z_MH = z_BRH.flatten(0, 1)
        apart_BKH = (self.sums @ (unit(z_MH) if self.scales else z_MH)).view_as(self.target_BKH) - self.target_BKH
        return self.weight * (self.weight_BK * apart_BKH.square().sum(2)).sum(1)


def join_terms(several: Sequence[Sequence[RowTerm | SumTerm]], rows: int) -> list[RowTerm | JoinedSums]:
    """Joins the terms of clients of one batch, of which each has some or none; the longest has so many rows."""
    first = next(filter(None, several), ())
    joined: list[RowTerm | JoinedSums] = []
    for place, term in enumerate(first):
        if isinstance(term, SumTerm):
            several_terms = [terms[place] if terms else None for terms in several]
            joined.append(JoinedSums.of([term for term in several_terms if not isinstance(term, RowTerm)]))
            continue
        has_B = None
        if not all(several):
            has = torch.tensor([bool(terms) for terms in several], device="cpu")
            has_B = has.to(_device_of(term), non_blocking=True)
        by_row = None
        if term.by_row is not None:
            by_row = term.by_row.new_zeros(len(several), rows, term.by_row.shape[1])
            for of_client, terms in zip(by_row, several):
                if terms:
                    mine = terms[place]
                    assert isinstance(mine, RowTerm)
                    assert mine.by_row is not None
                    of_client[: len(mine.by_row)] = mine.by_row
        joined.append(term._replace(by_row=by_row, has_B=has_B))
    return joined


def _hops(inputs: Inputs, rows: int | None = None) -> list[StoredFeatures]:
    """Returns the rows of all hops, or so many of them."""
    assert not isinstance(inputs, Neighbourhood | ItemBatch)
    return [require_stored(hop) if rows is None else require_stored(hop).to_dense()[:rows] for hop in inputs]


def _device_of(term: RowTerm) -> torch.device:
    return next(t.device for t in (term.by_row, *term.shared) if isinstance(t, Tensor))
