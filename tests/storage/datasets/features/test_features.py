"""Sparse or dense, finite, normalised: against dense algebra and PyG's transform, across block borders."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from shoal.storage.datasets.features import features


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
