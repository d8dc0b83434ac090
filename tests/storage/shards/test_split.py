"""Splits and hops of a client's rows; what is masked, against SplitMix64 in Python's integers; held-out edges."""

import io
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.induced_parts import csr_rows
from support.shards import adjacency, dense_hops

from shoal.storage.graph.gather import gather_features
from shoal.storage.graph.graph import Domain, Graph, clean_edges
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.pairs import EDGE, NO_EDGE, Pairs
from shoal.storage.graph.propagation import hops
from shoal.storage.graph.rows import CsrRows
from shoal.storage.graph.two_sides import sides_of
from shoal.storage.options.masking import Sparsity, masks
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions, read_split_file
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import MappedFile, fixed_rows
from shoal.storage.shards.bounds import Limits
from shoal.storage.shards.held_out_edges import draw_pairs, require_room, union_of, without_held_out
from shoal.storage.shards.hops import labelled_and_neighbours, rows_to_keep, write_hops
from shoal.storage.shards.masking import without_edges, without_features, without_labels
from shoal.storage.shards.shard import Shard, only_labelled, open_hops, open_shard, write_shard
from shoal.storage.shards.split import Split, from_codes, open_split, random_split, write_split

LABELS = st.lists(st.integers(-1, 4), max_size=60).map(np.array)
TENTHS = st.tuples(*[st.integers(0, 10)] * 3).filter(lambda tenths: 0 < sum(tenths) <= 10)


def split_of(label: np.ndarray, protocol: str = "stratified", seed: int = 0, client: int = 0, **shares: tuple) -> Split:
    label = np.asarray(label, dtype=np.int32)
    return random_split(label, np.arange(len(label)), client, SplitOptions(protocol, seed, **shares))


def rows_of(split: Split) -> list[list[int]]:
    return [split.train.tolist(), split.val.tolist(), split.test.tolist()]


@settings(max_examples=150, deadline=None)
@given(label=LABELS, tenths=TENTHS, protocol=st.sampled_from(["stratified", "per_client"]), seed=st.integers(0, 9))
def test_floors_of_the_shares(label: np.ndarray, tenths: tuple[int, ...], protocol: str, seed: int) -> None:
    fractions = tuple(tenth / 10 for tenth in tenths)
    split = split_of(label, protocol, seed, fractions=fractions)
    rows = np.concatenate([split.train, split.val, split.test])
    assert len(np.unique(rows)) == len(rows)
    assert all((np.diff(part) > 0).all() and part.dtype == np.int32 for part in (split.train, split.val, split.test))
    assert all(label[row] >= 0 for row in rows)
    groups = [[c] for c in range(5)] if protocol == "stratified" else [list(range(5))]
    for classes in groups:
        size = sum(int(y) in classes for y in label)
        train, val, test = (tenth * size // 10 for tenth in tenths)
        if sum(tenths) == 10:
            test = size - train - val
        found = [sum(int(label[row]) in classes for row in part) for part in (split.train, split.val, split.test)]
        assert found == [train, val, test]


@pytest.mark.parametrize("protocol", ["stratified", "per_client"])
def test_shares_that_floats_miss(protocol: str) -> None:
    # 0.29 * 100 is 28.999999999999996.
    split = split_of(np.zeros(100), protocol, fractions=(0.29, 0.07, 0.57))
    assert [len(rows) for rows in rows_of(split)] == [29, 7, 57]


@settings(max_examples=40, deadline=None)
@given(label=LABELS, protocol=st.sampled_from(["stratified", "per_client"]), order=st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(label: np.ndarray, protocol: str, order) -> None:
    node = 3 * np.arange(len(label)) + 5
    shuffle = list(range(len(label)))
    order.shuffle(shuffle)
    options = SplitOptions(protocol, 1, fractions=(0.4, 0.3, 0.3))
    straight, shuffled = (random_split(label[rows], node[rows], 2, options) for rows in (slice(None), shuffle))
    for found, expected in zip(rows_of(shuffled), rows_of(straight)):
        assert sorted(node[shuffle][found]) == node[expected].tolist()


@pytest.mark.parametrize("protocol", ["stratified", "per_client"])
def test_seed_and_client_decide(protocol: str) -> None:
    label = np.arange(200) % 3
    first, again = split_of(label, protocol, 1, 2), split_of(label, protocol, 1, 2)
    assert first.train.tolist() == again.train.tolist()
    for other in (split_of(label, protocol, 2, 2), split_of(label, protocol, 1, 3)):
        assert first.train.tolist() != other.train.tolist()


@pytest.mark.parametrize("code", [[1, 2, 3, 0, 1, 1], [0, 0, 0], [3]])
def test_a_split_comes_back(tmp_path: Path, code: list[int]) -> None:
    split = from_codes(np.array(code))
    record = write_split(tmp_path / "a.arrow", split)
    again = open_split(tmp_path / "a.arrow", len(code), record)
    assert rows_of(again) == rows_of(split)
    assert again.train.dtype == again.val.dtype == again.test.dtype == np.int32


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        (([1, 0], [2], []), "rows are not in ascending order"),
        (([0, 0], [2], []), "rows are not in ascending order"),
        (([0, 1], [2], [1]), "a row belongs to two parts"),
        (([0, 3], [1], []), "rows outside the shard"),
        (([-1, 0], [1], []), "rows outside the shard"),
    ],
)
def test_rows_that_no_split_has(tmp_path: Path, parts: tuple[list[int], ...], fault: str) -> None:
    path = tmp_path / "a.arrow"
    record = write_split(path, Split(*(np.array(part, dtype=np.int32) for part in parts)))
    with refused(path, says=fault):
        open_split(path, 3, record, LIMITS)
    rows = pa.ListArray.from_arrays(pa.array([0, 3, 2, 3], pa.int32()), pa.array([0, 1, 2], pa.int32()))
    arrow_file.write(path, "split", {"rows": rows})
    with refused(path, says="not three parts"):
        open_split(path, 3)
    write_split(path, from_codes(np.array([1, 2, 3])))
    with refused(path, says="the manifest"):
        open_split(path, 3, record, LIMITS)
    with refused(path, says="rows outside the shard"):
        open_split(path, 2)


