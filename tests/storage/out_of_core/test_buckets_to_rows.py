"""Rows of keys by hand, with memory for all or for few of them; buckets that must be divided, against clean_edges."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.graph.graph import clean_edges
from shoal.storage.kernels.edge_keys import KeyLayout
from shoal.storage.out_of_core.bucket_sort import BucketWriter, Counts, buckets_in, buckets_to_rows
from shoal.storage.out_of_core.csr_files import INDICES, INDPTR
from shoal.storage.out_of_core.external_csr import external_csr
from shoal.storage.store.writer import Journal

BlocksOf = Callable[[np.ndarray, int], Callable[[int], Iterator[np.ndarray]]]


@pytest.mark.parametrize("capacity", [4, 100])
@pytest.mark.parametrize("shift", [1, 2, 3, 4, 5])
def test_rows_by_hand(shift: int, capacity: int, fast_path: Path) -> None:
    """Nodes 0-1 joined three times, once the other way, and 1-2 once; node 3 has no neighbour."""
    layout = KeyLayout(4)
    given = [(0, 1), (0, 1), (1, 0), (2, 1)]
    keys = [a << 3 | b << 1 for a, b in given] + [b << 3 | a << 1 | 1 for a, b in given]
    buckets = buckets_in(fast_path, 0, layout.end, shift)
    with BucketWriter(buckets, [0] * len(buckets)) as writer:
        writer.write(np.array(keys, dtype=np.uint64))
    journal = Journal(fast_path / "progress.jsonl")
    journal.append({"distributed": True, "loops": 0})
    counts = buckets_to_rows(buckets, layout, fast_path, capacity, journal, "here")
    assert counts == Counts(indices=4, given=4, distinct=3)
    assert np.load(fast_path / INDPTR).tolist() == [0, 1, 3, 4, 4]
    assert np.load(fast_path / INDICES).tolist() == [1, 0, 2, 1]
    assert {path.name for path in fast_path.iterdir()} == {INDPTR, INDICES, "progress.jsonl"}


def test_a_star_and_a_pair_repeated_more_often_than_memory_holds(blocks_of: BlocksOf, fast_path: Path) -> None:
    star = np.stack([np.zeros(3000, dtype=np.int64), np.arange(1, 3001)])
    pair = np.tile([[3000], [2999]], 5000)
    edges = np.concatenate([star, pair, pair[::-1]], axis=1)
    found = external_csr(blocks_of(edges, 777), 3001, edges.shape[1], fast_path / "csr", 4000, "test")
    wanted = clean_edges(edges, 3001, "test")
    assert all(np.array_equal(a, b) for a, b in zip(found[:2], wanted[:2]))
    assert found[2] == wanted[2]
