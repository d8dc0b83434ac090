import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from torch import Tensor

from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import digest
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.graph.induced import Induced
from shoal.storage.store.cache import apart
from shoal.storage.store.shard import Shard, open_shard, write_shard
from shoal.storage.store.split import Split
from shoal.storage.store.store import Store, hops_path, shard_path, split_path
from shoal.storage.store.view import Cache, View

SPLIT = "stratified-50-20-30-seed0"


def view_of(store: Store, client: int = 0, cache: Cache | None = None) -> View:
    propagation = next(iter(store.manifest.hops))
    shard, split, hops = store.shard(client), store.split(SPLIT, client), store.hops(propagation, client)
    return View(("test", client), shard, split, hops, 2, cache or Cache(2**20))


def lies_in_map_of(path: Path, tensor: Tensor) -> bool:
    """Whether the kernel says that the memory of a tensor is a map of the file."""
    start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            low, high = (int(address, 16) for address in line.split()[0].split("-"))
            if low <= start and end <= high:
                return True
    return False


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tensors_lie_in_the_files_and_never_change_them(make_store: Callable[..., Store], dtype: str) -> None:
    store = make_store(dtype)
    shard = store.path / shard_path(0)
    hops = store.path / hops_path(next(iter(store.manifest.hops)), 0)
    before = {path: digest(path) for path in (shard, hops)}
    view = view_of(store)
    crow, col = view.adjacency.crow_indices(), view.adjacency.col_indices()
    in_shard = [view.x, crow, col]
    in_hops = [view.hop(1), view.hop(2)]
    assert view.x.dtype == view.hop(2).dtype == getattr(torch, dtype)
    assert crow.dtype == col.dtype == torch.int32
    assert all(lies_in_map_of(shard, tensor) for tensor in in_shard)
    assert all(lies_in_map_of(hops, tensor) for tensor in in_hops)
    assert not lies_in_map_of(shard, view.label)

    values = [tensor.clone() for tensor in (*in_shard, *in_hops)]
    for tensor in (*in_shard, *in_hops):
        tensor.fill_(3)
        assert (tensor == 3).all()
    assert {path: digest(path) for path in before} == before
    again = view_of(store)
    fresh = again.x, again.adjacency.crow_indices(), again.adjacency.col_indices(), again.hop(1), again.hop(2)
    assert all(torch.equal(a, b) for a, b in zip(fresh, values))


@pytest.mark.parametrize("client", [0, 1, 2])
def test_adjacency_degree_label_equal_the_whole_graph_sliced(
    make_store: Callable[..., Store], make_graph: Callable[..., Graph], client: int
) -> None:
    graph, store = make_graph(0, 30, 0.2), make_store()
    view, split = view_of(store, client), store.split(SPLIT, client)
    ones = sp.csr_array((np.ones(graph.entries), graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))
    expected = ones[view.node][:, view.node].toarray()
    np.testing.assert_array_equal(view.adjacency.to_dense().numpy(), expected)
    np.testing.assert_array_equal(view.degree.numpy(), expected.sum(1) + 1)
    np.testing.assert_array_equal(view.label.numpy(), graph.y[view.node])
    np.testing.assert_array_equal(view.x.numpy(), graph.x[view.node])
    assert view.degree.dtype == view.adjacency.dtype == torch.float32
    assert view.label.dtype == view.train.dtype == torch.int64
    assert (view.client, view.nodes, view.features, view.entries) == (client, len(expected), 3, expected.sum())
    torch.testing.assert_close(view.adjacency @ view.x, view.adjacency.to_dense() @ view.x)
    for name in ("train", "val", "test"):
        assert getattr(view, name).tolist() == getattr(split, name).tolist()
        assert not lies_in_map_of(store.path / split_path(SPLIT, client), getattr(view, name))


def test_views_share_ones_and_a_memo(make_store: Callable[..., Store]) -> None:
    store, cache = make_store(), Cache(2**20)
    first, second = view_of(store, 0, cache), view_of(store, 1, cache)
    assert view_of(store, 0, cache).degree is first.degree
    assert second.degree.shape != first.degree.shape
    large, small = first.adjacency.values(), second.adjacency.values()
    assert large.data_ptr() == small.data_ptr()
    assert cache.bytes == first.degree.nbytes + second.degree.nbytes
    # Of a matrix, numbers of its own count, and those that are shared do not.
    size = {"size": (2, 2), "check_invariants": False}
    for values, weight in ((torch.rand(2), 3 * 8 + 2 * 8 + 2 * 4), (cache.ones(2), 0)):
        before = cache.bytes
        cache.get(str(weight), lambda values=values: torch.sparse_csr_tensor([0, 1, 2], [1, 0], values, **size))
        assert cache.bytes - before == weight