def test_file_of_the_user(tmp_path: Path) -> None:
    file = str(tmp_path / "split.npy")
    np.save(file, np.array([0, 3, 1, 2]))
    assert read_split_file(file).tolist() == [0, 3, 1, 2]
    name = SplitOptions("file", split_file=file).split_name
    np.save(file, np.array([0, 3, 1, 2], dtype=np.uint8))
    assert SplitOptions("file", split_file=file).split_name == name
    np.save(file, np.array([0, 3, 1, 1]))
    assert SplitOptions("file", split_file=file).split_name != name


def saved(save: Callable[..., None] = np.save, *values: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    save(content, *map(np.array, values), **named)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cannot be read"),
        (b"0 1 2 3", "cannot be read"),
        (saved(np.save, [0, 1, 2])[:-5], "cannot be read"),
        (saved(np.savez, split=[0, 1]), "cannot be read"),
        (b"PK\x03\x04PK\x05\x06" + bytes(18), "cannot be read"),
        (saved(np.save, [{}, None]), "cannot be read"),
        (saved(np.save, [0.0, 1.0]), "found float64 [2]"),
        (saved(np.save, [True, False]), "found bool [2]"),
        (saved(np.save, [[0, 1]]), "found int64 [1, 2]"),
        (saved(np.save, [0, 1, 4, -1]), "found 4 at node 2"),
        (saved(np.save, [0, -1]), "found -1 at node 1"),
        (saved(np.save, [0, 1, 2, 0]), "has codes 0, 1, 2 and so no test item; 0 is none, 1 training"),
        (saved(np.save, [3, 2]), "has codes 2, 3 and so no training item"),
        (None, "No such file"),
    ],
)
def test_bad_files_of_the_user(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "split.npy"
    if content is not None:
        file.write_bytes(content)
    with refused(says=says):
        read_split_file(str(file))
    with refused("data.split_file", says="needed where"):
        read_split_file(None)


LIMITS = Limits(nodes=25, features=3, classes=2)


@pytest.fixture
def shard(tmp_path: Path, make_graph: Callable[..., Graph]) -> Shard:
    graph = make_graph(3, 25, 0.2)
    one = np.zeros(25, dtype=np.int32)
    ((_, part, x),) = gather_features(graph, one, np.diff(graph.indptr), [0], "float32", 1 << 30)
    write_shard(tmp_path / "shard.arrow", 0, part, graph.y, x)
    return open_shard(tmp_path / "shard.arrow", 0)


@pytest.mark.parametrize(("dtype", "close"), [("float32", 1e-5), ("float16", 2e-3)])
def test_columns_are_powers_of_the_dense_operator(tmp_path: Path, shard: Shard, dtype: str, close: float) -> None:
    write_hops(tmp_path / "hops.arrow", shard, PropagationOptions(3, 0.5, dtype))
    batch = pa.ipc.open_file(str(tmp_path / "hops.arrow")).get_batch(0)
    assert batch.schema.names == ["hop1", "hop2", "hop3"]
    for name, expected in zip(batch.schema.names, dense_hops(adjacency(shard).toarray(), shard.x)):
        found = np.stack(batch.column(name).to_numpy(zero_copy_only=False))
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_labelled_rows_keep_their_neighbours_and_the_hops_of_all(tmp_path: Path, shard: Shard, share: float) -> None:
    shard.label[:] = np.where(np.random.default_rng(0).random(25) < share, shard.label.clip(0), -1)
    labelled, dense = shard.label >= 0, adjacency(shard).toarray()
    wanted = labelled | (dense[labelled] > 0).any(0)
    np.testing.assert_array_equal(labelled_and_neighbours(shard), wanted)

    propagation = PropagationOptions(2, rows="labelled")
    for options, rows in ((propagation, wanted), (PropagationOptions(2, keep="labelled"), labelled)):
        assert rows_to_keep(shard.indptr, shard.indices, shard.label, options) == rows.sum()
    record = write_hops(tmp_path / "few.arrow", shard, propagation)
    rows = np.flatnonzero(labelled).astype(np.int32)
    split = Split(rows[::2], rows[1::2], rows[:0])
    found, parts, further = only_labelled(MappedFile(tmp_path / "few.arrow", "hops", record), shard, split)
    assert set(found.node) == set(shard.node[wanted])
    row = np.array([np.flatnonzero(shard.node == node)[0] for node in found.node], dtype=np.int64)
    np.testing.assert_array_equal(adjacency(found).toarray(), dense[np.ix_(row, row)])
    np.testing.assert_array_equal(found.label, shard.label[row])
    for mine, all_rows in zip([found.x, *further], [shard.x, *hops(shard.indptr, shard.indices, shard.x, propagation)]):
        np.testing.assert_array_equal(mine, all_rows[row])
    for mine, own in zip((parts.train, parts.val, parts.test), (split.train, split.val, split.test)):
        assert (np.diff(mine) > 0).all()
        np.testing.assert_array_equal(np.sort(found.node[mine]), np.sort(shard.node[own]))


@pytest.mark.parametrize("rows", ["all", "labelled"])
def test_hops_of_another_kernel_or_shard(tmp_path: Path, shard: Shard, rows: Literal["all", "labelled"]) -> None:
    path, propagation = tmp_path / "hops.arrow", PropagationOptions(2, rows=rows)
    record = write_hops(path, shard, propagation)
    assert open_hops(path, 25, propagation, record, LIMITS).names[-2:] == ["hop1", "hop2"]
    others = PropagationOptions(1, rows=rows), PropagationOptions(3, rows=rows), PropagationOptions(2, keep="labelled")
    for other in (*others, PropagationOptions(2, rows="all" if rows == "labelled" else "labelled")):
        with refused(path, says="columns "):
            open_hops(path, 25, other, record, LIMITS)
    with refused(path, says=", 3] and not ["):
        open_hops(path, 25, propagation, record, replace(LIMITS, features=4))
    with refused(path, says="25 rows for a shard of 9" if rows == "all" else "a row lies outside 0 to 8"):
        open_hops(path, 9, propagation, record, LIMITS)


@pytest.mark.parametrize(
    ("row", "neighbors", "fault"),
    [
        ([0, 25], [1, 0], "a row lies outside 0 to 24"),
        ([-1, 0], [1, 0], "a row lies outside 0 to 24"),
        ([3, 3], [1, 0], "a row occurs twice"),
        ([0, 3], [2, 0], "a neighbour lies outside rows 0 to 1"),
    ],
)
def test_labelled_rows_out_of_bounds(tmp_path: Path, row: list[int], neighbors: list[int], fault: str) -> None:
    path, x = tmp_path / "hops.arrow", fixed_rows(np.ones((2, 3), dtype=np.float32))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pa.array(neighbors, pa.int32()))
    columns = {"row": pa.array(row), "neighbors": lists, "hop0": x, "hop1": x}
    record = arrow_file.write(path, "hops", columns)
    with refused(path, says=fault):
        open_hops(path, 25, PropagationOptions(1, rows="labelled"), record, LIMITS)


