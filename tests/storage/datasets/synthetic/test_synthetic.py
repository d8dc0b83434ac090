"""Synthetic graphs, one and many, and twins: what was asked for is measured on the result."""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.shards import adjacency

from shoal.storage.datasets.registry import fingerprint, items_ahead, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.twin import ORIGINALS, Twin
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

SMALL = DataSource("sbm", nodes=3000, classes=5, blocks=20)
MANY = DataSource("sbm-graphs", graphs=300, nodes=9000, classes=3, degree=6.0)


def nearest_mean_accuracy(x: np.ndarray, y: np.ndarray) -> float:
    """Share of the second half of the nodes that lie nearest to their class's mean over the first half."""
    half = len(y) // 2
    means = np.stack([x[:half][y[:half] == c].mean(axis=0) for c in range(int(y.max()) + 1)])
    distances = ((x[half:, None, :] - means[None]) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == y[half:]).mean())


@pytest.mark.parametrize("options", [SMALL, MANY], ids=["one", "many"])
def test_same_seed_same_graph_other_seed_other_graph(options: DataSource) -> None:
    first, again, other = load(options), load(options), load(dataclasses.replace(options, seed=1))
    for field in ("indptr", "indices", "x", "y"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


def test_features_do_not_depend_on_the_edges() -> None:
    sparse, dense = load(dataclasses.replace(SMALL, degree=4)), load(dataclasses.replace(SMALL, degree=20))
    assert np.array_equal(sparse.y, dense.y)
    assert np.array_equal(sparse.x, dense.x)


@pytest.mark.parametrize("asked", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("blocks", [None, 40])
def test_homophily_degree_and_shapes_are_as_asked(asked: float, blocks: int | None) -> None:
    graph = load(dataclasses.replace(SMALL, homophily=asked, blocks=blocks))
    sources = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    assert (graph.y[sources] == graph.y[graph.indices]).mean() == pytest.approx(asked, abs=0.01)
    assert graph.entries / graph.nodes == pytest.approx(10, abs=0.1)
    assert (graph.nodes, graph.features, graph.classes) == (3000, 32, 5)
    assert (graph.x.dtype, graph.y.dtype) == (np.float32, np.int64)
    assert set(np.unique(graph.y)) == set(range(5))
    assert graph.synthetic


def test_a_community_of_one_class_is_cut_off_without_edges_across() -> None:
    graph = load(dataclasses.replace(SMALL, homophily=1.0, degree=20))
    count, community = sp.csgraph.connected_components(adjacency(graph))
    assert count == 20
    sizes = np.bincount(community)
    assert sizes.max() > 3 * sizes.min()
    assert all(len(np.unique(graph.y[community == i])) == 1 for i in range(count))


def test_neighbours_tell_more_than_features() -> None:
    graph = load(DataSource("sbm", nodes=4000))
    averaged = (adjacency(graph) @ graph.x + graph.x) / (np.diff(graph.indptr) + 1)[:, None]
    raw, propagated = nearest_mean_accuracy(graph.x, graph.y), nearest_mean_accuracy(averaged, graph.y)
    assert 0.15 < raw < 0.6
    assert propagated > raw + 0.2
    silent = load(DataSource("sbm", nodes=4000, signal=0))
    assert nearest_mean_accuracy(silent.x, silent.y) < 0.15


def edges_inside(graph: Graph, number: int) -> tuple[int, np.ndarray]:
    """Nodes of a graph, and its edges counted from its first node, `[E, 2]`, both directions."""
    nodes = np.flatnonzero(graph.graph_of == number)
    rows = [(v - nodes[0], u - nodes[0]) for v in nodes for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]]
    return len(nodes), np.array(rows, dtype=np.int64).reshape(-1, 2)


def test_many_graphs_are_what_was_asked_for() -> None:
    options = dataclasses.replace(MANY, homophily=0.9)
    graph = load(options)
    assert (graph.items, graph.nodes, graph.classes, graph.synthetic) == (items_ahead(options), 9000, 3, True)
    assert np.bincount(graph.y).tolist() == [100, 100, 100]
    sizes = np.bincount(graph.graph_of)
    assert sizes.min() >= 1
    # A gamma distribution of shape 2 has a standard deviation of its mean over the root of 2.
    assert sizes.std() == pytest.approx(30 / 2**0.5, rel=0.2)
    inside, of_several = 0, 0
    for number in range(300):
        size, edges = edges_inside(graph, number)
        assert edges.size == 0 or 0 <= edges.min() <= edges.max() < size
        block = np.arange(size) % (graph.y[number] + 1)
        if graph.y[number]:
            inside += int((block[edges[:, 0]] == block[edges[:, 1]]).sum())
            of_several += len(edges)
    assert graph.entries / 9000 == pytest.approx(6, rel=0.15)
    assert inside / of_several == pytest.approx(0.9, abs=0.05)
    source = np.repeat(np.arange(9000), np.diff(graph.indptr))
    indptr, indices, cleaning = clean_edges(np.stack([source, graph.indices]), 9000, "test")
    np.testing.assert_array_equal(indptr, graph.indptr)
    np.testing.assert_array_equal(indices, graph.indices)
    assert (cleaning.self_loops, cleaning.duplicates, cleaning.reversed_added) == (0, 0, 0)
    assert (graph.indptr.dtype, graph.indices.dtype, graph.y.dtype) == (np.int64, np.int32, np.int64)


def test_features_of_many_show_the_class_by_the_signal() -> None:
    loud, silent = (load(dataclasses.replace(MANY, signal=signal)) for signal in (3.0, 0.0))
    label = loud.of_nodes(loud.y)
    centres = np.array([(loud.x - silent.x)[label == k].mean(0) for k in range(3)])
    np.testing.assert_allclose(loud.x - silent.x, centres[label], atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 3.0, rtol=1e-3)
    assert silent.x.std() == pytest.approx(1, abs=0.02)


def test_small_graphs_are_full_and_lonely_nodes_have_no_edge() -> None:
    full = load(DataSource("sbm-graphs", graphs=20, nodes=80, classes=2, degree=70.0, homophily=0.5))
    sizes = np.bincount(full.graph_of)
    assert full.entries == (sizes * (sizes - 1)).sum()
    assert load(DataSource("sbm-graphs", graphs=50, nodes=50, classes=2)).entries == 0
    # Communities too small for their edges leave some out.
    assert load(DataSource("sbm", nodes=8, classes=4, degree=4, homophily=1.0)).entries == 8


@pytest.mark.parametrize(
    ("options", "key", "value"),
    [
        *((SMALL, *changed) for changed in (
            ("nodes", 39), ("classes", 1), ("blocks", 4), ("features", 0), ("degree", -1.0), ("degree", 3000.0),
            ("homophily", 1.1), ("homophily", float("nan")), ("signal", -1.0), ("seed", -1))),
        *((MANY, *changed) for changed in (
            ("classes", 1), ("graphs", 2), ("nodes", 299), ("features", 0), ("degree", -1.0), ("homophily", 1.5),
            ("signal", 1e7))),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(options: DataSource, key: str, value: Any) -> None:
    with refused(f"{'data' if options is SMALL else 'data.options'}.{key}", says=f"{value} must be "):
        load(dataclasses.replace(options, **{key: value}))


def test_more_than_the_memory_is_refused() -> None:
    with refused("data.options.nodes", says="it needs "):
        load(dataclasses.replace(MANY, nodes=2**31 - 1, features=2**20))


# 85, 24 and 56 thousand nodes: the first has two blocks of edges.
SCALES = {"arxiv-like": 0.5, "products-like": 0.01, "papers100m-like": 0.0005}
# OGB's published counts (Hu et al., 2020, Table 2; nodes of the official splits).
PUBLISHED = {
    "arxiv-like": (169_343, 1_166_243, 128, 40, (90_941, 29_799, 48_603)),
    "products-like": (2_449_029, 61_859_140, 100, 47, (196_615, 39_323, 2_213_091)),
    "papers100m-like": (111_059_956, 1_615_685_872, 128, 172, (1_207_179, 125_265, 214_338)),
}


def small(name: str, **changes: float) -> Twin:
    return Twin.of(name, DataSource(name, **{"scale": SCALES[name], **changes}))


def edges_of(twin: Twin) -> np.ndarray:
    return np.concatenate(list(twin.edge_blocks()), axis=1).astype(np.int64)


@pytest.mark.parametrize("name", ORIGINALS)
def test_counts_are_the_original_s_times_the_scale(name: str) -> None:
    nodes, edges, features, classes, split = PUBLISHED[name]
    whole = small(name, scale=1.0)
    assert (whole.nodes, whole.edges, whole.features, whole.classes) == (nodes, edges, features, classes)
    assert whole.split_sizes == split
    scale = SCALES[name]
    twin = small(name)
    found = edges_of(twin)
    assert (twin.nodes, found.shape[1]) == pytest.approx((nodes * scale, edges * scale), abs=1)
    assert 0 <= found.min() <= found.max() < twin.nodes
    codes = np.concatenate(list(twin.split_codes()))
    labels = np.concatenate(list(twin.labels()))
    assert len(codes) == len(labels) == twin.nodes
    assert [int((codes == part).sum()) for part in (TRAIN, VAL, TEST)] == pytest.approx(np.array(split) * scale, abs=1)
    assert np.array_equal(labels == -1, codes == UNASSIGNED)
    assert labels.max() < classes
    assert len(np.unique(labels[labels >= 0])) > 0.3 * classes


@pytest.mark.exhaustive(8)
@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.6, 0.8, 1.0])
def test_edges_are_distinct_even_without_direction_and_as_homophilous_as_asked(name: str, homophily: float) -> None:
    """Homophily over all edges: labels are those of a twin whose split leaves out nobody."""
    twin = small(name, homophily=homophily)
    edges = edges_of(twin)
    low, high = np.sort(edges, axis=0)
    assert (low < high).all()
    assert len(np.unique(low * twin.nodes + high)) == twin.edges
    if 0 < homophily < 1:
        source, target = labels_of_all(twin)[edges]
        assert np.mean(source == target) == pytest.approx(homophily, abs=0.05)


def labels_of_all(twin: Twin) -> np.ndarray:
    """Classes `[N]`, also of nodes without a label: those whose centre the features, almost without noise, are at."""
    everyone = Twin(twin.name, twin.original, twin.scale, twin.homophily, 1e4, twin.seed)
    centre, axis = everyone._class_features
    points = np.concatenate([centre + axis, centre - axis])
    found = []
    for rows in everyone.feature_rows():
        found.append(((rows**2).sum(1)[:, None] - 2 * rows @ points.T + (points**2).sum(1)).argmin(1) % twin.classes)
    return np.concatenate(found)


@pytest.mark.parametrize("name", ORIGINALS)
def test_degrees_follow_a_power_law(name: str) -> None:
    """Hill's estimate of the exponent (Annals of Statistics, 1975) from the hundredth of nodes that point most.

    It is 7/3 before communities cut off what does not fit; an exponential tail gives more than 6, at its maximum of a
    few times the mean.
    """
    twin = small(name, homophily=0.3)
    source, target = edges_of(twin)
    pointing = np.bincount(source, minlength=twin.nodes)
    tail = np.sort(pointing)[-twin.nodes // 100 :]
    assert 2 < 1 + 1 / np.log(tail / tail[0]).mean() < 3
    degree = pointing + np.bincount(target, minlength=twin.nodes)
    assert degree.max() > 80 * degree.mean()
    assert np.median(degree) < 0.8 * degree.mean()


@pytest.mark.parametrize("name", ORIGINALS)
def test_any_block_drawn_alone_is_that_of_the_whole(name: str) -> None:
    """What comes first has not been drawn by this twin, so it holds no state of it."""
    blocks = list(small(name).edge_blocks())
    assert len(blocks) == (2 if name == "arxiv-like" else 1)
    first = 0
    for number, block in enumerate(blocks):
        alone = list(small(name).edge_blocks(first))
        assert len(alone) == len(blocks) - number
        assert np.array_equal(alone[0], block)
        first += block.shape[1]
    for rows in (Twin.labels, Twin.split_codes, Twin.feature_rows):
        whole = np.concatenate(list(rows(small(name))))
        for start in (1, len(whole) // 2, len(whole) - 1):
            assert np.array_equal(np.concatenate(list(rows(small(name), start))), whole[start:])


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.integers(-2449, 2448), max_size=20))
def test_features_are_drawn_row_by_row(rows: list[int]) -> None:
    x = small("products-like", scale=0.001).x
    whole = x[:]
    assert np.array_equal(x[np.array(rows, dtype=np.int64)], whole[rows])
    assert x[[]].shape == (0, 100)
    with pytest.raises(IndexError):
        x[[2449]]


def test_same_seed_same_bytes_whatever_the_memory(tmp_path: Path) -> None:
    source = partial(DataSource, "products-like", scale=0.01)
    found = []
    for folder, options in (("one", {}), ("two", {"memory_limit": 64 << 20}), ("other", {"seed": 6})):
        load(source(scratch=str(tmp_path / folder), **{"seed": 5, **options}))
        found.append({path.name: path.read_bytes() for path in (tmp_path / folder).rglob("*.npy")})
    one, two, other = found
    assert one
    assert one == two
    assert all(content != other[name] for name, content in one.items())


def test_scratch_is_where_the_arrays_lie(tmp_path: Path) -> None:
    """It moves them away from the data root, and changes neither the graph nor its identity."""
    root, scratch = tmp_path / "root", tmp_path / "scratch"
    placed = DataSource("arxiv-like", scale=0.01, root=str(root), scratch=str(scratch))
    at_root = DataSource("arxiv-like", scale=0.01, root=str(root))
    graph = load(placed)
    assert not root.exists()
    (folder,) = (scratch / "twins").iterdir()
    assert Path(graph.y.filename).parent == folder
    assert np.array_equal(load(at_root).indices, graph.indices)
    assert [path.name for path in (root / "twins").iterdir()] == [folder.name]
    assert fingerprint(placed) == fingerprint(at_root)
    load(DataSource("arxiv-like", scale=0.01, seed=1, root=str(root), scratch=str(scratch)))
    assert len(list((scratch / "twins").iterdir())) == 2
    (folder / "source.json").unlink()
    with refused(folder, says="data.options.scratch"):
        load(placed)


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("nodes", [1, 40, 200])
def test_a_very_small_twin_has_all_its_edges_or_is_refused(name: str, nodes: int) -> None:
    """From the fewest nodes that options may ask for."""
    fewest = small(name).min_nodes
    twin = small(name, scale=(fewest + nodes) / PUBLISHED[name][0])
    try:
        edges = edges_of(twin)
    except ShoalError as error:
        assert error.line.startswith("data.options.scale: ")  # noqa: PT017
        return
    low, high = np.sort(edges, axis=0)
    assert len(np.unique(low * twin.nodes + high)) == twin.edges


@pytest.mark.parametrize(
    ("option", "value"),
    [("scale", 0.0), ("scale", 1e-9), ("scale", 1e9), ("scale", np.nan), ("scale", np.inf), ("scale", 1e12),
     ("signal", -1.0), ("signal", np.nan), ("signal", np.inf), ("homophily", -0.1), ("homophily", 1.1),
     ("homophily", np.nan), ("seed", 2**64)],
)  # fmt: skip
def test_refuses_options_out_of_range(option: str, value: float) -> None:
    with refused(f"data.options.{option}"):
        small("arxiv-like", **{option: value})
