"""The first step of a CSR on disk: the keys of all edges go to the files of their buckets."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.bucket_files import Bucket, BucketWriter
from storage.disk import require_disk
from storage.edge_keys import KEY_BYTES, KeyLayout, as_signed, keys_of
from storage.errors import ShoalError
from storage.journal import Journal
from storage.watch import step

Blocks = Callable[[int], Iterable[np.ndarray]]

MAX_SLICE = 1 << 22


@dataclass(frozen=True)
class Edges:
    """The edges that a CSR is made of; attributes are arguments of `external_csr`."""

    blocks: Blocks
    nodes: int
    count: int
    where: str


def edges_to_buckets(edges: Edges, buckets: list[Bucket], work: Path, memory_limit: int, journal: Journal) -> None:
    """Writes both keys of every edge that is no loop, and notes in the journal that it is done, and the loops.

    Args:
        edges: The edges; those that the journal has are not read again.
        buckets: For all keys of the graph.
        work: Folder of the CSR in the making.
        memory_limit: Bytes of memory to use; about as many bytes of scratch are written between two journal entries.
        journal: Its first entry is there.

    Raises:
        ShoalError: An end of an edge is not a node, the number of edges is another one, or the disk is too small.
    """
    layout = KeyLayout(edges.nodes)
    start: dict[str, Any] = journal.entries[-1] if len(journal.entries) > 1 else {"edges": 0, "loops": 0}
    read, loops = int(start["edges"]), int(start["loops"])
    require_disk(work, 2 * KEY_BYTES * (edges.count - read), "the edges being sorted")
    # An edge has two keys, and both are in memory twice while they are grouped by bucket.
    slice_edges = min(MAX_SLICE, max(1, memory_limit // (8 * KEY_BYTES)))
    writer = BucketWriter(buckets, start.get("bytes", [0] * len(buckets)))
    keys = np.empty(2 * slice_edges, dtype=np.uint64)
    with writer, step(f"{edges.where}: edges", edges.count, "edges", read) as advance:
        for block in edges.blocks(read):
            _check_form(block, edges.where)
            for first in range(0, block.shape[1], slice_edges):
                source, target = block[:, first : first + slice_edges]
                found, wrong = keys_of(as_signed(source), as_signed(target), edges.nodes, layout.row_bits, keys)
                if wrong >= 0:
                    _refuse(source[wrong], target[wrong], edges)
                loops += len(source) - found // 2
                writer.write(keys[:found])
            read += block.shape[1]
            advance(block.shape[1])
            if writer.unsaved >= memory_limit:
                journal.append({"edges": read, "loops": loops, "bytes": writer.save()})
        if read != edges.count:
            raise ShoalError(f"{edges.where}: {read} edges, but {edges.count} are announced; get the file again")
        writer.save()
    journal.append({"distributed": True, "loops": loops})


def _check_form(block: np.ndarray, where: str) -> None:
    if block.ndim != 2 or len(block) != 2 or block.dtype.kind not in "iu":
        found = f"{block.dtype} {list(block.shape)}"
        raise ShoalError(f"{where}: edge_index must be integers of shape [2, E], found {found}")


def _refuse(source: np.integer, target: np.integer, edges: Edges) -> None:
    outside = next(int(end) for end in (source, target) if not 0 <= end < edges.nodes)
    raise ShoalError(f"{edges.where}: edge_index names node {outside}, but the {edges.nodes} nodes count from 0")