SHARES = st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])
SEEDS = st.integers(0, 3)


def bits(key: int, position: int) -> int:
    """SplitMix64 at a position."""
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def key(seed: int, purpose: str) -> int:
    return bits(bits(seed, 0), int.from_bytes(purpose.encode().ljust(8, b"\0"), "little"))


def uniform(key: int, position: int) -> float:
    return (bits(key, position) >> 11) / 2**53


def part_of(node: np.ndarray, edges: Any) -> Induced:
    indptr, indices, _ = clean_edges(np.array(edges, dtype=np.int64).reshape(-1, 2).T, len(node), "test")
    return Induced(node, indptr.astype(np.int64), indices.astype(np.int32).copy())


def edges_by_id(part: Induced) -> list[tuple[int, int]]:
    node = part.node.tolist()
    ends = pairwise(part.indptr.tolist())
    return [(node[row], node[other]) for row, (a, b) in enumerate(ends) for other in part.indices[a:b]]


def drawn(seed: int) -> Induced:
    rng = np.random.default_rng(seed)
    return part_of(rng.permutation(40)[:12].astype(np.int64), rng.integers(12, size=(30, 2)))


@settings(max_examples=40, deadline=None)
@given(share=SHARES, seed=SEEDS, graph=st.integers(0, 5))
def test_edges_are_removed_in_pairs(share: float, seed: int, graph: int) -> None:
    before = edges_by_id(drawn(graph))
    after = without_edges(drawn(graph), Sparsity(edges=share, seed=seed))
    own = key(seed, "edges")
    assert edges_by_id(after) == [(a, b) for a, b in before if uniform(own, (min(a, b) << 32) + max(a, b)) >= share]
    assert (after.node.tolist(), after.indptr[-1]) == (drawn(graph).node.tolist(), len(after.indices))
    assert all((np.diff(after.indices[a:b]) > 0).all() for a, b in pairwise(after.indptr))


