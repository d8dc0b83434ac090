"""The graphs, or the pairs, of a client, as a backbone reads them: all, some, or one of the parts of a split."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import (
    GraphBatch,
    Operator,
    PairBatch,
    kept_rows,
    matrix_of_all,
    operator_over,
    standalone,
)
from shoal.algorithms.models.inputs.structure_codes import CODES, structure_codes
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.shards.view import View


@dataclass(frozen=True)
class ClientGraphs:
    """Cuts batches of whole graphs from a client's shard; what is not in a batch is not copied.

    Attributes:
        data: The client's shard, of several graphs behind one another.
        ptr: As `GraphBatch.first`.
        hops: Hops that the backbone reads.
        coupled: The backbone, if it passes messages along edges.
        prompted: A prompt stands before it, which reads the plain adjacency whatever the backbone multiplies by.
    """

    data: View
    ptr: Tensor
    hops: tuple[int, ...]
    coupled: Coupled | None
    prompted: bool = False

    one_pass: ClassVar[bool] = False

    @property
    def operator(self) -> Operator:
        """The kind of the matrices of a coupled backbone, or of its prompt."""
        assert self.coupled is not None
        return "sum" if self.prompted else self.coupled.operator

    def all(self) -> GraphBatch:
        """Returns all graphs, in the map or kept on the host."""
        matrix = None if self.coupled is None else matrix_of_all(self.data, self.operator)
        hops = [self.data.whole(k) for k in self.hops]
        return GraphBatch(hops, self._layers(matrix), self.ptr, self._codes())

    def some(self, graphs: Tensor) -> GraphBatch:
        """Selects graphs in the order asked for, numbers int64 `[g]`: a batch of one step."""
        rows, matrix = self.data.rows_of(graphs), None
        if self.coupled is not None:
            matrix = matrix_of_all(self.data, self.operator).diagonal_blocks(self.ptr, graphs)
        return self._batch(graphs, rows, matrix, [self.data.rows(k, rows) for k in self.hops])

    def part(self, name: str) -> GraphBatch:
        """Selects the graphs of `train`, `val` or `test`, kept on the host while there is room."""
        data, graphs, matrix = self.data, getattr(self.data, name), None
        if len(graphs) == data.items:
            return self.all()
        if self.coupled is not None:
            matrix = data.cache((name, self.operator), partial(self._matrix, graphs))
        rows = data.rows_of(graphs)
        hops = [data.cache((name, k), partial(kept_rows, data, k, rows)) for k in self.hops]
        return self._batch(graphs, rows, matrix, hops)

    def _batch(self, graphs: Tensor, rows: Tensor, matrix: SparseMatrix | None, hops: list[Features]) -> GraphBatch:
        ends = (self.ptr[graphs + 1] - self.ptr[graphs]).cumsum(0)
        first = torch.cat([ends.new_zeros(1), ends])
        return GraphBatch(hops, self._layers(matrix), first, self._codes(rows))

    def successive(self, rows: int) -> Iterator[GraphBatch]:
        """Yields all graphs in their order: in one batch for a coupled backbone, else in batches of so many rows."""
        if self.coupled is not None:
            yield self.all()
            return
        first, start = self.ptr.tolist(), 0
        while start < self.data.items:
            stop = max(start + 1, bisect_right(first, first[start] + rows) - 1)
            hops = [self.data.block(k, first[start], first[stop]) for k in self.hops]
            yield GraphBatch(hops, (), self.ptr[start : stop + 1] - first[start])
            start = stop

    def standalone(self, x_NF: Tensor) -> GraphBatch:
        """Makes graphs of one node without a code, all of whose neighbours have the node's features at every hop."""
        first = torch.arange(len(x_NF) + 1, device=x_NF.device)
        if self.coupled is None:
            return GraphBatch([x_NF] * len(self.hops), (), first)
        operators = standalone(x_NF, self.operator, self.coupled.depth).operators
        codes_NQ = None if self.coupled.structure is None else x_NF.new_zeros(len(x_NF), CODES)
        return GraphBatch([x_NF], operators, first, codes_NQ)

    def _codes(self, rows: Tensor | None = None) -> Tensor | None:
        """Computes codes of some rows or of all, for a backbone that reads them; the host keeps those of all."""
        if self.coupled is None or self.coupled.structure is None:
            return None
        codes_NQ: Tensor = self.data.cache("structure codes", lambda: structure_codes(self.data.adjacency, self.ptr))
        return codes_NQ if rows is None else codes_NQ.index_select(0, rows)

    def _layers(self, matrix: SparseMatrix | None) -> tuple[SparseMatrix, ...]:
        return () if self.coupled is None or matrix is None else (matrix,) * self.coupled.depth

    def _matrix(self, graphs: Tensor) -> SparseMatrix:
        """Builds the matrix of some graphs from their edges: that of all graphs need not be kept for it."""
        if self.operator == "edges":
            return matrix_of_all(self.data, "edges").diagonal_blocks(self.ptr, graphs)
        csr = self.data.adjacency
        cut = SparseMatrix(csr, csr).diagonal_blocks(self.ptr, graphs)
        if self.operator == "sum":
            return cut
        starts, columns, _ = (part.cpu().numpy() for part in cut.parts())
        return operator_over(self.operator, starts, columns).to(self.data.device)


