"""external_csr against clean_edges, with memory for a handful of edges; killed and continued."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.shards import flip

from shoal.storage.graph.graph import clean_edges
from shoal.storage.kernels.edge_keys import KeyLayout
from shoal.storage.out_of_core.bucket_sort import MAX_BUCKETS, bucket_shift
from shoal.storage.out_of_core.csr_files import INDICES, INDPTR, CsrWriter
from shoal.storage.out_of_core.external_csr import external_csr, open_csr
from shoal.storage.out_of_core.npy_rows import HEADER_BYTES, write_rows

# A tiny limit of memory means thousands of syncs, which a disk would take minutes for.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def fast_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        yield Path(folder)


def blocks_of(edges: np.ndarray, size: int) -> Callable[[int], Iterator[np.ndarray]]:
    """Edges `[2, E]` in blocks of a size, from any number on."""
    return lambda first: (edges[:, at : at + size] for at in range(first, edges.shape[1], size))


def assert_equal(found: tuple, edges: np.ndarray, nodes: int) -> None:
    """Row pointer, neighbours and counts are those of `clean_edges`."""
    wanted = clean_edges(edges, nodes, "test")
    assert (found[0].dtype, found[1].dtype) == (np.int64, np.int32)
    assert all(np.array_equal(a, b) for a, b in zip(found[:2], wanted[:2]))
    assert found[2] == wanted[2]


DTYPES = st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"])
LIMITS = st.sampled_from([1, 200, 1000, 1 << 20])


@settings(max_examples=60, deadline=None)
@given(nodes=st.integers(0, 40), dtype=DTYPES, limit=LIMITS, size=st.integers(1, 50), data=st.data())
def test_whatever_the_memory(nodes, dtype, limit, size, data) -> None:
    node = st.integers(0, max(nodes - 1, 0))
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=120 if nodes else 0))
    edges = np.array(pairs, dtype=dtype).reshape(-1, 2).T
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        path = Path(folder) / "csr"
        assert_equal(external_csr(blocks_of(edges, size), nodes, len(pairs), path, limit, "test"), edges, nodes)
        assert [entry.name for entry in Path(folder).iterdir()] == ["csr"]
        assert sorted(entry.name for entry in path.iterdir()) == ["cleaning.json", "indices.npy", "indptr.npy"]


@pytest.mark.parametrize("name", [INDPTR, INDICES])
def test_a_finished_one_is_not_made_again(name: str, tmp_path: Path) -> None:
    edges, folder = np.array([[0, 1], [1, 2]]), tmp_path / "csr"
    external_csr(blocks_of(edges, 1), 3, 2, folder, 1 << 20, "test")
    assert_equal(external_csr(lambda first: pytest.fail("made again"), 3, 2, folder, 1 << 20, "test"), edges, 3)
    (folder / name).write_bytes((folder / name).read_bytes()[:-4])
    with refused(says="delete the folder"):
        open_csr(folder)


# Each child gets a little further, then kills itself at a sync or in the middle of the edges.
KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from shoal.storage.out_of_core.external_csr import external_csr

folder, at_sync, at_block = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
edges = np.random.default_rng(0).integers(0, 900, (2, 6000))
edges[:, 4000:] = edges[::-1, :2000]
left = {"sync": 0, "block": 0}

def die_at_last(what):
    left[what] -= 1
    if left[what] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def blocks(first):
    for at in range(first, 6000, 250):
        yield edges[:, at : at + 250]
        die_at_last("block")

# what numba compiles is inherited by the children
external_csr(blocks, 900, 6000, folder.with_name("first"), 8000, "test")
left = {"sync": at_sync, "block": at_block}
sync = os.fsync
def fsync(file):
    die_at_last("sync")
    sync(file)
os.fsync = fsync

children = 0
while True:
    child = os.fork()
    if child == 0:
        external_csr(blocks, 900, 6000, folder, 8000, "test")
        os._exit(0)
    children += 1
    status = os.waitpid(child, 0)[1]
    if status == 0:
        print(children)
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    assert children < 500
"""


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(("sync", "block", "kills"), [(0, 0, 0), (317, 0, 5), (750, 0, 2), (0, 9, 2), (400, 5, 5)])
def test_killed_ends_with_equal_bytes(sync: int, block: int, kills: int, fast_path: Path) -> None:
    killed, whole = fast_path / "csr", fast_path / "whole"
    command = [sys.executable, "-c", KILLED, str(killed), str(sync), str(block)]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) > kills
    edges = np.random.default_rng(0).integers(0, 900, (2, 6000))
    edges[:, 4000:] = edges[::-1, :2000]
    assert_equal(open_csr(killed), edges, 900)
    external_csr(blocks_of(edges, 6000), 900, 6000, whole, 1 << 24, "test")
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }


@pytest.mark.parametrize("sorts", [False, True])
def test_a_damaged_bucket_is_not_sorted(sorts: bool, fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while edges are read, or while their buckets are sorted."""
    edges = np.random.default_rng(0).integers(0, 900, (2, 6000))

    def stops(first: int) -> Iterator[np.ndarray]:
        yield from blocks_of(edges[:, :5000], 250)(first)
        raise KeyboardInterrupt

    def stop(writer: CsrWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CsrWriter, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        external_csr(blocks_of(edges, 250) if sorts else stops, 900, 6000, fast_path / "csr", 8000, "test")
    monkeypatch.undo()
    bucket = max((fast_path / "csr.unfinished" / "buckets").iterdir())
    flip(bucket)
    with refused(bucket, says="is not as it was written"):
        external_csr(blocks_of(edges, 250), 900, 6000, fast_path / "csr", 8000, "test")


def test_a_star_and_a_pair_repeated_more_often_than_memory_holds(fast_path: Path) -> None:
    star = np.stack([np.zeros(3000, dtype=np.int64), np.arange(1, 3001)])
    pair = np.tile([[3000], [2999]], 5000)
    edges = np.concatenate([star, pair, pair[::-1]], axis=1)
    found = external_csr(blocks_of(edges, 777), 3001, edges.shape[1], fast_path / "csr", 4000, "test")
    assert_equal(found, edges, 3001)


@given(bits=st.integers(2, 63), keys=st.integers(0, 1 << 40), capacity=st.integers(4, 1 << 30))
def test_a_division_makes_progress_and_few_files(bits: int, keys: int, capacity: int) -> None:
    shift = bucket_shift(bits, keys, capacity)
    assert 1 <= shift < bits
    assert 1 << (bits - shift) <= MAX_BUCKETS


@pytest.mark.parametrize(
    ("edges", "announced", "says"),
    [
        ([[0, 0], [1, 4]], 2, "names node 4, but the 4 nodes"),
        ([[-1], [0]], 1, "names node -1"),
        ([[2**40], [0]], 1, "names node 1099511627776"),
        (np.array([[2**64 - 1], [0]], dtype=np.uint64), 1, "names node 18446744073709551615"),
        ([[0], [1]], 2, "1 edges, but 2 are announced"),
        ([[0], [1]], 0, "1 edges, but 0 are announced"),
        ([[0.0], [1.0]], 1, "found float64"),
    ],
)
def test_refuses(edges: Any, announced: int, says: str, tmp_path: Path) -> None:
    with refused("here", says=says):
        external_csr(blocks_of(np.array(edges), 8), 4, announced, tmp_path / "csr", 1 << 20, "here")
    assert not (tmp_path / "csr").exists()


X = np.arange(60, dtype=np.float32).reshape(20, 3)


def rows(size: int, until: int = 20) -> Callable[[int], Iterator[np.ndarray]]:
    return lambda first: (X[at : min(at + size, until)] for at in range(first, until, size))


@pytest.mark.parametrize("size", [1, 7, 20])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_is_what_numpy_writes(size: int, dtype: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "x.npy", X.shape, np.dtype(dtype), rows(size), 24, "test")
    np.save(tmp_path / "y.npy", X.astype(dtype))
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "y.npy").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.npy"]
    with refused("there", says="17 rows, but 20 are announced"):
        write_rows(tmp_path / "few.npy", X.shape, X.dtype, rows(4, until=17), 48, "there")
    assert not (tmp_path / "few.npy").exists()


def test_goes_on_after_the_last_commit(tmp_path: Path) -> None:
    asked = []

    def breaks(first: int) -> Iterator[np.ndarray]:
        asked.append(first)
        for at, block in zip(range(first, 20, 2), rows(2)(first)):
            yield block
            if at == 8 and len(asked) == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "x.npy", X.shape, X.dtype, breaks, 48, "test")
    assert not (tmp_path / "x.npy").exists()
    write_rows(tmp_path / "x.npy", X.shape, X.dtype, breaks, 48, "test")
    assert asked == [0, 8]
    assert np.array_equal(np.load(tmp_path / "x.npy"), X)


def test_entries_that_do_not_count_are_cut_off(tmp_path: Path) -> None:
    def pairs(*ends: tuple[int, int]) -> np.ndarray:
        return np.array([source << 2 | target for source, target in ends], dtype=np.uint64)

    with CsrWriter(tmp_path, KeyLayout(4), 0, 100) as csr:
        csr.append(pairs((0, 1)), 0, 2)
        csr.save()
        csr.append(pairs((2, 0), (3, 0), (3, 1)), 2, 4)
    with CsrWriter(tmp_path, KeyLayout(4), 1, 100) as csr:
        csr.append(pairs((2, 3)), 2, 4)
        csr.finish()
    assert np.load(tmp_path / INDPTR).tolist() == [0, 1, 1, 2, 2]
    assert np.load(tmp_path / INDICES).tolist() == [1, 3]
    assert (tmp_path / INDICES).stat().st_size == HEADER_BYTES + 4 * 2