@settings(max_examples=40, deadline=None)
@given(share=SHARES, seed=SEEDS, dtype=st.sampled_from(["float16", "float32"]))
def test_values_are_zero_in_dense_and_gone_from_sparse_rows(share: float, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    node = np.array([5, 0, 2**31 - 2, 7])
    x = ((rng.random((4, 6)) < 0.6) * rng.standard_normal((4, 6))).astype(dtype)
    own, expected = key(seed, "features"), x.copy()
    for row, column in np.ndindex(*x.shape):
        if uniform(own, int(node[row]) * 6 + column) < share:
            expected[row, column] = 0
    wanted = Sparsity(features=share, seed=seed)
    found = without_features(csr_rows(x), node, wanted)
    np.testing.assert_array_equal(without_features(x.copy(), node, wanted), expected)
    assert isinstance(found, CsrRows)
    np.testing.assert_array_equal(found.toarray(), expected)
    assert (found.dtype, found.entries) == (np.dtype(dtype), np.count_nonzero(expected))
    assert found.indptr.dtype == found.columns.dtype == np.int32


@pytest.mark.parametrize(("share", "left"), [(0.0, 100), (0.29, 71), (0.3, 70), (0.999, 1)])
def test_training_items_are_taken_away_and_no_others(share: float, left: int) -> None:
    train, val, test = np.split(np.random.default_rng(0).permutation(300).astype(np.int32), 3)
    split = Split(np.sort(train), np.sort(val), np.sort(test))
    item = np.random.default_rng(1).permutation(1000)[:300]
    found = without_labels(split, item, Sparsity(labels=share, seed=2))
    own = key(2, "labels")
    order = sorted(split.train.tolist(), key=lambda row: bits(own, int(item[row])))
    assert (found.train.tolist(), found.train.dtype) == (sorted(order[100 - left :]), np.int32)
    assert (found.val.tolist(), found.test.tolist()) == (split.val.tolist(), split.test.tolist())


def test_what_is_said_and_named() -> None:
    assert Sparsity().of_shards == {}
    assert Sparsity(labels=0.5, seed=3).of_shards == {}
    assert Sparsity(edges=0.5, labels=0.1, seed=3).of_shards == {"features": 0.0, "edges": 0.5, "seed": 3}
    assert Sparsity(features=0.5).of_shards == {"features": 0.5, "edges": 0.0, "seed": 0}
    assert (Sparsity(seed=3).of_split, Sparsity(labels=0.29, seed=3).of_split) == ("", "-less29-seed3")
    assert masks(asdict(Sparsity(seed=3))) == masks({}) == ""
    every = masks(asdict(Sparsity(0.3, 0.55, 0.1, 3)))
    assert every == "30 % of features, 55 % of edges, 10 % of training labels (seed 3)"


Pair = tuple[int, int]
EVEN = SplitOptions(fractions=(0.5, 0.25, 0.25))


def items_of(pairs: Pairs) -> list[tuple[int, int, int, int]]:
    rows = [row for row, (a, b) in enumerate(pairwise(pairs.starts.tolist())) for _ in range(a, b)]
    assert pairs.ends.tolist() == [[row, other] for row, other in zip(rows, pairs.partner.tolist())]
    return list(zip(rows, pairs.partner.tolist(), pairs.label.tolist(), pairs.part.tolist()))


@st.composite
def graphs(draw: Any) -> tuple[int, list[Pair]]:
    """A number of nodes, and edges in order."""
    nodes = draw(st.integers(1, 9))
    return nodes, [pair for pair in combinations(range(nodes), 2) if draw(st.booleans())]


shares = st.sampled_from([(0.5, 0.25, 0.25), (0.2, 0.4, 0.4), (0.3, 0.2, 0.1), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5)])


