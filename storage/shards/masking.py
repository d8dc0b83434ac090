"""Features, edges and training labels that clients lack: the section `data.sparsity` of a config.

What is masked hangs on a seed and on global numbers, of a node and a column, of two nodes, of an item, and on nothing
else: clients, the whole graph and the domains lack the same, in any partition, layout and order, and what a smaller
share masks a larger one masks, too.
"""

from dataclasses import replace

import numba
import numpy as np

from shoal.storage.graph.induced import Induced
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.kernels.counter_rng import bits_at, key_of, uniform_at
from shoal.storage.options.masking import Sparsity
from shoal.storage.shards.split import Split


def without_edges(part: Induced, sparsity: Sparsity) -> Induced:
    """Removes masked edges. Takes no memory but a row pointer: `part` is used up."""
    if not sparsity.edges:
        return part
    same = np.zeros(len(part.node), dtype=np.int32)
    return remove_edges(part, key_of(sparsity.seed, "edges"), np.full(len(same), sparsity.edges), same)


def remove_edges(part: Induced, key: np.uint64, share_N: np.ndarray, client_N: np.ndarray) -> Induced:
    """Removes edges with the probability of their client, float64 `[N]`; those between clients, int32 `[N]`, stay.

    Takes no memory but a row pointer: `part` is used up.
    """
    indptr = _keep_edges(key, share_N, client_N, part.node, part.indptr, part.indices)
    return Induced(part.node, indptr, part.indices[: indptr[-1]])


def without_features(x: Rows, node: np.ndarray, sparsity: Sparsity) -> Rows:
    """Masks features `[N, F]` of nodes, int64 `[N]`: values become zero, in place, or are left out of sparse ones."""
    if not sparsity.features:
        return x
    return mask_features(x, node, key_of(sparsity.seed, "features"), np.full(len(node), sparsity.features))


def mask_features(x: Rows, node: np.ndarray, key: np.uint64, share_N: np.ndarray) -> Rows:
    """Masks features `[N, F]` of nodes, int64 `[N]`, with the probability of their row, as `without_features`."""
    if isinstance(x, CsrRows):
        kept = _kept_values(key, share_N, node, x.indptr, x.columns, x.features)
        indptr = np.concatenate([[0], np.cumsum(kept)])[x.indptr].astype(np.int32)
        return replace(x, indptr=indptr, columns=x.columns[kept], values=x.values[kept])
    # Zero has the same bits as a number and as an integer; compiled code knows no float16.
    _zero_values(key, share_N, node, x.view(f"u{x.itemsize}"))
    return x


def without_labels(split: Split, item: np.ndarray, sparsity: Sparsity) -> Split:
    """Removes training items from a split; `item` is the global number of every item of the shard, int64 `[items]`."""
    if not sparsity.labels:
        return split
    # The small constant keeps 0.29 * 100 from becoming 28.
    masked = int(sparsity.labels * len(split.train) + 1e-9)
    order = np.argsort(draw_bits(key_of(sparsity.seed, "labels"), item[split.train]), kind="stable")
    return replace(split, train=np.sort(split.train[order[masked:]]))


@numba.njit(cache=True)
def _keep_edges(
    key: np.uint64,
    share: np.ndarray,
    client: np.ndarray,
    node: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
) -> np.ndarray:
    """Moves the columns that stay to the front, row by row, and gives their row pointer, int64 `[N + 1]`."""
    pointer = np.zeros(len(indptr), dtype=np.int64)
    end = 0
    for row in range(len(node)):
        for e in range(indptr[row], indptr[row + 1]):
            a, b = node[row], node[indices[e]]
            position = (np.uint64(min(a, b)) << np.uint64(32)) | np.uint64(max(a, b))
            if client[row] != client[indices[e]] or uniform_at(key, position) >= share[row]:
                indices[end] = indices[e]
                end += 1
        pointer[row + 1] = end
    return pointer


@numba.njit(cache=True)
def _zero_values(key: np.uint64, share: np.ndarray, node: np.ndarray, x: np.ndarray) -> None:
    width = np.uint64(x.shape[1])
    for row in range(len(node)):
        first = np.uint64(node[row]) * width
        for column in range(x.shape[1]):
            if uniform_at(key, first + np.uint64(column)) < share[row]:
                x[row, column] = 0


@numba.njit(cache=True)
def _kept_values(
    key: np.uint64, share: np.ndarray, node: np.ndarray, indptr: np.ndarray, columns: np.ndarray, width: int
) -> np.ndarray:
    """Marks the values of sparse rows that stay, bool `[E]`."""
    kept = np.empty(len(columns), dtype=np.bool_)
    for row in range(len(node)):
        first = np.uint64(node[row]) * np.uint64(width)
        for e in range(indptr[row], indptr[row + 1]):
            kept[e] = uniform_at(key, first + np.uint64(columns[e])) >= share[row]
    return kept


@numba.njit(cache=True)
def draw_bits(key: np.uint64, item: np.ndarray) -> np.ndarray:
    """Draws 64 random bits for every item, uint64 `[n]`."""
    bits = np.empty(len(item), dtype=np.uint64)
    for number in range(len(item)):
        bits[number] = bits_at(key, np.uint64(item[number]))
    return bits
