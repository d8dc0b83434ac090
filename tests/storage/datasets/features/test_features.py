"""Features: sparse or dense, finite, normalised, against dense algebra and PyG; made ones against their definitions."""

import dataclasses

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from shoal.storage.datasets.features import features
from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.datasets.features.made_features import DENSE_NODES, made_features
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import clean_edges


@pytest.fixture(params=[3, 1 << 22])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "BLOCK_VALUES", request.param)


def words(rows: int = 50, columns: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.random((rows, columns)) < 0.2) * rng.integers(1, 9, (rows, columns))
    x[7] = 0
    return x.astype(np.float32)


def test_compact_is_sparse_where_that_is_smaller() -> None:
    """400 bytes of dense numbers; 8 for a number beside its column, and 4 for a row."""
    x = np.zeros((10, 10))
    x.flat[:44] = 1
    below = features.compact(x)
    assert sp.issparse(below)
    assert (below.toarray() == x).all()
    x.flat[:45] = 1
    assert isinstance(features.compact(x), np.ndarray)
    assert features.compact(x).dtype == below.dtype == np.float32


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [[0], [31, 49], [49]])
def test_check_finite_names_the_first_bad_row(sparse: bool, value: float, rows: list[int]) -> None:
    x = words()
    features.check_finite(sp.csr_array(x) if sparse else x, "x.npy")
    x[rows, 17] = value
    with refused("x.npy", says=f"row {rows[0]} "):
        features.check_finite(sp.csr_array(x) if sparse else x, "x.npy")


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("sparse", [False, True])
def test_row_normalized_equals_pyg(sparse: bool) -> None:
    x = words()
    given = sp.csr_array(x) if sparse else x.copy()
    scaled = features.row_normalized(given, "x")
    assert sp.issparse(scaled) == sparse
    assert scaled.dtype == np.float32
    truth = NormalizeFeatures()(Data(x=torch.from_numpy(x.copy()))).x.numpy()
    np.testing.assert_allclose(scaled.toarray() if sparse else scaled, truth, rtol=1e-6)
    assert ((given.toarray() if sparse else given) == x).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_row_normalized_refuses_negative_features(sparse: bool) -> None:
    x = words()
    x[3, 3] = -1
    with refused("x"):
        features.row_normalized(sp.csr_array(x) if sparse else x, "x")


LIMIT = 1 << 30
# A star of three leaves, one more edge at a leaf, and a node alone.
EDGES = np.array([[0, 0, 0, 3], [1, 2, 3, 4]])


def made(kind: str, width: int = 4, seed: int = 0, edges: np.ndarray = EDGES, nodes: int = 6) -> np.ndarray:
    indptr, indices, _ = clean_edges(edges, nodes, "test")
    x = made_features(indptr, indices, MadeFeatures(kind, width, seed), LIMIT)  # type: ignore[arg-type]
    assert x.dtype == np.float32
    return x if isinstance(x, np.ndarray) else x.toarray()


def test_degrees_of_the_last_column_and_above_are_one() -> None:
    degrees = [3, 1, 1, 2, 1, 0]
    assert made("degree").argmax(axis=1).tolist() == degrees
    assert made("degree", 3).tolist() == [[min(d, 2) == k for k in range(3)] for d in degrees]


def test_one_column_a_node() -> None:
    assert (made("one-hot") == np.eye(6)).all()
    with refused("data.features", says="20001 are more than 20000"):
        made("one-hot", nodes=20_001)


def test_random_numbers_follow_the_seed_and_are_standard_normal() -> None:
    x = made("random", 50, 3, nodes=4000)
    assert (x == made("random", 50, 3, nodes=4000)).all()
    assert (x != made("random", 50, 4, nodes=4000)).mean() > 0.99
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01


@pytest.mark.parametrize("nodes", [40, DENSE_NODES + 1])
def test_eigenvectors_of_the_normalised_adjacency(nodes: int) -> None:
    rng = np.random.default_rng(1)
    edges = np.concatenate([rng.integers(nodes - 1, size=(2, 4 * nodes)), [range(nodes - 2), range(1, nodes - 1)]], 1)
    x = made("spectral", 5, edges=edges, nodes=nodes).astype(np.float64)
    adjacency = np.zeros((nodes, nodes))
    proper = edges[:, edges[0] != edges[1]]
    adjacency[proper[0], proper[1]] = adjacency[proper[1], proper[0]] = 1
    degree = adjacency.sum(axis=1)
    root = np.where(degree > 0, degree, 1) ** -0.5
    matrix = root[:, None] * adjacency * root
    values = np.sort(np.linalg.eigvalsh(matrix))[::-1][:5]
    assert values[0] == pytest.approx(1)
    np.testing.assert_allclose(matrix @ x, x * values, atol=1e-4)
    np.testing.assert_allclose(x.T @ x / nodes, np.eye(5), atol=1e-4)
    assert (x[np.abs(x).argmax(axis=0), range(5)] > 0).all()
    # The node without edges.
    np.testing.assert_allclose(x[-1], 0, atol=1e-5)


def test_too_wide_and_too_large() -> None:
    with refused("data.features.width"):
        made("spectral", 7)
    with refused("data.features", says="take 96 bytes, the limit is 95"):
        made_features(np.zeros(7, dtype=np.int64), np.empty(0, np.int32), MadeFeatures("random", 4), 95)


def test_they_take_the_place_of_a_datasets_own() -> None:
    own = DataSource("sbm", nodes=40, classes=2)
    graph = load(dataclasses.replace(own, made=MadeFeatures("degree", 8)))
    assert graph.x.shape == (40, 8)
    assert (graph.x.toarray().argmax(axis=1) == np.minimum(np.diff(graph.indptr), 7)).all()
    cut = DataSource("induced-node", base="sbm", nodes=60, classes=2, smallest=5, largest=9, samples=4, width=6)
    assert load(dataclasses.replace(cut, made=MadeFeatures("random", 20))).features == 6