@settings(max_examples=80, deadline=None)
@given(graph=graphs(), fractions=shares, seed=st.integers(0, 3), client=st.integers(0, 3))
def test_every_part_has_as_many_pairs_without_an_edge(graph: Any, fractions: Any, seed: int, client: int) -> None:
    nodes, edges = graph
    part = part_of(np.arange(nodes), edges)
    pairs = draw_pairs(part, client, SplitOptions(split_seed=seed, fractions=fractions))
    items = items_of(pairs)
    named = [(a, b) for a, b, _, _ in items]
    assert named == sorted(set(named))
    assert all(a < b for a, b in named)
    train, val = (int(share * len(edges) + 1e-9) for share in fractions[:2])
    test = len(edges) - train - val if sum(fractions) == 1 else int(fractions[2] * len(edges) + 1e-9)
    wanted = {TRAIN: train, VAL: val, TEST: test}
    free = nodes * (nodes - 1) // 2 - len(edges)
    for code, count in wanted.items():
        chosen = [(a, b) for a, b, label, of in items if label == EDGE and of == code]
        others = [(a, b) for a, b, label, of in items if label == NO_EDGE and of == code]
        assert len(chosen) == count
        assert set(chosen) <= set(edges)
        assert not set(others) & set(edges)
        if free >= sum(wanted.values()):
            assert len(others) == count
        assert len(others) <= count
    assert sum(label == NO_EDGE for _, _, label, _ in items) == min(free, sum(wanted.values()))
    visible = set(edges) - {(a, b) for a, b, label, of in items if label == EDGE and of != TRAIN}
    assert set(edges_by_id(without_held_out(part, pairs))) == visible | {(b, a) for a, b in visible}


def test_every_pair_without_an_edge_is_as_likely_as_any_other() -> None:
    """Over 500 clients, of 19 such pairs at 7 nodes; 5 standard deviations of a count are allowed."""
    part = part_of(np.arange(7), [(0, 6), (2, 3)])
    counts: dict[Pair, int] = {}
    for client in range(500):
        for a, b, label, _ in items_of(draw_pairs(part, client, EVEN)):
            if label == NO_EDGE:
                counts[a, b] = counts.get((a, b), 0) + 1
    assert len(counts) == 19
    expected = 1000 / 19
    assert max(abs(count - expected) for count in counts.values()) < 5 * expected**0.5


def crown(nodes: int) -> list[Pair]:
    """Every node of one half and every one of the other, but its opposite."""
    half = nodes // 2
    return [(a, half + b) for a in range(half) for b in range(half) if a != b]


