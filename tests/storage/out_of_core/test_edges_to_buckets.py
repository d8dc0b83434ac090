"""Keys in their files by hand; every fault of the edges is one line; work goes on after the last journal entry."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.errors import ShoalError
from shoal.storage.kernels.edge_keys import KeyLayout
from shoal.storage.out_of_core.bucket_sort import Edges, buckets_in, edges_to_buckets
from shoal.storage.out_of_core.external_csr import external_csr
from shoal.storage.store.writer import Journal

BlocksOf = Callable[[np.ndarray, int], Callable[[int], Iterator[np.ndarray]]]
EDGES = np.array([[0, 1, 2, 3], [1, 3, 2, 0]])


def key(source: int, target: int, reverse: int) -> int:
    """Four nodes: two bits for a source, two for a target, one for the direction."""
    return source << 3 | target << 1 | reverse


# By the first bit of the source, in the order of the edges; 2-2 is a loop.
LOW = [key(0, 1, 0), key(1, 0, 1), key(1, 3, 0), key(0, 3, 1)]
HIGH = [key(3, 1, 1), key(3, 0, 0)]


@pytest.mark.parametrize("memory_limit", [1, 1 << 20])
@pytest.mark.parametrize("block", [1, 3, 4])
def test_keys_by_hand(memory_limit: int, block: int, blocks_of: BlocksOf, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "progress.jsonl")
    journal.append({"nodes": 4, "edges": 4})
    buckets = buckets_in(tmp_path, 0, KeyLayout(4).end, 4)
    edges_to_buckets(Edges(blocks_of(EDGES, block), 4, 4, "here"), buckets, tmp_path, memory_limit, journal)
    assert [bucket.read().tolist() for bucket in buckets] == [LOW, HIGH]
    assert journal.entries[-1] == {"distributed": True, "loops": 1}
    assert (len(journal.entries) > 2) == (memory_limit == 1)


def test_goes_on_after_the_last_journal_entry(blocks_of: BlocksOf, tmp_path: Path) -> None:
    """What was written after the entry is cut off, and its edges are read again."""
    journal = Journal(tmp_path / "progress.jsonl")
    journal.append({"nodes": 4, "edges": 4})
    journal.append({"edges": 2, "loops": 0, "bytes": [24, 8]})
    buckets = buckets_in(tmp_path, 0, KeyLayout(4).end, 4)
    np.array(LOW, dtype=np.uint64).tofile(buckets[0].path)
    np.array([*HIGH, 31], dtype=np.uint64).tofile(buckets[1].path)
    edges_to_buckets(Edges(blocks_of(EDGES, 1), 4, 4, "here"), buckets, tmp_path, 1 << 20, journal)
    assert [bucket.read().tolist() for bucket in buckets] == [LOW, HIGH]
    assert journal.entries[-1] == {"distributed": True, "loops": 1}


@pytest.mark.parametrize(
    ("edges", "announced", "message"),
    [
        (np.array([[0, 0], [1, 4]]), 2, r"^here: edge_index names node 4, but the 4 nodes count from 0$"),
        (np.array([[-1], [0]]), 1, r"^here: edge_index names node -1, but"),
        (np.array([[2**40], [0]]), 1, r"^here: edge_index names node 1099511627776, but"),
        (np.array([[2**64 - 1], [0]], dtype=np.uint64), 1, r"^here: edge_index names node 18446744073709551615, but"),
        (np.array([[0], [1]]), 2, r"^here: 1 edges, but 2 are announced"),
        (np.array([[0], [1]]), 0, r"^here: 1 edges, but 0 are announced"),
        (np.array([[0.0], [1.0]]), 1, r"^here: edge_index must be integers .* found float64"),
    ],
)
def test_refuses(edges: np.ndarray, announced: int, message: str, blocks_of: BlocksOf, tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=message):
        external_csr(blocks_of(edges, 8), 4, announced, tmp_path / "csr", 1 << 20, "here")
    assert not (tmp_path / "csr").exists()


def test_refuses_more_than_the_disk_holds(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match="the edges being sorted need"):
        external_csr(lambda first: (), 4, 2**60, tmp_path / "csr", 1 << 30, "here")
