"""A clean CSR on disk from more edges than memory holds.

Every edge becomes two keys (`edge_keys`); keys go to files by their leading bits (`edges_to_buckets`), a bucket that
memory cannot hold is divided again, and each is sorted in memory (`buckets_to_rows`): the buckets in their order are
the CSR. All files are read and written front to back.
"""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.graph.graph import Cleaning
from shoal.storage.kernels.edge_keys import KEY_BYTES, KeyLayout
from shoal.storage.out_of_core.bucket_sort import (
    OF_A_SORT,
    Blocks,
    Edges,
    bucket_shift,
    buckets_in,
    buckets_to_rows,
    edges_to_buckets,
)
from shoal.storage.out_of_core.csr_files import INDICES, INDPTR
from shoal.storage.store.writer import Journal

CLEANING = "cleaning.json"
# Files of a finished CSR.
FILES = (INDPTR, INDICES, CLEANING)
PROGRESS = "progress.jsonl"
# The format of the scratch files. Those of another one are made again.
FORMAT = 2


def external_csr(
    blocks: Blocks, nodes: int, edges: int, folder: Path, memory_limit: int, where: str
) -> tuple[np.ndarray, np.ndarray, Cleaning]:
    """Makes edges undirected and simple as `clean_edges` does, with the result on disk.

    A killed call goes on where it was, losing the work on about `memory_limit` bytes of scratch, and ends with the same
    bytes; a finished one is not repeated. Only one process may work on a folder. Raises ShoalError: an end of an edge
    is not a node, the number of edges is another one, or the disk is too small.

    Args:
        blocks: `blocks(first)` gives the edges from number `first` on, integers `[2, e]` of any block size, in the
            same order every time; asked for a `first` other than 0 only after a kill, and then at the end of a block.
        nodes: Number of nodes N, at most 2^31 - 1.
        edges: Number of edges that the blocks hold, before cleaning.
        folder: Gets the result; scratch of 16 bytes an edge is next to it while this runs.
        memory_limit: Bytes of memory to use, without the given blocks, the interpreter, and memory maps.

    Returns:
        Memory maps indptr int64 `[N + 1]` and indices int32 `[E]`, and the counts of `clean_edges`.
    """
    if not 0 <= nodes < 2**31:
        raise ShoalError(where, f"{nodes} nodes; from 0 to 2^31 - 1 can be numbered")
    if not folder.exists():
        work = folder.with_name(folder.name + ".unfinished")
        try:
            _make(work, Edges(blocks, nodes, edges, where), memory_limit)
            os.replace(work, folder)
        except OSError as error:
            raise cannot_write(folder, error) from error
    return open_csr(folder)


def open_csr(folder: Path) -> tuple[np.ndarray, np.ndarray, Cleaning]:
    """Maps the result of `external_csr`. Raises ShoalError: a file is missing or damaged."""
    try:
        indptr = np.load(folder / INDPTR, mmap_mode="r", allow_pickle=False)
        # An empty file cannot be mapped.
        indices = np.load(folder / INDICES, mmap_mode="r" if indptr[-1] else None, allow_pickle=False)
        cleaning = Cleaning(**json.loads((folder / CLEANING).read_text()))
        if indptr[-1] != len(indices):
            raise ValueError("the row pointer does not fit the neighbours")
    except (OSError, EOFError, ValueError, TypeError, IndexError) as error:
        raise ShoalError(folder, f"damaged ({error}); delete the folder, and it is made again") from error
    return indptr, indices, cleaning


def _make(work: Path, edges: Edges, memory_limit: int) -> None:
    """Makes the CSR in a folder of its own, from where a killed call left it if that was of the same graph."""
    layout = KeyLayout(edges.nodes)
    capacity = max(4, memory_limit // (OF_A_SORT * KEY_BYTES))
    scratch = work / "buckets"
    asked = {"nodes": edges.nodes, "edges": edges.count, "format": FORMAT}

    work.mkdir(parents=True, exist_ok=True)
    journal = Journal(work / PROGRESS)
    if not journal.entries or {key: journal.entries[0].get(key) for key in asked} != asked:
        shutil.rmtree(work)
        scratch.mkdir(parents=True)
        journal = Journal(work / PROGRESS)
        journal.append({**asked, "shift": bucket_shift(layout.bits, 2 * edges.count, capacity)})
    # The shift is read, not computed again: a later call may have another limit.
    buckets = buckets_in(scratch, 0, layout.end, journal.entries[0]["shift"])

    if not any("distributed" in entry for entry in journal.entries):
        edges_to_buckets(edges, buckets, work, memory_limit, journal)
    counts = buckets_to_rows(buckets, layout, work, capacity, journal, edges.where)
    loops = next(entry["loops"] for entry in journal.entries if "distributed" in entry)
    cleaning = Cleaning(edges.count, loops, counts.given - counts.distinct, counts.indices - counts.distinct)
    with replacing(work / CLEANING) as unfinished:
        unfinished.write_text(json.dumps(asdict(cleaning)))
    shutil.rmtree(scratch)
    (work / PROGRESS).unlink()
