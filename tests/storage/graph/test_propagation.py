import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_graphs import rows_of, smoothing
from support.errors import refused
from support.induced_parts import csr_rows
from support.shards import dense

from shoal.storage.graph import propagation
from shoal.storage.graph.propagation import bound_degrees, hops, propagate
from shoal.storage.graph.rows import CsrRows, dense_bytes, sparse_bytes
from shoal.storage.kernels.spmm import converts_halves
from shoal.storage.options.propagation import PropagationOptions, propagation_of


def random_graph(seed: int, nodes: int, density: float) -> np.ndarray:
    """Dense symmetric adjacency without self loops; the last node is isolated."""
    upper = np.triu(np.random.default_rng(seed).random((nodes, nodes)) < density, 1)
    upper[:, -1:] = False
    return (upper | upper.T).astype(np.float64)


def features(seed: int, nodes: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((nodes, width)).astype(np.float32)


def one_hop(adjacency: np.ndarray, x: np.ndarray, r: float, **options: Any) -> np.ndarray:
    out = np.full_like(x, np.nan)
    propagate(*rows_of(adjacency), x, r, out, **options)
    return out


def test_four_nodes_by_hand_and_graphs_without_nodes_or_features() -> None:
    # 0 - 1 - 2, and 3 alone: degrees with self loop are 2, 3, 2, 1.
    graph = np.array([0, 1, 3, 4, 4]), np.array([1, 0, 2, 1], dtype=np.int32)
    x = np.array([[6.0], [12.0], [18.0], [5.0]], dtype=np.float32)
    for r, expected in ((0.0, [9, 12, 15, 5]), (1.0, [3 + 4, 3 + 4 + 9, 4 + 9, 5])):
        np.testing.assert_allclose(hops(*graph, x, PropagationOptions(1, r=r))[0][:, 0], expected, rtol=1e-6)
    for nodes, width in ((0, 3), (2, 0)):
        assert one_hop(np.zeros((nodes, nodes)), features(0, nodes, width), 0.5).shape == (nodes, width)


def test_sums_of_float16_are_float32() -> None:
    # A star: the hub adds 4096 halves, where float16 sums would stall at 2048.
    leaves = 4096
    indptr = np.concatenate([[0], np.arange(leaves, 2 * leaves + 1)])
    indices = np.concatenate([np.arange(1, leaves + 1), np.zeros(leaves)]).astype(np.int32)
    out = np.empty((leaves + 1, 1), dtype=np.float16)
    propagate(indptr, indices, np.ones((leaves + 1, 1), dtype=np.float16), 1.0, out)
    assert out[0, 0] == pytest.approx(leaves / 2, rel=1e-3)


@pytest.fixture(params=[True, False], ids=["converts halves", "converts none"])
def _any_processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(propagation, "converts_halves", lambda: False)


@pytest.mark.usefixtures("_any_processor")
def test_what_is_beyond_float16_is_refused_even_where_it_would_round_to_it() -> None:
    no_edges, out = rows_of(np.zeros((1, 1))), np.empty((1, 3), dtype=np.float16)
    x = np.array([[65504.0, -65504.0, np.nan]], dtype=np.float32)
    propagate(*no_edges, x, 0.5, out)
    np.testing.assert_array_equal(out, x)
    for value in (65505.0, -65519.0, np.inf, -np.inf):
        with refused("propagation.dtype"):
            propagate(*no_edges, np.array([[1.0, value, 0.0]], dtype=np.float32), 0.5, out)
    star = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]], dtype=np.float64)
    for sign in (1, -1):
        with refused("propagation.dtype", says="80000"):
            one_hop(star, np.full((3, 2), sign * 6e4, dtype=np.float16), 1.0)


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("float16", "float32"), ("float16", "float16")])
def test_processor_without_halves_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch, dtypes: tuple[str, str]) -> None:
    adjacency, x = random_graph(9, 70, 0.3), features(10, 70, 600).astype(dtypes[0])
    outs = [np.empty(x.shape, dtype=dtypes[1]) for _ in range(2)]
    propagate(*rows_of(adjacency), x, 0.5, outs[0])
    monkeypatch.setattr(propagation, "converts_halves", lambda: False)
    propagate(*rows_of(adjacency), x, 0.5, outs[1])
    np.testing.assert_array_equal(*outs)


def test_float16_is_read_exactly_and_written_to_nearest_even() -> None:
    no_edges = rows_of(np.zeros((1, 1)))
    halves = np.arange(2**16).astype(np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)][None]
    read = np.empty(halves.shape, dtype=np.float32)
    propagate(*no_edges, halves, 0.5, read)
    assert np.array_equal(read.view(np.uint32), halves.astype(np.float32).view(np.uint32))
    # Every float16, what lies halfway to the next, and its two neighbours in float32.
    ascending = np.unique(halves.astype(np.float32))
    halfway = (ascending[1:] + ascending[:-1]) / 2
    x = np.concatenate([ascending, halfway, np.nextafter(halfway, np.inf), np.nextafter(halfway, -np.inf)])
    x = x.astype(np.float32)[None]
    written = np.empty(x.shape, dtype=np.float16)
    propagate(*no_edges, x, 0.5, written)
    assert np.array_equal(written.view(np.uint16), x.astype(np.float16).view(np.uint16))


