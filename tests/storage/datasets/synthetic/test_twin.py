"""Twins: counts, distinct edges, heavy tails, homophily, communities, and any part drawn alone as in the whole."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.storage.datasets.registry import fingerprint, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.twin import ORIGINALS, Twin
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

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
    assert abs(twin.nodes - nodes * scale) < 1
    found = edges_of(twin)
    assert abs(found.shape[1] - edges * scale) < 1
    assert found.min() >= 0
    assert found.max() < twin.nodes
    codes = np.concatenate(list(twin.split_codes()))
    labels = np.concatenate(list(twin.labels()))
    assert len(codes) == len(labels) == twin.nodes
    assert [int((codes == part).sum()) for part in (TRAIN, VAL, TEST)] == pytest.approx(np.array(split) * scale, abs=1)
    assert np.array_equal(labels == -1, codes == UNASSIGNED)
    assert labels.max() < classes
    assert len(np.unique(labels[labels >= 0])) > 0.3 * classes


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("homophily", [0.0, 0.6, 1.0])
def test_edges_are_distinct_even_without_direction(name: str, homophily: float) -> None:
    twin = small(name, homophily=homophily)
    low, high = np.sort(edges_of(twin), axis=0)
    assert (low < high).all()
    assert len(np.unique(low * twin.nodes + high)) == twin.edges


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("homophily", [0.3, 0.6, 0.8])
def test_homophily_is_as_asked(name: str, homophily: float) -> None:
    """Over all edges: labels are those of a twin whose split leaves out nobody."""
    twin = small(name, homophily=homophily)
    label = labels_of_all(twin)
    source, target = edges_of(twin)
    assert np.mean(label[source] == label[target]) == pytest.approx(homophily, abs=0.05)


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
