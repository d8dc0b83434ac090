"""Small graphs cut out of a large one, against breadth-first searches written out, and what they may not know."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.datasets.registry import (
    LargeGraph,
    classes_ahead,
    fingerprint,
    labels_ahead,
    load,
    load_all,
    load_outlines,
)
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.induced_graphs import cut_graphs, reduce_features
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

SMALL: dict[str, Any] = {"nodes": 400, "classes": 3, "features": 12, "degree": 3.0}
OPTIONS = DataSource("induced-node", base="sbm", samples=20, width=5, smallest=15, largest=25, **SMALL)
HOPS = {"node": (2, 5), "edge": (1, 3), "graph": (1, 5)}


def base_of(options: DataSource = OPTIONS) -> Graph:
    return load(replace(options, dataset="sbm"))


def cut(level: str, **changes: Any) -> Graph:
    return load(replace(OPTIONS, dataset=f"induced-{level}", **changes))


def features(graph: Graph) -> list[np.ndarray]:
    """Rows of every small graph."""
    return [graph.x[graph.graph_of == g] for g in range(graph.items)]


def nodes_of(graph: Graph, base: Graph, options: DataSource = OPTIONS) -> list[list[int]]:
    """The nodes of the large graph in every small one, told by their features, which are all different."""
    rows = {row.tobytes(): node for node, row in enumerate(reduce_features(base.x, options.width, options.seed))}
    assert len(rows) == base.nodes
    return [[rows[row.tobytes()] for row in part] for part in features(graph)]


def graph_of(edges: Any, x: np.ndarray, y: np.ndarray) -> Graph:
    arrays = {"edge_index": np.array(edges, dtype=np.int64), "x": x, "y": y}
    return graph_from_arrays("drawn", arrays, {name: name for name in arrays})


def reached(base: Graph, centres: set[int], least: int, most: int, smallest: int) -> set[int]:
    found, border = set(centres), set(centres)
    for hop in range(most):
        if hop >= least and len(found) >= smallest:
            break
        border = {n for v in border for n in neighbours(base, v)} - found
        found |= border
    return found


def neighbours(base: Graph, node: int) -> list[int]:
    return base.indices[base.indptr[node] : base.indptr[node + 1]].tolist()


def centres_of(level: str, base: Graph, label: int, nodes: list[int]) -> list[set[int]]:
    """What of a class a graph may lie around."""
    own = {v for v in nodes if base.y[v] == label}
    if level == "node":
        return [{v} for v in own]
    return [{u, v} for u in own for v in neighbours(base, u) if u < v and v in own]


@pytest.mark.parametrize("level", ["node", "edge"])
def test_graphs_are_what_hops_reach_and_all_edges_between(level: str) -> None:
    base, graph = base_of(), cut(level)
    least, most = HOPS[level]
    exact = 0
    for g, nodes in enumerate(nodes_of(graph, base)):
        assert nodes == sorted(set(nodes))
        assert len(nodes) <= 25
        rows = np.flatnonzero(graph.graph_of == g)
        edges = {(nodes[i - rows[0]], nodes[j - rows[0]]) for i in rows for j in neighbours(graph, i)}
        assert edges == {(u, v) for u in nodes for v in neighbours(base, u) if v in nodes}
        searches = [reached(base, c, least, most, 15) for c in centres_of(level, base, int(graph.y[g]), nodes)]
        if len(nodes) < 25:
            assert set(nodes) in searches
            exact += 1
        else:
            assert any(set(nodes) <= search for search in searches)
    assert exact > 20


@pytest.mark.parametrize("padding", ["none", "random", "same_class"])
@pytest.mark.parametrize("level", HOPS)
def test_graphs_are_those_that_plain_searches_and_the_same_draws_cut(level: str, padding: str) -> None:
    """Every draw is made again, from the nodes in the order in which a search over lists meets them."""
    options = replace(OPTIONS, dataset=f"induced-{level}", padding=padding, smallest=22)
    base, graph = base_of(), load(options)
    assert graph.copy_of is not None
    most, (least, farthest) = 4 * options.largest + 5, HOPS[level]
    numbers = [range((graph.y == label).sum()) for label in range(graph.classes)]
    number_of = [number for of_class in numbers for number in of_class]
    for g in range(graph.items):
        nodes, label = graph.copy_of[graph.graph_of == g].tolist(), int(graph.y[g])
        matching = []
        for centres in _centres_in_order(base, level, label, options)[number_of[g] : number_of[g] + 1]:
            met, border = list(centres), list(centres)
            for hop in range(farthest):
                if hop >= least and len(met) >= options.smallest:
                    break
                new = list(dict.fromkeys(n for v in border for n in neighbours(base, v) if n not in met))
                border = new[: most - len(met)]
                met += border
            rng = np.random.default_rng([options.seed, list(HOPS).index(level), label, number_of[g], 1])
            if len(met) > options.largest:
                kept = rng.choice(met[len(centres) :], options.largest - len(centres), replace=False)
                met = [*centres, *kept.tolist()]
            elif len(met) < options.smallest and padding != "none":
                pool = [v for v in range(base.nodes) if padding == "random" or base.y[v] == label]
                pool = [v for v in pool if v not in met]
                met += rng.choice(pool, min(options.smallest - len(met), len(pool)), replace=False).tolist()
            matching.append(sorted(met))
        assert matching == [nodes]


def _centres_in_order(base: Graph, level: str, label: int, options: DataSource) -> list[list[int]]:
    rng = np.random.default_rng([options.seed, label, list(HOPS).index(level)])
    members = rng.permutation([v for v in range(base.nodes) if base.y[v] == label])
    if level == "node":
        return [[int(v)] for v in members]
    if level == "edge":
        own = {int(v) for v in members}
        pairs = [[u, v] for u in sorted(own) for v in neighbours(base, u) if u < v and v in own]
        return rng.permutation(np.array(pairs)).tolist()
    middle = -(-len(members) // 2)
    groups = []
    for half in (members[:middle], members[middle:]):
        for _ in range(options.samples):
            groups.append(rng.choice(half, int(rng.integers(3, 6)), replace=False).tolist())
    return groups


@pytest.mark.parametrize("shots", [None, 4])
def test_outlines_have_the_graphs_and_parts_without_features(shots: int | None) -> None:
    levels = [replace(OPTIONS, dataset=f"induced-{level}", shots=shots) for level in HOPS]
    whole, large = load_all(levels), LargeGraph(outlines=True)
    load_outlines([replace(options, shots=2) for options in levels], large)
    outline = load_outlines(levels, large)
    assert outline.x.shape == whole.x.shape
    for name in ("indptr", "indices", "y", "split", "graph_of", "copy_of"):
        np.testing.assert_array_equal(getattr(outline, name), getattr(whole, name))
    for name in ("classes", "domains", "name", "item_name"):
        assert getattr(outline, name) == getattr(whole, name)


def test_groups_of_training_and_test_graphs_share_no_node() -> None:
    """Without a hop a graph is its group; the training and the test half of a class are apart."""
    base = base_of()
    lonely = graph_of([[], []], base.x, base.y)
    graph = cut_graphs(lonely, "graph", OPTIONS)
    seen: dict[tuple[int, bool], set[int]] = {}
    for g, nodes in enumerate(nodes_of(graph, lonely)):
        assert 3 <= len(nodes) <= 5
        assert {int(base.y[v]) for v in nodes} == {int(graph.y[g])}
        seen.setdefault((int(graph.y[g]), graph.split[g] == TEST), set()).update(nodes)
    for label in range(3):
        assert not seen[label, False] & seen[label, True]
    assert Counter(len(part) for part in features(graph)).keys() == {3, 4, 5}


@pytest.mark.parametrize("level", ["node", "edge"])
def test_no_centre_is_taken_twice(level: str) -> None:
    """Graphs of one centre each: without hops beyond it they are the centres themselves."""
    pairs = np.arange(60).reshape(-1, 2).T
    x = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    apart = graph_of(pairs, x, np.repeat([0, 1], 30))
    graph = cut_graphs(apart, level, OPTIONS)
    nodes = nodes_of(graph, apart)
    assert all(len(part) == 2 and part[0] % 2 == 0 and part[1] == part[0] + 1 for part in nodes)
    times = Counter(part[0] for part in nodes)
    assert (set(times.values()), len(times)) == ({2} if level == "node" else {1}, 30)


def test_counts_by_class() -> None:
    """20 + 20 where there are as many, of which 3 validate; of few, two of four quarters train, the rest is tested."""
    graph = cut("node")
    for label in range(3):
        of = Counter(graph.split[graph.y == label].tolist())
        assert of == {TRAIN: 17, VAL: 3, TEST: 20}
    rare = base_of()
    y = rare.y.copy()
    y[np.flatnonzero(y == 2)[11:]] = -1
    few = cut_graphs(replace(rare, y=y), "node", OPTIONS)
    assert Counter(few.split[few.y == 2].tolist()) == {TRAIN: 3, VAL: 1, TEST: 7}
    assert (few.y >= 0).all()
    one = y.copy()
    one[np.flatnonzero(one == 2)[1:]] = -1
    for level, found in {"node": {TEST: 1}, "edge": {}, "graph": {TRAIN: 17, VAL: 3}}.items():
        of_level = cut_graphs(replace(rare, y=one), level, OPTIONS)
        assert Counter(of_level.split[of_level.y == 2].tolist()) == found


@pytest.mark.parametrize("padding", ["none", "random"])
@pytest.mark.parametrize("level", ["node", "edge", "graph"])
def test_labels_of_other_nodes_are_not_read(level: str, padding: str) -> None:
    """Other nodes of the graphs may change theirs as they like, as long as the same ones are centres."""
    base = base_of()
    y = base.y.copy()
    y[np.random.default_rng(1).permutation(base.nodes)[:250]] = -1
    hidden, options = replace(base, y=y), replace(OPTIONS, padding=padding, smallest=24)
    other = np.where(y < 0, 3, y)
    first = cut_graphs(hidden, level, options)
    second = cut_graphs(replace(hidden, y=other, classes=4), level, options)
    known = second.y < 3
    assert first.items == known.sum()
    for a, b in zip(features(first), np.array(features(second), dtype=object)[known], strict=True):
        np.testing.assert_array_equal(a, b)


def test_padding_fills_up_and_of_one_class_where_asked() -> None:
    base = base_of()
    lonely = graph_of([[], []], base.x, base.y)
    alone = cut_graphs(lonely, "node", OPTIONS)
    assert {len(part) for part in features(alone)} == {1}
    filled = cut_graphs(lonely, "node", replace(OPTIONS, padding="random"))
    told = cut_graphs(lonely, "node", replace(OPTIONS, padding="same_class"))
    mixed = 0
    for graph, of_one in ((filled, False), (told, True)):
        for g, nodes in enumerate(nodes_of(graph, lonely)):
            assert len(set(nodes)) == 15
            classes = {int(base.y[v]) for v in nodes}
            assert int(graph.y[g]) in classes
            if of_one:
                assert len(classes) == 1
            mixed += len(classes) > 1
    assert mixed > 100


@pytest.mark.parametrize("sparse", [False, True])
def test_features_are_those_of_a_full_decomposition(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    x = (rng.random((80, 30)) * (rng.random((80, 30)) < 0.3) * np.linspace(3, 0.1, 30)).astype(np.float32)
    u, s, vt = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    found = reduce_features(sp.csr_array(x) if sparse else x, 4, 0)
    for column in range(4):
        sign = np.sign(vt[column, np.abs(vt[column]).argmax()])
        np.testing.assert_allclose(found[:, column], sign * s[column] * u[:, column], rtol=1e-3, atol=1e-3)
    # More columns than there are in x are zero.
    wide = reduce_features(x[:, :3], 5, 0)
    assert wide.dtype == np.float32
    assert (wide[:, 3:] == 0).all()


@pytest.mark.parametrize("level", HOPS)
def test_few_shots_take_training_graphs_away_and_nothing_else(level: str) -> None:
    all_of, few = cut(level), cut(level, shots=4)
    assert np.array_equal(all_of.x, few.x)
    assert np.array_equal(all_of.indices, few.indices)
    for label in range(3):
        trained, kept = (np.flatnonzero((all_of.y == label) & (split == TRAIN)) for split in (all_of.split, few.split))
        assert kept.tolist() == trained[:4].tolist()
        assert (few.split[trained[4:]] == 0).all()
    for part in (VAL, TEST):
        assert np.array_equal(all_of.split == part, few.split == part)


def test_what_is_known_ahead() -> None:
    assert (labels_ahead(OPTIONS), classes_ahead(OPTIONS)) == ("graph", 3)
    content = fingerprint(OPTIONS)
    assert json.loads(json.dumps(content)) == content
    assert content["base"] == fingerprint(replace(OPTIONS, dataset="sbm"))


UNFIT: list[dict[str, Any]] = [
    *({"base": base} for base in (None, "sbn", "nci1", "induced-edge", "pyg:", "pyg:KarateClubb", "pyg:Planetoid")),
    *({key: 0} for key in ("samples", "shots", "width", "smallest")),
    {"largest": 14},
    {"largest": 4, "smallest": 1},
    {"padding": "zeros"},
]


@pytest.mark.parametrize("changes", UNFIT, ids=str)
def test_what_cannot_be_cut(changes: dict[str, Any]) -> None:
    with refused(f"data.options.{next(iter(changes))}"):
        load(replace(OPTIONS, **changes))


def test_a_dataset_of_pyg_is_a_base() -> None:
    options = DataSource("induced-node", base="pyg:KarateClub", samples=5, width=5, smallest=8, largest=12)
    base = load(DataSource("pyg:KarateClub"))
    graph, expected = load(options), cut_graphs(base, "node", options)
    assert (graph.classes, labels_ahead(options)) == (base.classes, "graph")
    assert np.array_equal(graph.x, expected.x)
    assert np.array_equal(graph.y, expected.y)
    assert fingerprint(options)["base"] == fingerprint(DataSource("pyg:KarateClub"))


def test_a_base_without_labels_or_of_small_graphs_is_refused() -> None:
    base = base_of()
    for unfit in (replace(base, y=np.full(base.nodes, -1)), cut("node")):
        with refused("data.options.base"):
            cut_graphs(unfit, "node", OPTIONS)