WIDTHS = (1, 3, 7, 8, 9, 16, 31, 32, 33, 63, 100, 128)


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("out_dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("r", "pointer"), [(r, np.int64) for r in (0.0, 0.25, 0.5, 1.0)] + [(0.25, np.int32)])
def test_the_kernel_equals_dense_algebra(r: float, dtype: type, out_dtype: type, pointer: type) -> None:
    adjacency = random_graph(19, 150, 0.6)
    adjacency[:, 40:50] = adjacency[40:50] = 0
    indptr, indices = rows_of(adjacency)
    # A sum of 80 float32 terms, and where `out` is float16, one rounding: neighbours of one float16 lie 2^-10 apart.
    rtol = 1e-5 if out_dtype == np.float32 else 2.0**-10
    for width in WIDTHS:
        x = features(width, 150, width).astype(dtype)
        out = np.full(x.shape, np.nan, dtype=out_dtype)
        propagate(indptr.astype(pointer), indices, x, r, out)
        np.testing.assert_allclose(out, smoothing(adjacency, r) @ x.astype(np.float64), rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_column_depends_on_no_other_column(dtype: type) -> None:
    adjacency, x = random_graph(20, 90, 0.4), features(21, 90, 100).astype(dtype)
    whole = one_hop(adjacency, x, 0.5)
    assert np.array_equal(one_hop(adjacency, x, 0.5), whole)
    for start, width in [(0, 1), (5, 7), (11, 8), (40, 33), (3, 64), (1, 99)]:
        columns = slice(start, start + width)
        assert np.array_equal(one_hop(adjacency, x[:, columns].copy(), 0.5), whole[:, columns])


def test_several_threads_at_once_and_either_pointer_change_no_bit() -> None:
    adjacency, x = random_graph(22, 300, 0.3), features(23, 300, 65)
    indptr, indices = rows_of(adjacency)
    pointers = [indptr, indptr.astype(np.int64)] * 4
    outs = [np.empty_like(x) for _ in pointers]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pointer, out: propagate(pointer, indices, x, 0.5, out), pointers, outs))
    assert all(np.array_equal(out, outs[0]) for out in outs)


def test_whether_the_processor_converts_float16() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    flags = next((line.split() for line in cpuinfo.open() if line.startswith("flags")), []) if cpuinfo.exists() else []
    if not flags:
        pytest.skip("the system does not list the flags of an x86 processor")
    assert converts_halves() == ("f16c" in flags)


