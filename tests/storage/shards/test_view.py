"""Views of clients: tensors in maps of files, a cache, writes that are noticed; sparse stores against dense ones."""

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.errors import refused
from support.shards import adjacency
from torch import Tensor

from shoal.storage.files.digest import digest
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.rows import CsrRows, Rows, csr_of
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import rows_column
from shoal.storage.shards.bounds import Limits
from shoal.storage.shards.cache import apart
from shoal.storage.shards.hops import write_hops
from shoal.storage.shards.shard import Shard, open_shard, write_shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import Store, hops_path, shard_path, split_path
from shoal.storage.store.verify import verify

MakeStore = Callable[..., Store]
SPLIT = "stratified-50-20-30-seed0"


def view_of(store: Store, client: int = 0, cache: Cache | None = None) -> View:
    data = store.data(SPLIT, next(iter(store.manifest.hops)), client)
    return View(("test", client), *data, 2, cache or Cache(2**20))


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
def test_tensors_lie_in_the_files_and_never_change_them(make_store: MakeStore, dtype: str) -> None:
    store = make_store(dtype)
    shard = store.path / shard_path(0)
    hops = store.path / hops_path(next(iter(store.manifest.hops)), 0)
    before = {path: digest(path) for path in (shard, hops)}
    view = view_of(store)
    tensors = tensors_of(view)
    assert view.x.dtype == view.hop(2).dtype == getattr(torch, dtype)
    assert tensors[1].dtype == tensors[2].dtype == torch.int32
    assert all(lies_in_map_of(path, tensor) for path, tensor in zip([shard] * 3 + [hops] * 2, tensors))
    assert not lies_in_map_of(shard, view.label)

    values = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.fill_(3)
        assert (tensor == 3).all()
    assert {path: digest(path) for path in before} == before
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(view_of(store)), values))


def tensors_of(view: View) -> list[Tensor]:
    return [view.x, view.adjacency.crow_indices(), view.adjacency.col_indices(), view.hop(1), view.hop(2)]


@pytest.mark.parametrize("client", [0, 1, 2])
def test_slices_of_the_whole_graph(make_store: MakeStore, make_graph: Callable[..., Graph], client: int) -> None:
    graph, store = make_graph(0, 30, 0.2), make_store()
    view, split = view_of(store, client), store.split(SPLIT, client)
    expected = adjacency(graph)[view.node][:, view.node].toarray()
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


def test_views_share_ones_and_a_memo(make_store: MakeStore) -> None:
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
    # b, which was used longest ago, goes, so that c is kept; then c, which passed: a was used after b was asked for.
    for asked, built in (("ababa", "ab"), ("cac", "abc"), ("ba", "abcb")):
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


DENSE_WRITES: dict[str, Callable[[View], object]] = {
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
    rows = [np.array(each, np.int32) for each in ([0, 1, 0, 1], [0, 1, 2, 3, 4], [1, 0, 3, 2], [1, 2], [0], [3])]
    shard = Shard(0, np.arange(4), *rows[:3], np.arange(12, dtype=np.float32).reshape(4, 3))
    return View("whole", shard, Split(*rows[3:]), [np.ones((4, 3), np.float32)], 2, Cache(2**20))


def read_everything(view: View) -> None:
    for tensor in (view.x, view.hop(1), view.block(0), view.label, view.train_label, view.degree, view.train):
        assert tensor.float().sum().isfinite()
    assert (view.adjacency @ view.x).shape == view.x.shape
    assert len(view.edges) == len(view.csr) == 2
    assert len(view.rows(1, view.train)) == 2
    view.cache("own", lambda: (torch.ones(2).add_(1), [torch.ones(3)]))


@pytest.mark.parametrize("what", DENSE_WRITES)
def test_what_is_written_into_is_named(what: str) -> None:
    view = whole_view()
    DENSE_WRITES[what](view)
    assert view.written() == what
    view = whole_view()
    if "own" not in what:
        # Reading is no writing.
        read_everything(view)
        assert view.written() is None
        read_everything(view)
    assert view.written() is None
    DENSE_WRITES[what](view)
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
from shoal.storage.shards.cache import apart
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


def test_memory_does_not_grow_by_more_than_what_stays() -> None:
    code = GROWTH.format("apart")
    assert float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout) < 10


def test_it_waits_and_gives_back_what_was_made_or_raised() -> None:
    assert apart(threading.current_thread) is not threading.current_thread()
    # What is made may itself want something made.
    assert apart(lambda: apart(threading.current_thread)) is apart(threading.current_thread)
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 / 0)


FEATURES = 64


