"""Hops of a client that are not on disk, or are of labelled rows alone: computed from its shard when they are read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.storage.graph.rows import Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.arrow_file import MappedFile
from shoal.storage.shards.hops import hops_of, labelled_graph
from shoal.storage.shards.shard import Shard, some_rows
from shoal.storage.shards.split import Split


@dataclass(frozen=True)
class ComputedHops:
    """Hops of what a client sees of a shard, to the bits that `prepare` would write.

    Attributes:
        seen: Rows of the shard that the client sees, `[N]`; None: all.
        row: Rows of the shard whose hops are on disk, ascending, `[n]`.
        on_disk: Hop 1 to K of these, each `[n, F]`.
        relations: How many the graph has, where hops are of each.
    """

    shard: Shard
    propagation: PropagationOptions
    seen: np.ndarray | None
    row: np.ndarray
    on_disk: Sequence[Rows]
    relations: int = 0

    def all(self) -> list[Rows]:
        """Computes hop 1 to K of all rows that the client sees, each `[N, F]`, dense or sparse."""
        all_rows = hops_of(self.shard, self.propagation, self.relations)
        return all_rows if self.seen is None else [x[self.seen] for x in all_rows]

    def place_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Finds the places in `row` of rows that the client sees; None: one of them is not on disk."""
        wanted = rows if self.seen is None else self.seen[rows]
        place = np.searchsorted(self.row, wanted)
        is_on_disk = len(self.on_disk) > 0 and np.array_equal(self.row[place[place < len(self.row)]], wanted)
        return place if is_on_disk else None


def open_computed(
    shard: Shard, split: Split, propagation: PropagationOptions, file: MappedFile | None, relations: int = 0
) -> tuple[Shard, Split, ComputedHops]:
    """Opens what a client sees of a shard and its split, with its hops, some rows of which may be in a file."""
    row, on_disk = np.empty(0, dtype=np.int64), list[Rows]()
    if file is not None:
        row, on_disk = file.primitive("row"), [file.features(name) for name in file.names[1:]]
    if propagation.rows == "all":
        return shard, split, ComputedHops(shard, propagation, None, row, on_disk, relations)
    part, weight = labelled_graph(shard)
    edges = part.indptr.astype(np.int32), part.indices.astype(np.int32)
    seen, parts = some_rows(shard, split, part.node, *edges, shard.x[part.node], weight)
    return seen, parts, ComputedHops(shard, propagation, part.node, row, on_disk, relations)
