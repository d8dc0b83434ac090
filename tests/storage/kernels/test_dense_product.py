"""Products of dense matrices by address beside float64's."""

import numpy as np
import pytest

from shoal.storage.kernels.dense_product import MOST, ROWS, multiply_dense, square_distances
from shoal.storage.kernels.sparse_product import LANES

ONE, ZERO = np.float32(1), np.float32(0)
# Sizes below, at and above those of a tile.
SIZES = [0, 1, ROWS - 1, ROWS, 2 * ROWS + 1]
COLUMNS = [1, 3, 4, 5, 8, 9, LANES, LANES + 1, MOST * LANES, MOST * LANES + 5]


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray, beta: np.float32, transposed: bool = False) -> None:
    """Computes out = A B + beta out, or A' B, for matrices whose rows may lie apart."""
    rows, steps = (stride // 4 for stride in a.strides)
    depth, count = a.shape if transposed else a.shape[::-1]
    places = (steps, rows) if transposed else (rows, steps)
    at = [matrix.ctypes.data for matrix in (a, b, out)]
    multiply_dense(at[0], *places, at[1], b.strides[0] // 4, at[2], out.strides[0] // 4, count, depth, b.shape[1], beta)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", SIZES)
def test_products_are_those_of_float64_and_touch_nothing_else(rows: int, columns: int, transposed: bool) -> None:
    rng = np.random.default_rng(rows + 100 * columns)
    for depth in (0, 1, 7):
        shape = (depth, rows) if transposed else (rows, depth)
        a = rng.standard_normal(shape).astype(np.float32)
        # The right factor and the result are parts of wider matrices.
        b = np.full((depth, columns + 3), np.nan, np.float32)[:, :columns]
        b[:] = rng.standard_normal((depth, columns))
        whole = np.full((rows + 1, columns + 2), np.nan, np.float32)
        out, expected = whole[:rows, :columns], (a.T if transposed else a).astype(np.float64) @ b.astype(np.float64)
        multiply(a, b, out, ZERO, transposed)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
        assert np.isnan(whole[rows:]).all()
        assert np.isnan(whole[:, columns:]).all()
        multiply(a, b, out, ONE, transposed)
        np.testing.assert_allclose(out, 2 * expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", SIZES)
def test_squared_distances_are_those_of_float64_of_near_pairs_too(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows + 100 * columns)
    for depth in (0, 1, 7):
        b = rng.standard_normal((depth, columns)).astype(np.float32)
        # Rows are a thousandth away from a column each, or far.
        a = b.T[np.arange(rows) % columns] + np.float32(1e-3) * rng.standard_normal((rows, depth)).astype(np.float32)
        a[1::2] = rng.standard_normal(a[1::2].shape)
        whole = np.full((rows + 1, columns + 2), np.nan, np.float32)
        square_distances(
            a.ctypes.data, depth, b.ctypes.data, columns, whole.ctypes.data, columns + 2, rows, depth, columns
        )
        expected = np.square(a[:, :, None].astype(np.float64) - b).sum(1)
        np.testing.assert_allclose(whole[:rows, :columns], expected, rtol=1e-6, atol=0)
        assert np.isnan(whole[rows:]).all()
        assert np.isnan(whole[:, columns:]).all()


def test_a_number_depends_on_its_row_and_its_column_alone() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2 * ROWS + 1, 50), (50, MOST * LANES + 5)))
    whole = np.empty((len(a), b.shape[1]), np.float32)
    multiply(a, b, whole, ZERO)
    for row in (0, ROWS, 2 * ROWS):
        for column in (0, LANES - 1, b.shape[1] - 1):
            alone = np.empty((1, 1), np.float32)
            multiply(a[row : row + 1], np.ascontiguousarray(b[:, column : column + 1]), alone, ZERO)
            assert alone[0, 0] == whole[row, column]
