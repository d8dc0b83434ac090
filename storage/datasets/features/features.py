"""The feature matrix: sparse where that gains, finite, rows scaled on request; or made of edges, or drawn."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import ArpackError, eigsh

from shoal.storage.datasets.features.feature_options import MadeFeatures
from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import csr_of, entries_of, gains_sparse

BLOCK_VALUES = 1 << 22
# One column a node is for graphs as small as those that are published with it.
MOST_ONE_HOT = 20_000
# Up to so many nodes all eigenvectors are computed, and no iteration can miss one.
DENSE_NODES = 1000


def compact(x: np.ndarray) -> Any:
    """Converts features `[N, F]` to float32: SciPy CSR if that gains (`gains_sparse`), else dense."""
    x = np.asarray(x, dtype=np.float32)
    return csr_of(x) if gains_sparse(x.shape, entries_of(x), np.float32) else x


def check_finite(x: Any, where: str) -> None:
    """Refuses NaN and infinity in features `[N, F]`, dense or SciPy CSR; names `where` and the first row with one."""
    if sp.issparse(x):
        for first in range(0, len(x.data), BLOCK_VALUES):
            bad = ~np.isfinite(x.data[first : first + BLOCK_VALUES])
            if bad.any():
                _refuse(where, int(np.searchsorted(x.indptr, first + int(bad.argmax()), side="right")) - 1)
        return
    for first, last in _blocks(x):
        bad = ~np.isfinite(x[first:last]).all(axis=1)
        if bad.any():
            _refuse(where, first + int(bad.argmax()))


def row_normalized(x: Any, where: str) -> Any:
    """Scales rows of features `[N, F]` to sum to 1, or zeros; a ShoalError names `where` if one is negative."""
    if sp.issparse(x):
        scaled = x.copy()
        _require_none_negative(x.data, where)
        scale = _inverse(np.asarray(x.sum(axis=1, dtype=np.float64)).ravel())
        scaled.data *= np.repeat(scale, np.diff(x.indptr)).astype(x.dtype)
        return scaled
    scaled = np.empty(x.shape, dtype=x.dtype)
    for first, last in _blocks(x):
        block = x[first:last]
        _require_none_negative(block, where)
        scaled[first:last] = block * _inverse(block.sum(axis=1, dtype=np.float64))[:, None]
    return scaled


def _blocks(x: np.ndarray) -> Iterator[tuple[int, int]]:
    rows = max(1, BLOCK_VALUES // max(1, x.shape[1]))
    for first in range(0, len(x), rows):
        yield first, min(first + rows, len(x))


def _inverse(sums: np.ndarray) -> np.ndarray:
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)


def _refuse(where: str, row: int) -> None:
    raise ShoalError(where, f"row {row} of the features has NaN or infinity as float; replace such values")


def _require_none_negative(values: np.ndarray, where: str) -> None:
    if (values < 0).any():
        raise ShoalError(where, "negative features have no sum to divide by; set data.row_normalize to false")


def made_features(indptr: np.ndarray, indices: np.ndarray, options: MadeFeatures, memory_limit: int) -> Any:
    """Makes features `[N, F]`, float32, of a graph in CSR: SciPy CSR for `degree` and `one-hot`, else an array.

    A ShoalError names the key: there are too many nodes, or too few, or they take more than `memory_limit` bytes.
    """
    nodes, width = len(indptr) - 1, options.width
    if options.kind == "one-hot":
        if nodes > MOST_ONE_HOT:
            raise ShoalError(
                "data.features",
                f"one-hot has a column a node, and {nodes} are more than {MOST_ONE_HOT}; take degree, "
                "random or spectral",
            )
        return sp.eye_array(nodes, dtype=np.float32, format="csr")
    if options.kind == "degree":
        columns = np.minimum(np.diff(indptr), width - 1)
        return sp.csr_array((np.ones(nodes, dtype=np.float32), columns, np.arange(nodes + 1)), shape=(nodes, width))
    if 4 * nodes * width > memory_limit:
        raise ShoalError(
            "data.features",
            f"{options.kind} features of {nodes} nodes and width {width} take {4 * nodes * width} "
            f"bytes, the limit is {memory_limit}; take a smaller width or raise engine.memory_limit",
        )
    if options.kind == "random":
        return np.random.default_rng(options.seed).standard_normal((nodes, width), dtype=np.float32)
    return _spectral(indptr, indices, width)


def _spectral(indptr: np.ndarray, indices: np.ndarray, width: int) -> np.ndarray:
    """Computes eigenvectors of D^(-1/2) A D^(-1/2) for its largest eigenvalues, in order, float32 `[N, width]`.

    Each has mean square 1, and its entry of the largest absolute value (the first of equal ones) is positive. A node
    without edges has a row and a column of zeros in the matrix.
    """
    nodes = len(indptr) - 1
    if width > nodes:
        raise ShoalError("data.features.width", f"{width} eigenvectors of {nodes} nodes; take at most {nodes}")
    degree = np.diff(indptr).astype(np.float64)
    scale = np.divide(1.0, np.sqrt(degree), out=np.zeros(nodes), where=degree > 0)
    values = np.repeat(scale, np.diff(indptr)) * scale[indices]
    matrix = sp.csr_array((values, indices, indptr), shape=(nodes, nodes))
    if nodes <= DENSE_NODES or width >= nodes:
        eigenvalues, vectors = np.linalg.eigh(matrix.toarray())
    else:
        start = np.random.default_rng(0).standard_normal(nodes)
        try:
            eigenvalues, vectors = eigsh(matrix, k=width, which="LA", v0=start)
        except ArpackError as error:
            raise ShoalError("data.features", f"spectral does not converge ({error}); take another width") from error
    vectors = vectors[:, np.argsort(-eigenvalues, kind="stable")[:width]]
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.where(vectors[largest, np.arange(width)] < 0, -1.0, 1.0)
    return (vectors * signs * np.sqrt(nodes)).astype(np.float32)
