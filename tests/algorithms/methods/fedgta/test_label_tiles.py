"""The passes over tiles of classes, one by one: against dense algebra and by hand."""

import numpy as np
import pytest

from shoal.algorithms.methods.fedgta.label_tiles import (
    CACHE_LINE,
    WIDTH,
    empty_tiles,
    fill,
    propagate,
    read,
    sum_powers,
)


def tiles_of(y: np.ndarray) -> np.ndarray:
    z = empty_tiles(*y.shape)
    z[:] = np.nan
    fill(y, np.ones(len(y), dtype=np.float32), z)
    return z


def rows_of(z: np.ndarray, classes: int) -> np.ndarray:
    return z.transpose(1, 0, 2).reshape(z.shape[1], -1)[:, :classes]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@pytest.mark.parametrize(("classes", "tiles"), [(1, 1), (15, 1), (16, 1), (17, 2), (172, 11)])
def test_tiles_hold_all_classes_and_zeros_from_a_cache_line_on(classes: int, tiles: int) -> None:
    y, sent = random(5, classes), np.array([1, 2, 3, 4, 5], dtype=np.float32)
    z = empty_tiles(5, classes)
    z[:] = np.nan
    fill(y, sent, z)
    assert z.shape == (tiles, 5, WIDTH)
    assert z.ctypes.data % CACHE_LINE == 0
    assert np.array_equal(rows_of(z, classes), sent[:, None] * y)
    assert not rows_of(z, tiles * WIDTH)[:, classes:].any()


@pytest.mark.parametrize("classes", [3, 16, 40])
def test_rows_are_read_scaled_from_any_row_on(classes: int) -> None:
    y, scales = random(7, classes), random(7, seed=1)
    out = np.full((4, classes), np.nan, dtype=np.float32)
    read(tiles_of(y), scales, 2, out)
    assert np.array_equal(out, scales[2:6, None] * y[2:6])


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("classes", [3, 20])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("weight", [None, [2.0, 2.0, 0.5, 0.5]])
def test_a_path_and_a_node_alone(classes: int, dtype: type, weight: list[float] | None) -> None:
    # 0 - 1 - 2, and 3 alone.
    indptr, indices = np.array([0, 1, 3, 4, 4], dtype=dtype), np.array([1, 0, 2, 1], dtype=np.int32)
    for array in (indptr, indices):
        array.flags.writeable = False
    a, b = (1, 1) if weight is None else (2, 0.5)
    loops = np.array([[1, a, 0, 0], [a, 1, b, 0], [0, b, 1, 0], [0, 0, 0, 1]])
    weights = None if weight is None else np.array(weight, dtype=np.float32)
    z, seed, shares = random(4, classes), random(4, classes, seed=1), np.array([1, 2, 3, 4], dtype=np.float32)
    out, totals = empty_tiles(4, classes), np.full(4, np.nan)
    propagate(indptr, indices, tiles_of(z), tiles_of(seed), np.float32(0.25), shares, out, totals, weights)
    expected = 0.25 * seed + shares[:, None] * (loops @ z)
    np.testing.assert_allclose(rows_of(out, classes), expected, rtol=1e-6)
    np.testing.assert_allclose(totals, expected.sum(1), rtol=1e-6)


@pytest.mark.parametrize("orders", [1, 2, 3, 4, 6, 20])
@pytest.mark.parametrize(("nodes", "classes"), [(1, 1), (31, 16), (32, 17), (33, 5), (100, 40)])
def test_sums_of_powers(orders: int, nodes: int, classes: int) -> None:
    y, scales, origin = random(nodes, classes), random(nodes, seed=1), random(classes, seed=2)
    tiles = -(-classes // WIDTH)
    places = np.zeros((tiles, WIDTH), dtype=np.float32)
    places.reshape(-1)[:classes] = origin
    out = np.full((tiles, orders, WIDTH), np.nan)
    sum_powers(tiles_of(y), scales, places, out)
    base = scales[:, None].astype(np.float64) * y - origin
    expected = np.stack([(base**k).sum(0) for k in range(1, orders + 1)])
    np.testing.assert_allclose(out.transpose(1, 0, 2).reshape(orders, -1)[:, :classes], expected, rtol=1e-4, atol=1e-5)


def test_sums_of_many_rows_keep_small_terms() -> None:
    # One row of 2^24 in front, to which float32 can add no further one.
    scales = np.ones(1000, dtype=np.float32)
    scales[0] = 2**24
    out = np.empty((1, 1, WIDTH))
    sum_powers(tiles_of(np.ones((1000, 1), dtype=np.float32)), scales, np.zeros((1, WIDTH), dtype=np.float32), out)
    assert out[0, 0, 0] >= 2**24 + 900