def test_inputs_may_be_read_only_maps_and_nothing_warns(tmp_path) -> None:
    adjacency, x = random_graph(13, 30, 0.2), features(14, 30, 5)
    arrays = []
    for name, array in zip(("indptr", "indices", "x"), (*rows_of(adjacency), x)):
        np.save(tmp_path / f"{name}.npy", array)
        arrays.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    out = np.lib.format.open_memmap(tmp_path / "out.npy", mode="w+", dtype=np.float32, shape=x.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        propagate(arrays[0].astype(np.int32), *arrays[1:], 0.5, out)
    np.testing.assert_allclose(out, smoothing(adjacency, 0.5) @ x, rtol=1e-5, atol=1e-6)


def weigh(adjacency: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The adjacency with weights in the place of ones, float64, and the weights of its entries, float32."""
    upper = np.triu(np.random.default_rng(seed).uniform(0.05, 6, adjacency.shape).astype(np.float32))
    weighted = (upper + np.triu(upper, 1).T) * adjacency
    return weighted, weighted[adjacency > 0].astype(np.float32)


@pytest.mark.parametrize(("r", "width"), [(0.5, 1), (0.0, 5), (1.0, 40), (0.3, 9)])
def test_weights_are_the_entries_of_the_dense_operator(r: float, width: int) -> None:
    adjacency, x = random_graph(21, 40, 0.2), features(22, 40, width)
    weighted, weight = weigh(adjacency, 23)
    expected = smoothing(weighted, r) @ x
    for dtype, rtol in ((np.float32, 1e-5), (np.float16, 3e-3)):
        out = np.empty(x.shape, dtype=dtype)
        propagate(*rows_of(adjacency), x.astype(dtype), r, out, weight=weight)
        np.testing.assert_allclose(out, expected, rtol=rtol, atol=2 * rtol)
    # Weights of one have the bits of no weights.
    ones = one_hop(adjacency, x, r, weight=np.ones_like(weight))
    np.testing.assert_array_equal(ones, one_hop(adjacency, x, r))


SHARES = st.floats(0, 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 5), SHARES, SHARES, st.integers(0, 4))
def test_any_small_graph(seed: int, nodes: int, width: int, density: float, r: float, k: int) -> None:
    adjacency, x = random_graph(seed, nodes, density), features(seed, nodes, width)
    result = hops(*rows_of(adjacency), x, PropagationOptions(k, r))
    assert len(result) == k
    expected = x.astype(np.float64)
    for hop in result:
        expected = smoothing(adjacency, r) @ expected
        assert hop.dtype == np.float32
        np.testing.assert_allclose(hop, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("weights", ["none", "ones", "drawn"])
@pytest.mark.parametrize(("r", "width", "share"), [(0.5, 900, 0.01), (0.0, 30, 0.1), (1.0, 7, 0.02), (0.3, 300, 0)])
def test_bits_of_the_dense_kernel(dtype: Any, r: float, width: int, share: float, weights: str) -> None:
    rng = np.random.default_rng(0)
    x = ((rng.random((60, width)) < share) * rng.standard_normal((60, width))).astype(dtype)
    x[:5] = 0
    graph = rows_of(random_graph(4, 60, 0.04))
    # The kernels do not mind that drawn ones differ both ways.
    drawn = rng.uniform(0.1, 3, len(graph[1])).astype(np.float32)
    weight = {"none": None, "ones": np.ones_like(drawn), "drawn": drawn}[weights]
    options = PropagationOptions(4, r, dtype)
    expected = hops(*graph, x, options, None if weights == "ones" else weight)
    for mine, truth in zip(hops(*graph, csr_rows(x), options, weight), expected, strict=True):
        assert mine.dtype == truth.dtype == dtype
        np.testing.assert_array_equal(dense(mine), truth)
        entries = np.count_nonzero(truth)
        smaller = sparse_bytes(60, entries, dtype) < dense_bytes(60, width, dtype) and entries <= 0.4 * truth.size
        # Float16 rounds some numbers to zero, which are kept.
        assert isinstance(mine, CsrRows) == smaller or dtype == "float16"
        if isinstance(mine, CsrRows):
            for low, high in zip(mine.indptr[:-1], mine.indptr[1:]):
                assert (np.diff(mine.columns[low:high]) > 0).all()


@pytest.mark.parametrize("width", [60, 200])
def test_hops_become_dense_and_stay_so(width: int) -> None:
    x = csr_rows(np.eye(60, width, dtype=np.float32))
    found = hops(*rows_of(random_graph(4, 60, 0.04)), x, PropagationOptions(6))
    layouts = [isinstance(hop, CsrRows) for hop in found]
    assert layouts[0]
    assert layouts == sorted(layouts, reverse=True)
    assert width > 60 or not layouts[-1]


@pytest.mark.parametrize("width", [3, 400])
def test_too_large_for_float16(width: int) -> None:
    x = csr_rows(np.full((60, 1), 6e4, dtype=np.float16) * np.eye(1, width, dtype=np.float16))
    with refused("propagation.dtype", says="float16 ends at 65504, but a hop reaches"):
        hops(*rows_of(random_graph(4, 60, 0.1)), x, PropagationOptions(1, 1.0, "float16"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.1, 0.4, 0.9]))
def test_bounded_graphs_keep_edges_that_are_among_the_first_at_both_nodes(seed: int, most: int, density: float) -> None:
    adjacency = random_graph(seed, 14, density)
    indptr, indices = rows_of(adjacency)
    weight = np.triu(np.random.default_rng(seed).random((14, 14)), 1).astype(np.float32)
    of_entries = (weight + weight.T)[np.nonzero(adjacency)]
    pointer, kept, weights = bound_degrees(indptr, indices, most, of_entries)
    found = np.zeros_like(adjacency)
    found[np.repeat(np.arange(14), np.diff(pointer)), kept] = 1
    assert pointer.dtype == indptr.dtype
    assert pointer[-1] == len(kept) == found.sum()
    assert (found == found.T).all()
    assert (found <= adjacency).all()
    assert found.sum(0).max() <= most
    assert weights is not None
    np.testing.assert_array_equal(weights, (weight + weight.T)[np.nonzero(found)])
    # The edge with the smallest number among those of both of its nodes stays: there is one.
    assert found.any() == adjacency.any()
    if adjacency.sum(0).max() <= most:
        assert kept is indices


def test_hops_of_a_degree_run_over_the_bounded_graph() -> None:
    # A star of four leaves: one edge stays, whichever; its leaf and the hub average, others keep their own.
    star = np.zeros((5, 5))
    star[0, 1:] = star[1:, 0] = 1
    x = np.arange(5, dtype=np.float32)[:, None]
    options = PropagationOptions(1, 0.0, max_degree=1)
    found = hops(*rows_of(star), x, options)[0][:, 0]
    moved = np.flatnonzero(found[1:] != x[1:, 0]) + 1
    assert len(moved) == 1
    assert found[0] == found[moved[0]] == moved[0] / 2
    for name in ("r0.0-k1-float32-degree1", "r0.5-k2-float16-degree12-labelled"):
        assert propagation_of(name).name == name
    assert propagation_of(options.name) == options