class Builds:
    """Tensors of 40 bytes, and the order in which they were asked for."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.built = cache, ""

    def get(self, keys: str) -> None:
        """Asks for each in a turn of its own."""
        for key in keys:
            self.cache.begin_turn()
            self.cache.get(key, partial(self.build, key))

    def build(self, key: str) -> tuple[Tensor, list[Tensor]]:
        self.built += key
        return torch.zeros(4), [torch.zeros(3, dtype=torch.int64)]


def test_what_nobody_asks_for_any_more_makes_room() -> None:
    builds = Builds(Cache(100))
    for asked, built in (
        ("ababa", "ab"),
        # b, which was used longest ago, goes, so that the newest one is kept.
        ("cac", "abc"),
        # c goes, which passed; a was used after b was asked for.
        ("ba", "abcb"),
    ):
        builds.get(asked)
        assert (builds.built, builds.cache.bytes) == (built, 80)
    # The newest stays whatever its size.
    builds = Builds(Cache(0))
    builds.get("aab")
    assert (builds.built, builds.cache.bytes) == ("ab", 40)


def test_who_is_visited_in_turn_finds_what_fits() -> None:
    """Ten of 40 bytes in turn, where 320 bytes are room for eight: one or two of them pass."""
    builds = Builds(Cache(320))
    builds.get("abcdefghij" * 3)
    before = len(builds.built)
    for _ in range(4):
        builds.get("abcdefghij")
        assert builds.cache.bytes <= 320
    assert len(builds.built) - before == 4 * 3
    # Others take the place of those who were visited before.
    builds.get("klmnopq" * 3)
    before = len(builds.built)
    builds.get("klmnopq")
    assert (len(builds.built), builds.cache.bytes) == (before, 320)


def test_twice_in_a_turn_is_once() -> None:
    """Twelve in three turns, each asked for at the start and at the end of its own; there is room for eight."""
    builds = Builds(Cache(320))
    for _ in range(6):
        before = len(builds.built)
        for together in ("abcd", "efgh", "ijkl"):
            builds.cache.begin_turn()
            for key in together + together[::-1]:
                builds.cache.get(key, partial(builds.build, key))
    # Seven stay, of five one passes at a time; a cache without parts would build all twelve.
    assert builds.built[before:] == "dijklkji"


def test_what_is_kept_only_if_it_fits() -> None:
    cache = Cache(100)

    def kept(key: str) -> str:
        cache.begin_turn()
        return "-" if cache.keep(key, 40, lambda: torch.zeros(10)) is None else key

    # In turn, what stays stays; once nobody asked for it between two times of another one, it goes.
    for asked, expected in (("ababc", "abab-"), ("abcabcab", "ab-ab-ab"), ("cc", "-c"), ("bca", "bc-")):
        assert "".join(map(kept, asked)) == expected
    assert cache.bytes == 80
    # What passes makes room for what is kept.
    cache = Cache(100)
    for key in "abc":
        cache.get(key, lambda: torch.zeros(10))
    assert cache.bytes == 80
    assert kept("d") == "d"
    assert cache.keep("e", 90, lambda: torch.zeros(22)) is None
    assert cache.bytes == 80


def resident(path: Path) -> int:
    """Bytes of a map of the file that this process has in memory."""
    held, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            inside = line.endswith(str(path))
        elif inside and fields[0] == "Rss:":
            held += int(fields[1]) * 1024
    return held


def test_touched_files_are_in_memory(tmp_path: Path) -> None:
    nodes = 20_000
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, nodes).astype(np.int32)
    edges = rng.integers(0, nodes, (2, 50_000))
    indptr, indices, _ = clean_edges(edges, nodes, "test")
    part = Induced(np.arange(nodes), indptr, indices)
    path = tmp_path / "shard.arrow"
    write_shard(path, 0, part, label, rng.standard_normal((nodes, 64), dtype=np.float32))
    few = np.arange(0, 100, dtype=np.int32)
    view = View("test", open_shard(path, 0), Split(few, few[:0], few[:0]), [], 3, Cache(0))
    assert resident(path) < 1e6
    view.touch([0], training=True)
    assert resident(path) < 1e6
    assert view.train_label.tolist() == label[:100].tolist()
    view.touch([0], training=False)
    assert resident(path) >= view.x.nbytes
    assert resident(path) < view.x.nbytes + indices.nbytes
    view.touch([], training=True, edges=True)
    assert resident(path) >= view.x.nbytes + len(indices) * 4


WRITES: dict[str, Callable[[View], object]] = {
    "x": lambda view: view.x.mul_(2),
    "hop(1)": lambda view: view.hop(1)[3:4].zero_(),
    "train": lambda view: view.train.add_(1),
    "test": lambda view: view.test.copy_(view.test.clone()),
    "label": lambda view: view.label.neg_(),
    "train_label": lambda view: view.train_label.neg_(),
    "degree": lambda view: view.degree.add_(1),
    "adjacency": lambda view: view.adjacency.values().add_(1),
    "edges": lambda view: view.edges[0].add_(1),
    "own": lambda view: view.cache("own", lambda: (torch.ones(2), [torch.ones(3)]))[1][0].add_(1),
    "cache(('own', 3))": lambda view: view.cache(("own", 3), lambda: torch.ones(2)).add_(1),
}


def whole_view() -> View:
    shard = Shard(
        0,
        np.arange(4),
        np.array([0, 1, 0, 1], np.int32),
        np.array([0, 1, 2, 3, 4], np.int32),
        np.array([1, 0, 3, 2], np.int32),
        np.arange(12, dtype=np.float32).reshape(4, 3),
    )
    split = Split(*(np.array(rows, np.int32) for rows in ([1, 2], [0], [3])))
    return View("whole", shard, split, [np.ones((4, 3), np.float32)], 2, Cache(2**20))


def read_everything(view: View) -> None:
    for tensor in (view.x, view.hop(1), view.block(0), view.label, view.train_label, view.degree, view.train):
        assert tensor.float().sum().isfinite()
    assert (view.adjacency @ view.x).shape == view.x.shape
    assert len(view.edges) == len(view.csr) == 2
    assert len(view.rows(1, view.train)) == 2
    view.cache("own", lambda: (torch.ones(2).add_(1), [torch.ones(3)]))


@pytest.mark.parametrize("what", WRITES)
def test_what_is_written_to_is_named(what: str) -> None:
    view = whole_view()
    WRITES[what](view)
    assert view.written() == what
    view = whole_view()
    if "own" not in what:
        # Reading is no writing.
        read_everything(view)
        assert view.written() is None
        read_everything(view)
    assert view.written() is None
    WRITES[what](view)
    assert view.written() == what
    # An entry that was dropped is built again.
    view._cache.clear()
    assert view.written() == (None if "own" in what or what == "degree" else what)


def test_features_that_are_overwritten_behind_torchs_back() -> None:
    for write in (lambda x: x.numpy().fill(9), lambda x: x.data.zero_(), lambda x: np.copyto(x.numpy(), 7)):
        for k in range(2):
            view = whole_view()
            write(view.hop(k))
            assert view.written() == (f"hop({k})" if k else "x")


def test_arrays_and_attributes_are_read_only() -> None:
    view = whole_view()
    for array in (view.node, *view.csr):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    for name in ("train", "label", "own"):
        with pytest.raises(AttributeError, match=f"^the data of a client is read-only: {name} cannot be set$"):
            setattr(view, name, torch.ones(1))


# Blocks that stay, each made among larger ones that go; what the process holds beyond the former, in MB.
GROWTH = """
import psutil, torch
from shoal.engine.hosts.device import keep_freed_memory
from shoal.storage.store.cache import apart
keep_freed_memory()
make = {}
def step():
    blocks = [torch.zeros(400_000) for _ in range(3)]
def visit():
    kept.append(make(lambda: torch.zeros(3_000)))
    step()
kept = []
for _ in range(10):
    visit()
before = psutil.Process().memory_info().rss
for _ in range(200):
    visit()
print((psutil.Process().memory_info().rss - before) / 1e6)
"""


def growth(make: str) -> float:
    done = subprocess.run([sys.executable, "-c", GROWTH.format(make)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_memory_does_not_grow_by_more_than_what_stays() -> None:
    assert growth("apart") < 10


def test_it_waits_and_gives_back_what_was_made_or_raised() -> None:
    assert apart(threading.current_thread) is not threading.current_thread()
    # What is made may itself want something made.
    assert apart(lambda: apart(threading.current_thread)) is apart(threading.current_thread)
    with refused(says="no such shard"):
        apart(fail)


def fail() -> None:
    raise ShoalError("no such shard")
