"""Hops of sparse features have the bits of those of dense ones, in whichever layout is smaller."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.graph import sparse_hops
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.propagation import hops
from shoal.storage.graph.rows import CsrRows, Rows, dense_bytes, sparse_bytes
from shoal.storage.options.propagation import PropagationOptions


def dense(x: Rows) -> np.ndarray:
    return x.toarray() if isinstance(x, CsrRows) else x


def sparse(x: np.ndarray) -> CsrRows:
    csr = sp.csr_array(x.astype(np.float32))
    return CsrRows(csr.indptr.astype(np.int32), csr.indices.astype(np.int32), csr.data.astype(x.dtype), x.shape[1])


def graph_of(make_graph: Callable[..., Graph], density: float) -> tuple[np.ndarray, np.ndarray]:
    graph = make_graph(4, 60, density)
    return graph.indptr.astype(np.int32), graph.indices


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("weights", ["none", "ones", "drawn"])
@pytest.mark.parametrize(("r", "features", "share"), [(0.5, 900, 0.01), (0.0, 30, 0.1), (1.0, 7, 0.02), (0.3, 300, 0)])
def test_bits_of_the_dense_kernel(
    make_graph: Callable[..., Graph],
    dtype: Literal["float32", "float16"],
    r: float,
    features: int,
    share: float,
    weights: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparse_hops, "BLOCK_VALUES", 1000)
    rng = np.random.default_rng(0)
    x = ((rng.random((60, features)) < share) * rng.standard_normal((60, features))).astype(dtype)
    x[:5] = 0
    graph = graph_of(make_graph, 0.04)
    # The kernels do not mind that drawn ones differ both ways.
    drawn = rng.uniform(0.1, 3, len(graph[1])).astype(np.float32)
    weight = {"none": None, "ones": np.ones_like(drawn), "drawn": drawn}[weights]
    propagation = PropagationOptions(4, r, dtype)
    found = hops(*graph, sparse(x), propagation, weight)
    expected = hops(*graph, x, propagation, None if weights == "ones" else weight)
    for mine, truth in zip(found, expected, strict=True):
        assert mine.dtype == truth.dtype == dtype
        np.testing.assert_array_equal(dense(mine), truth)
        entries = np.count_nonzero(truth)
        smaller = sparse_bytes(60, entries, dtype) < dense_bytes(60, features, dtype)
        # Float16 rounds some numbers to zero, which are kept.
        assert isinstance(mine, CsrRows) == smaller or dtype == "float16"
        if isinstance(mine, CsrRows):
            for low, high in zip(mine.indptr[:-1], mine.indptr[1:]):
                assert (np.diff(mine.columns[low:high]) > 0).all()


@pytest.mark.parametrize("features", [60, 200])
def test_hops_become_dense_and_stay_so(make_graph: Callable[..., Graph], features: int) -> None:
    x = sparse(np.eye(60, features, dtype=np.float32))
    layouts = [isinstance(hop, CsrRows) for hop in hops(*graph_of(make_graph, 0.04), x, PropagationOptions(6))]
    assert layouts[0]
    assert layouts == sorted(layouts, reverse=True)
    assert features > 60 or not layouts[-1]


@pytest.mark.parametrize("features", [3, 400])
def test_too_large_for_float16(make_graph: Callable[..., Graph], features: int) -> None:
    x = sparse(np.full((60, 1), 6e4, dtype=np.float16) * np.eye(1, features, dtype=np.float16))
    with refused("propagation.dtype", says="float16 ends at 65504, but a hop reaches"):
        hops(*graph_of(make_graph, 0.1), x, PropagationOptions(1, 1.0, "float16"))