@pytest.mark.parametrize("shuffled", [False, True])
def test_pairs_of_a_graph_of_two_sides_join_them(shuffled: bool) -> None:
    """A crown of 6 and 6 nodes, where 6 such pairs are no edge, and a node without an edge."""
    number = np.random.default_rng(1).permutation(13) if shuffled else np.arange(13)
    edges = [(int(number[a]), int(number[b])) for a, b in crown(12)]
    part = part_of(np.arange(13), edges)
    side = sides_of(graph_around(part))
    assert side[number[12]] == 0
    assert all(side[a] + side[b] == 3 for a, b in edges)
    free = {tuple(sorted((int(number[a]), int(number[a + 6])))) for a in range(6)}
    drawn = {(a, b) for a, b, label, _ in items_of(draw_pairs(part, 0, EVEN, side)) if label == NO_EDGE}
    assert drawn == free
    # Of a share of the edges as many pairs, each as likely.
    few, counts = SplitOptions(fractions=(0.1, 0.0, 0.0)), np.zeros(13)
    for client in range(400):
        found = [(a, b) for a, b, label, _ in items_of(draw_pairs(part, client, few, side)) if label == NO_EDGE]
        assert len(found) == 3
        np.add.at(counts, np.array(found).ravel(), 1)
    assert (abs(counts[number[:12]] - 200) < 50).all()


@pytest.mark.parametrize(
    ("nodes", "edges", "domains", "sides"),
    [
        (4, [(0, 1), (1, 2), (2, 3)], [], [0] * 4),
        (10, crown(10), [], [1] * 5 + [2] * 5),
        (10, [*crown(10), (0, 1)], [], [0] * 10),
        (13, [*crown(10), (10, 11), (11, 12), (10, 12)], [], [0] * 13),
        (13, [*crown(10), (10, 11), (11, 12), (10, 12)], [10, 3], [1] * 5 + [2] * 5 + [0] * 3),
    ],
    ids=["a path", "a crown", "an odd cycle", "an odd component", "an odd domain"],
)
def test_a_graph_of_two_sides_is_known_by_its_cycles(nodes: int, edges: Any, domains: Any, sides: list[int]) -> None:
    graph = graph_around(part_of(np.arange(nodes), edges))
    graph = replace(graph, domains=tuple(Domain(str(count), count) for count in domains))
    assert sides_of(graph).tolist() == sides


def graph_around(part: Induced) -> Graph:
    nodes = len(part.node)
    return Graph("drawn", part.indptr, part.indices, np.zeros((nodes, 1)), np.zeros(nodes), 1)


def test_pairs_hang_on_seed_and_client_alone() -> None:
    part = part_of(np.arange(30), [(i, (i * 7 + 1) % 30) for i in range(30) if i != (i * 7 + 1) % 30])
    drawn = [
        items_of(draw_pairs(part, client, SplitOptions(split_seed=seed, fractions=EVEN.fractions)))
        for seed, client in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    assert len(set(map(str, drawn))) == 4
    assert items_of(draw_pairs(part, 1, EVEN)) == drawn[1]


def test_pairs_of_clients_are_those_of_the_whole_graph() -> None:
    """Rows 5, 1 and 3 are one client's, 0 and 2 another's, 4 nobody's."""

    def pairs(starts: list[int], partner: list[int], label: list[int], part: list[int]) -> Pairs:
        ends = np.array(starts, np.int32), np.array(partner, np.int32)
        return Pairs(*ends, np.array(label, np.int8), np.array(part, np.int8))

    clients = [
        (np.array([5, 1, 3]), pairs([0, 1, 2, 2], [2, 2], [1, 0], [2, 1])),
        (np.array([2, 0]), pairs([0, 1, 1], [1], [1], [3])),
    ]
    whole = union_of(6, clients)
    assert items_of(whole) == [(0, 2, EDGE, TEST), (1, 3, NO_EDGE, TRAIN), (3, 5, EDGE, VAL)]
    assert whole.held_out.tolist() == [True, False, True]
    assert items_of(union_of(3, [])) == []


def test_a_client_that_memory_would_not_hold() -> None:
    require_room(3, 2_000_000, 192 << 20)
    with refused(says="is 100MiB, but to hold out edges of client 3 takes 184MiB"):
        require_room(3, 2_000_000, 100 << 20)
