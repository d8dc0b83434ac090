import numpy as np
import pytest
import scipy.sparse as sp
import torch

from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.kernels.sparse_product import multiply

ROWS, COLUMNS = 23, 17
TYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64, "ones": np.float32}


def drawn(seed: int = 0, rows: int = ROWS, columns: int = COLUMNS) -> np.ndarray:
    """Float64 `[rows, columns]`, some rows and one column of which are empty."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.4)
    dense[[0, rows // 2, rows - 1]] = 0
    dense[:, columns // 2] = 0
    return dense


def of(dense: np.ndarray) -> SparseMatrix:
    csr = sp.csr_array(dense)
    return SparseMatrix.of(csr.indptr.astype(np.int32), csr.indices.astype(np.int32), csr.data, dense.shape[1])


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("kind", TYPES)
def test_a_product_of_any_width_is_that_of_dense_matrices(kind: str, index: type) -> None:
    dense = drawn().astype(TYPES[kind]).astype(np.float64)
    dense = (dense != 0).astype(np.float64) if kind == "ones" else dense
    csr = sp.csr_array(dense)
    starts, columns, values = csr.indptr.astype(index), csr.indices.astype(index), csr.data.astype(TYPES[kind])
    read = {"ones": None, "float16": values.view(np.uint16)}.get(kind, values)
    of_x = np.float64 if kind == "float64" else np.float32
    rng = np.random.default_rng(1)
    for width in range(1, 131):
        x, y = rng.standard_normal((COLUMNS, width)).astype(of_x), rng.standard_normal((ROWS, width)).astype(of_x)
        for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
            # Around what is written are zeros, and what is not read is no number.
            memory = np.zeros((ROWS + 2, width), of_x)
            out = memory[1:-1]
            out[:] = y if beta else np.nan
            addresses = x.ctypes.data, out.ctypes.data
            multiply(starts, columns, read, *addresses, width, of_x(alpha), of_x(beta))
            expected = alpha * (dense @ x.astype(np.float64)) + beta * y
            np.testing.assert_allclose(out, expected, atol=1e-13 if of_x is np.float64 else 4e-6, err_msg=str(width))
            assert not memory[[0, -1]].any()


@pytest.mark.parametrize(("rows", "columns", "width"), [(0, 5, 3), (5, 0, 3), (5, 4, 0), (7, 1, 16), (1, 1, 1)])
def test_what_has_no_rows_entries_or_columns(rows: int, columns: int, width: int) -> None:
    dense, x = np.ones((rows, columns), np.float32), torch.randn(columns, width)
    assert torch.equal(of(dense) @ x, torch.from_numpy(dense) @ x)
    assert torch.equal(of(0 * dense) @ x, torch.zeros(rows, width))


def test_gradients_in_float64() -> None:
    matrix, x = of(drawn()), torch.randn(COLUMNS, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (matrix @ x).sin(), x)
    # A gradient may lie anyhow.
    (found,) = torch.autograd.grad((matrix @ x).sum(), x)
    torch.testing.assert_close(found, torch.from_numpy(drawn().sum(0))[:, None].expand(-1, 5))


def test_products_with_the_transpose_go_anywhere() -> None:
    dense, g = drawn().astype(np.float32), torch.randn(ROWS, 6)
    matrix, expected = of(dense), torch.from_numpy(dense).t() @ g
    torch.testing.assert_close(matrix.times_transposed(g), expected)
    by_columns = torch.ones(6, COLUMNS).t()
    assert matrix.times_transposed(g, by_columns, 2, 3) is by_columns
    torch.testing.assert_close(by_columns, 2 * expected + 3)


def test_float16_values_are_read_as_they_are() -> None:
    starts, columns, values = of(drawn().astype(np.float32)).parts()
    half, x, g = SparseMatrix.of(starts, columns, values.half(), COLUMNS), torch.randn(COLUMNS, 6), torch.randn(ROWS, 6)
    assert torch.equal(half @ x, half.float() @ x)
    assert torch.equal(half.times_transposed(g), half.float().times_transposed(g))


def test_bits_depend_neither_on_threads_of_torch_nor_on_other_columns() -> None:
    matrix, x = of(drawn(2, 4000, 60).astype(np.float32)), torch.randn(60, 100)
    assert torch.get_num_threads() == 1
    found = matrix @ x
    try:
        torch.set_num_threads(3)
        assert torch.equal(matrix @ x, found)
    finally:
        torch.set_num_threads(1)
    for width in (1, 7, 13, 33):
        assert torch.equal(matrix @ x[:, :width], found[:, :width])


@pytest.mark.parametrize("x", [torch.ones(COLUMNS + 1, 2), torch.ones(COLUMNS - 1, 2), torch.ones(COLUMNS)])
def test_a_factor_of_another_shape_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        of(drawn().astype(np.float32)) @ x