def words(dtype: str = "float32") -> np.ndarray:
    """Few words a node; the 9 nodes of the second client have none."""
    rng = np.random.default_rng(5)
    x = ((rng.random((30, FEATURES)) < 0.08) * rng.random((30, FEATURES))).astype(dtype)
    x[20:29] = 0
    return x


RECORDED = {
    "float32": "0dc8c8bab36c838b887c0ff53a709687 101617b8fc6daebbdf7569f1e6804155 b6943bda848d505f592f32442c54f42c",
    "float16": "275015744b6e3fbd4d07840978757e1c 97f652827f7962e0b1d49c1cbdd9d143 068e31dee47c18a80152e5cb1d197bff",
}


@pytest.mark.parametrize("dtype", RECORDED)
def test_the_bytes_of_dense_files(tmp_path: Path, dtype: Any) -> None:
    """Recorded before there were sparse ones."""
    part = Induced(np.array([4, 1, 7]), np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32))
    label = np.array([0, 1, 0, 0, -1, 0, 0, 1])
    x = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0]], dtype=dtype)
    write_shard(tmp_path / "a.arrow", 0, part, label, x)
    shard = open_shard(tmp_path / "a.arrow", 0)
    write_hops(tmp_path / "all.arrow", shard, PropagationOptions(2, 0.5, dtype))
    write_hops(tmp_path / "few.arrow", shard, PropagationOptions(2, 0.5, dtype, "labelled"))
    assert [digest(tmp_path / f"{name}.arrow") for name in ("a", "all", "few")] == RECORDED[dtype].split()


def test_a_sparse_store_is_sound_and_counts_its_bytes(make_store: MakeStore) -> None:
    plain, sparse = make_store(x=words()), make_store("float32", "sparse", csr_of(words()))
    assert verify(sparse) == []
    assert plain.manifest.feature_bytes == sum(plain.shard(client).x.nbytes for client in range(3))
    # A row pointer begins with a 0 in every file.
    assert sparse.manifest.feature_bytes == sum(sparse.shard(client).x.nbytes - 4 for client in range(3))
    layouts = {type(hop) for client in range(3) for hop in sparse.hops(next(iter(sparse.manifest.hops)), client)}
    assert layouts == {CsrRows, np.ndarray}


def test_the_manifest_says_so(make_store: MakeStore) -> None:
    store = make_store("float32", "sparse", words())
    again = read_manifest(store.path)
    assert (again.layout, again.feature_values) == ("sparse", np.count_nonzero(words()))
    (propagation,) = again.hops
    assert again.content(SPLIT, propagation) != replace(again, layout="dense").content(SPLIT, propagation)
    dense_store = Store(store.path, manifest=replace(again, layout="dense"))
    with refused(store.path / shard_path(0), says="x is not dense;"):
        dense_store.shard(0)


