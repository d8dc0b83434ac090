"""The pairs of a client, as a backbone reads them that answers for pairs: all, some, or one of the parts of a split."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import PairBatch, kept_rows, matrix_of_all, standalone
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.store.view import View


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
        """All pairs, of nodes in the map."""
        return self._of_all_nodes(self.ends)

    def some(self, pairs: Tensor) -> PairBatch:
        """Some pairs in the order asked for, numbers int64 `[m]`: a batch of one step."""
        ends = self.ends[pairs]
        if self.coupled is not None:
            return self._of_all_nodes(ends)
        rows, places = torch.unique(ends, return_inverse=True)
        return PairBatch([self.data.rows(k, rows) for k in self.hops], (), places)

    def part(self, name: str) -> PairBatch:
        """The pairs of `train`, `val` or `test`; rows of a decoupled backbone are kept on the host if there is room."""
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
        """All pairs in their order: in one batch for a coupled backbone, else in batches of at most so many ends."""
        if self.coupled is not None:
            yield self.all()
            return
        step = max(rows // 2, 1)
        # A client without pairs answers, too: for none.
        for start in range(0, max(len(self.ends), 1), step):
            yield self.some(torch.arange(start, min(start + step, len(self.ends)), device=self.ends.device))

    def standalone(self, x_NF: Tensor) -> PairBatch:
        """Pairs of a node with itself, all of whose neighbours, at every hop, have the features of the node."""
        ends = torch.arange(len(x_NF), device=x_NF.device)[:, None].expand(-1, 2)
        if self.coupled is None:
            return PairBatch([x_NF] * len(self.hops), (), ends)
        return PairBatch([x_NF], standalone(x_NF, self.coupled.operator, self.coupled.depth).operators, ends)

    def _of_all_nodes(self, ends: Tensor) -> PairBatch:
        operators: tuple[SparseMatrix, ...] = ()
        if self.coupled is not None:
            operators = (matrix_of_all(self.data, self.coupled.operator),) * self.coupled.depth
        return PairBatch([self.data.whole(k) for k in self.hops], operators, ends)
