"""A sparse store has the numbers of a dense one, and a dense one the bytes that it always had."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.errors import refused

from shoal.storage.files.digest import digest
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.rows import CsrRows, Rows, csr_of
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store import arrow_file
from shoal.storage.store.arrow_file import rows_column
from shoal.storage.store.bounds import Limits
from shoal.storage.store.hops import write_hops
from shoal.storage.store.manifest import NAME, Manifest, SplitRecord, read_manifest
from shoal.storage.store.shard import open_shard, write_shard
from shoal.storage.store.store import Store, shard_path
from shoal.storage.store.verify import verify
from shoal.storage.store.view import Cache, View

SPLIT = "stratified-50-20-30-seed0"
FEATURES = 64


def words(dtype: str = "float32") -> np.ndarray:
    """Few words a node; the 9 nodes of the second client have none."""
    rng = np.random.default_rng(5)
    x = ((rng.random((30, FEATURES)) < 0.08) * rng.random((30, FEATURES))).astype(dtype)
    x[20:29] = 0
    return x


def dense(x: Rows) -> np.ndarray:
    return x.toarray() if isinstance(x, CsrRows) else x


def view_of(store: Store, client: int = 0, limit: int = 2**20) -> View:
    shard, split, hops = store.data(SPLIT, next(iter(store.manifest.hops)), client)
    return View(("test", client), shard, split, hops, 2, Cache(limit))


@pytest.mark.parametrize(
    ("dtype", "recorded"),
    [
        (
            "float32",
            "0dc8c8bab36c838b887c0ff53a709687 101617b8fc6daebbdf7569f1e6804155 b6943bda848d505f592f32442c54f42c",
        ),
        (
            "float16",
            "275015744b6e3fbd4d07840978757e1c 97f652827f7962e0b1d49c1cbdd9d143 068e31dee47c18a80152e5cb1d197bff",
        ),
    ],
)
def test_the_bytes_of_dense_files(tmp_path: Path, dtype: Any, recorded: str) -> None:
    """Recorded before there were sparse ones."""
    part = Induced(np.array([4, 1, 7]), np.array([0, 1, 3, 4]), np.array([1, 0, 2, 1], dtype=np.int32))
    label = np.array([0, 1, 0, 0, -1, 0, 0, 1])
    x = np.array([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0]], dtype=dtype)
    write_shard(tmp_path / "a.arrow", 0, part, label, x)
    shard = open_shard(tmp_path / "a.arrow", 0)
    write_hops(tmp_path / "all.arrow", shard, PropagationOptions(2, 0.5, dtype))
    write_hops(tmp_path / "few.arrow", shard, PropagationOptions(2, 0.5, dtype, "labelled"))
    assert [digest(tmp_path / f"{name}.arrow") for name in ("a", "all", "few")] == recorded.split()
    split = SplitRecord([], [], 0, [])
    manifest = Manifest({"dataset": {}}, "small", True, 3, 4, 2, "float32", {}, {}, [], splits={"s": split})
    manifest.write(tmp_path)
    assert digest(tmp_path / NAME) == "c997536fa17d80171d6eb5d20378a514"
    assert manifest.content("s", None) == "a7f7e3dbcb78bb1b5261856761886e6c"
    assert read_manifest(tmp_path) == manifest


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rows", ["all", "labelled"])
def test_numbers_of_a_dense_store(make_store: Callable[..., Store], dtype: str, rows: str) -> None:
    x = words()
    plain, sparse = make_store(dtype, x=x, rows=rows), make_store(dtype, "sparse", csr_of(x), rows)
    propagation = next(iter(sparse.manifest.hops))
    layouts = set()
    for client in range(3):
        assert isinstance(sparse.shard(client).x, CsrRows)
        one, other = plain.data(SPLIT, propagation, client), sparse.data(SPLIT, propagation, client)
        for mine, truth in zip([other[0].x, *other[2]], [one[0].x, *one[2]], strict=True):
            assert mine.dtype == truth.dtype == dtype
            np.testing.assert_array_equal(dense(mine), truth)
            layouts.add(type(mine))
        np.testing.assert_array_equal(one[0].indices, other[0].indices)
        np.testing.assert_array_equal(one[1].train, other[1].train)
    assert layouts == {CsrRows, np.ndarray}
    assert verify(sparse) == []
    assert plain.manifest.feature_bytes == sum(plain.shard(client).x.nbytes for client in range(3))
    # A row pointer begins with a 0 in every file.
    assert sparse.manifest.feature_bytes == sum(sparse.shard(client).x.nbytes - 4 for client in range(3))


def test_the_manifest_says_so(make_store: Callable[..., Store]) -> None:
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
    with refused(path, says="delete the file and run"):
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
def test_views_give_the_same_numbers(make_store: Callable[..., Store], dtype: str, client: int) -> None:
    x = words()
    plain, sparse = view_of(make_store(dtype, x=x), client), view_of(make_store(dtype, "sparse", x), client)
    assert sparse.features == plain.features == FEATURES
    assert isinstance(sparse.x, SparseMatrix)
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
            assert mine.dtype == truth.dtype
            assert mine.shape == truth.shape
            assert torch.equal(mine.to_dense(), truth)
            torch.testing.assert_close(mine.float() @ w, truth.float() @ w)
    sparse.touch([0, 1, 2], training=True)
    sparse.touch([0, 1, 2], training=False, edges=True)
    assert sparse.written() is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_whole_hop_is_kept_with_its_transpose(make_store: Callable[..., Store], dtype: str) -> None:
    view = view_of(make_store(dtype, "sparse", words()))
    whole = view.whole(0)
    assert isinstance(whole, SparseMatrix)
    assert view.whole(0).transposed is whole.transposed
    assert torch.equal(whole.transposed.to_dense(), view.x.to_dense().float().T)
    transposed = whole.transposed
    kept = sum(part.nbytes for part in (transposed.crow_indices(), transposed.col_indices(), transposed.values()))
    values = 0 if dtype == "float32" else whole.parts()[2].nbytes
    assert view._cache.bytes == kept + values


@pytest.mark.parametrize(
    ("of", "named"), [(lambda whole: whole.csr, "x"), (lambda whole: whole.transposed, "cache(('whole', 0))")]
)
def test_writes_into_a_whole_hop_are_seen(make_store: Callable[..., Store], of: Any, named: str) -> None:
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
def test_what_is_written_to_is_named(make_store: Callable[..., Store], k: int, what: str) -> None:
    view = view_of(make_store("float32", "sparse", words()))
    hop = view.hop(k)
    assert isinstance(hop, SparseMatrix)
    assert view.written() is None
    WRITES[what](hop)
    assert view.written() == (f"hop({k})" if k else "x")