@dataclass(frozen=True)
class ClientPairs:
    """Makes batches of pairs of a client's rows.

    A coupled backbone reads the whole graph, without the edges that are held out, a decoupled one the rows of a batch's
    pairs, each once, in its hops. `ends` has both rows of every pair, int64 `[M, 2]`.
    """

    data: View
    ends: Tensor
    hops: tuple[int, ...]
    coupled: Coupled | None

    @property
    def one_pass(self) -> bool:
        """Whether a pass over some items costs nearly what one over all does."""
        return self.coupled is not None

    def all(self) -> PairBatch:
        """Returns all pairs, of nodes in the map."""
        return self._of_all_nodes(self.ends)

    def some(self, pairs: Tensor) -> PairBatch:
        """Selects pairs in the order asked for, numbers int64 `[m]`: a batch of one step."""
        ends = self.ends[pairs]
        if self.coupled is not None:
            return self._of_all_nodes(ends)
        rows, places = torch.unique(ends, return_inverse=True)
        return PairBatch([self.data.rows(k, rows) for k in self.hops], (), places)

    def part(self, name: str) -> PairBatch:
        """Selects the pairs of `train`, `val` or `test`; the host may keep rows of a decoupled backbone."""
        pairs: Tensor = getattr(self.data, name)
        if self.coupled is not None:
            return self._of_all_nodes(self.data.cache((name, "ends"), lambda: self.ends[pairs]))
        rows, places = self.data.cache(
            (name, "rows of pairs"), lambda: torch.unique(self.ends[pairs], return_inverse=True)
        )
        if len(rows) == self.data.nodes:
            return self._of_all_nodes(places)
        hops = [self.data.cache((name, k), partial(kept_rows, self.data, k, rows)) for k in self.hops]
        return PairBatch(hops, (), places)

    def successive(self, rows: int) -> Iterator[PairBatch]:
        """Yields all pairs in their order: in one batch for a coupled backbone, else in batches of so many ends."""
        if self.coupled is not None:
            yield self.all()
            return
        step = max(rows // 2, 1)
        # A client without pairs answers, too: for none.
        for start in range(0, max(len(self.ends), 1), step):
            yield self.some(torch.arange(start, min(start + step, len(self.ends)), device=self.ends.device))

    def standalone(self, x_NF: Tensor) -> PairBatch:
        """Makes pairs of a node with itself, all of whose neighbours have the node's features at every hop."""
        ends = torch.arange(len(x_NF), device=x_NF.device)[:, None].expand(-1, 2)
        if self.coupled is None:
            return PairBatch([x_NF] * len(self.hops), (), ends)
        return PairBatch([x_NF], standalone(x_NF, self.coupled.operator, self.coupled.depth).operators, ends)

    def _of_all_nodes(self, ends: Tensor) -> PairBatch:
        operators: tuple[SparseMatrix, ...] = ()
        if self.coupled is not None:
            operators = (matrix_of_all(self.data, self.coupled.operator),) * self.coupled.depth
        return PairBatch([self.data.whole(k) for k in self.hops], operators, ends)