SOUND: dict[str, Any] = {"indptr": [0, 2, 2, 5], "columns": [1, 3, 0, 1, 2], "features": 4}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"columns": [1, 4, 0, 1, 2]}, "a column of x lies outside 0 to 3"),
        ({"columns": [-1, 3, 0, 1, 2]}, "a column of x lies outside 0 to 3"),
        ({"columns": [3, 1, 0, 1, 2]}, "columns of x are not in ascending order"),
        ({"columns": [1, 3, 0, 2, 2]}, "columns of x are not in ascending order"),
        ({"indptr": [0, 3, 2, 5]}, "the row pointer of x does not fit its values"),
        ({"features": 5}, "x is [3, 5] and not [3, 4]"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_columns_out_of_bounds(tmp_path: Path, changed: dict[str, Any], fault: str, dtype: str) -> None:
    path, limits = tmp_path / "a.arrow", Limits(nodes=3, features=4, classes=2, layout="sparse")

    def opened(indptr: list[int], columns: list[int], features: int) -> Rows:
        x = CsrRows(np.array(indptr, np.int32), np.array(columns, np.int32), np.ones(5, dtype), features)
        neighbors = pa.ListArray.from_arrays(pa.array([0, 0, 0, 0], pa.int32()), pa.array([], pa.int32()))
        label = pa.array([0, 1, -1], pa.int32())
        file = {"node": pa.array([0, 1, 2]), "label": label, "neighbors": neighbors, "x": rows_column(x)}
        return open_shard(path, 0, arrow_file.write(path, "shard", file), limits).x

    assert opened(**SOUND).nbytes == 16 + 20 + 5 * np.dtype(dtype).itemsize
    with refused(path, says=fault):
        opened(**{**SOUND, **changed})


def test_another_list_is_no_features(tmp_path: Path) -> None:
    path, lists = tmp_path / "a.arrow", pa.array([[1], []], pa.list_(pa.int32()))
    numbers = {"node": pa.array([0, 1]), "label": pa.array([0, 1], pa.int32())}
    arrow_file.write(path, "shard", {**numbers, "neighbors": lists, "x": lists})
    with refused(path, says="column 'x' is list<"):
        open_shard(path, 0)


def test_what_no_shard_holds(tmp_path: Path) -> None:
    part = Induced(np.array([0]), np.zeros(2, dtype=np.int64), np.empty(0, dtype=np.int32))
    indptr = np.array([0, 1], dtype=np.int32)
    many = CsrRows(indptr, np.broadcast_to(np.int32(0), 2**31), np.broadcast_to(np.float32(0), 2**31), 3)
    large = CsrRows(indptr, np.zeros(1, dtype=np.int32), np.array([np.inf], dtype=np.float16), 3)
    for x, says in ((many, "client 5: 2147483648 feature values"), (large, "float16 ends at 65504, but client 5")):
        with refused(says=says):
            write_shard(tmp_path / "a.arrow", 5, part, np.array([0]), x)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("rows", ["all", "labelled"])
def test_views_give_the_same_numbers(make_store: MakeStore, dtype: str, client: int, rows: str) -> None:
    stores = make_store(dtype, x=words(), rows=rows), make_store(dtype, "sparse", csr_of(words()), rows)
    plain, sparse = (view_of(store, client) for store in stores)
    for part in ("node", "csr", "train"):
        assert all(map(np.array_equal, getattr(sparse, part), getattr(plain, part)))
    assert sparse.features == plain.features == FEATURES
    w = torch.randn(FEATURES, 3, generator=torch.Generator().manual_seed(0))
    for k in range(3):
        for call in (
            lambda view, k=k: view.hop(k),
            lambda view, k=k: view.block(k),
            lambda view, k=k: view.block(k, 3, 7),
            lambda view, k=k: view.block(k, 5, 1000),
            lambda view, k=k: view.rows(k, view.train),
            lambda view, k=k: view.rows(k, torch.tensor([0, 0])),
            lambda view, k=k: view.whole(k),
        ):
            mine, truth = call(sparse), call(plain)
            assert (mine.dtype, mine.shape) == (truth.dtype, truth.shape)
            assert torch.equal(mine.to_dense(), truth)
            torch.testing.assert_close(mine.float() @ w, truth.float() @ w)
    sparse.touch([0, 1, 2], training=True)
    sparse.touch([0, 1, 2], training=False, edges=True)
    assert sparse.written() is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_whole_hop_is_kept_with_its_transpose(make_store: MakeStore, dtype: str) -> None:
    view = view_of(make_store(dtype, "sparse", words()))
    whole = view.whole(0)
    transposed = whole.transposed
    assert view.whole(0).transposed is transposed
    assert torch.equal(transposed.to_dense(), view.x.to_dense().float().T)
    kept = sum(part.nbytes for part in (transposed.crow_indices(), transposed.col_indices(), transposed.values()))
    assert view._cache.bytes == kept + (0 if dtype == "float32" else whole.parts()[2].nbytes)


@pytest.mark.parametrize(
    ("of", "named"), [(lambda whole: whole.csr, "x"), (lambda whole: whole.transposed, "cache(('whole', 0))")]
)
def test_writes_into_a_whole_hop_are_seen(make_store: MakeStore, of: Any, named: str) -> None:
    view = view_of(make_store("float32", "sparse", words()))
    whole = view.whole(0)
    assert named != "x" or view.written() is None
    of(whole).values()[-1:].zero_()
    assert view.written() == named


WRITES: dict[str, Callable[[SparseMatrix], object]] = {
    "values": lambda x: x.csr.values().mul_(2),
    "columns": lambda x: x.csr.col_indices().zero_(),
    "row starts": lambda x: x.csr.crow_indices().zero_(),
    "a block, seen in the training row": lambda x: x.block(0, 19).csr.values().zero_(),
    "values behind torch's back": lambda x: x.csr.values().numpy().fill(7),
    "columns behind torch's back": lambda x: x.csr.col_indices().numpy().fill(63),
    "row starts behind torch's back": lambda x: x.csr.crow_indices().numpy().fill(1),
}


@pytest.mark.parametrize("k", [0, 1])
@pytest.mark.parametrize("what", WRITES)
def test_what_is_written_to_is_named(make_store: MakeStore, k: int, what: str) -> None:
    view = view_of(make_store("float32", "sparse", words()))
    assert view.written() is None
    WRITES[what](view.hop(k))
    assert view.written() == (f"hop({k})" if k else "x")
