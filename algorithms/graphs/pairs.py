"""Passes over pairs of nodes: products of their rows with gradients, and graphs made of pairs.

Nothing here is larger than the pairs or the rows. On the processor numba compiles the loops, on one core; elsewhere
torch takes pairs a block at a time.

Axes: S pairs i < j, ascending by i and then by j, so that row i stays in the cache; N nodes, rows of width H.
"""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.models.compiled.memory import matrix_at
from shoal.storage.kernels.prefetch import prefetch

# Pairs of a block whose rows torch gathers: 128 MB at width 128.
BLOCK = 2**18
# Pairs between a prefetch of a row and its use, and numbers in a cache line.
AHEAD, LINE = 12, 16
FAST = {"reassoc", "contract", "nsz"}


def on_processor(tensor: Tensor) -> bool:
    """Whether the compiled loops take a tensor: it is on the processor."""
    return tensor.device.type == "cpu"


class PairDots(torch.autograd.Function):
    """<x_i, x_j>, float32 `[S]`, from rows `[N, H]` and pairs int32 `[2, S]`: `PairDots.apply(x_NH, pairs_2S)`."""

    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, pairs_2S: Tensor) -> Tensor:
        ctx.save_for_backward(x_NH, pairs_2S)
        if on_processor(x_NH):
            out_S = torch.empty(pairs_2S.shape[1])
            write_dots(*_arrays(*pairs_2S, x_NH), out_S.numpy())
            return out_S
        return _join(x_NH, [(x_NH[i] * x_NH[j]).sum(1) for i, j in _blocks(pairs_2S)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x_NH, pairs_2S = ctx.saved_tensors
        (weight_S,) = gradients
        out_NH = torch.zeros_like(x_NH, memory_format=torch.contiguous_format)
        if on_processor(x_NH):
            add_rows(*_arrays(*pairs_2S, weight_S, x_NH), out_NH.numpy())
            return out_NH, None
        for (i, j), w in zip(_blocks(pairs_2S), weight_S.split(BLOCK)):
            out_NH.index_add_(0, i, w[:, None] * x_NH[j])
            out_NH.index_add_(0, j, w[:, None] * x_NH[i])
        return out_NH, None


def cross_dots(x_NH: Tensor, y_NH: Tensor, pairs_2S: Tensor) -> Tensor:
    """Computes <x_i, y_j> + <x_j, y_i>, float32 `[S]`, without gradients."""
    if on_processor(x_NH):
        out_S = torch.empty(pairs_2S.shape[1])
        _add_cross_dots(*_arrays(*pairs_2S, x_NH, y_NH), out_S.numpy(), True)
        return out_S
    return _join(x_NH, [(x_NH[i] * y_NH[j] + x_NH[j] * y_NH[i]).sum(1) for i, j in _blocks(pairs_2S)])


def _blocks(pairs_2S: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return ((block[0], block[1]) for block in pairs_2S.split(BLOCK, dim=1))


def _join(like: Tensor, parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else like.new_empty(0)


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


@numba.njit(inline="always")
def _fetch_row(flat: np.ndarray, nodes: np.ndarray, pair: int, width: int) -> None:
    """Starts to load the row that a loop over pairs reads `AHEAD` pairs later."""
    if pair + AHEAD < len(nodes):
        first = np.int64(nodes[pair + AHEAD]) * width
        for column in range(0, width, LINE):
            prefetch(flat, first + column)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def write_dots(low: np.ndarray, high: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """Computes out = <x_i, x_j>, float32 `[S]`."""
    width = x.shape[1]
    flat = x.reshape(-1)
    for pair in range(len(low)):
        _fetch_row(flat, high, pair, width)
        i, j = low[pair], high[pair]
        total = np.float32(0)
        for column in range(width):
            total += x[i, column] * x[j, column]
        out[pair] = total


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _add_cross_dots(
    low: np.ndarray, high: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray, anew: bool
) -> None:
    """Computes out = <x_i, y_j> + <x_j, y_i>, float32 `[S]`, or adds to it."""
    width = x.shape[1]
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    for pair in range(len(low)):
        _fetch_row(flat_x, high, pair, width)
        _fetch_row(flat_y, high, pair, width)
        i, j = low[pair], high[pair]
        total = np.float32(0)
        for column in range(width):
            total += x[i, column] * y[j, column] + x[j, column] * y[i, column]
        out[pair] = total if anew else out[pair] + total


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def add_rows(low: np.ndarray, high: np.ndarray, weight: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """Adds w x_j to out_i and w x_i to out_j for every pair, float32 `[N, H]`."""
    width = x.shape[1]
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    for pair in range(len(low)):
        _fetch_row(flat_x, high, pair, width)
        _fetch_row(flat_out, high, pair, width)
        w = weight[pair]
        if w == 0:
            continue
        i, j = low[pair], high[pair]
        for column in range(width):
            out[i, column] += w * x[j, column]
        for column in range(width):
            out[j, column] += w * x[i, column]


@numba.njit(cache=True, nogil=True)
def symmetric_rows(pairs: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Builds row starts and ascending columns, int32, of the graph of some ascending pairs, each both ways."""
    starts, columns = np.zeros(nodes + 1, np.int32), np.empty(pairs.size, np.int32)
    for node in pairs.flat:
        starts[node + 1] += 1
    for node in range(nodes):
        starts[node + 1] += starts[node]
    place = starts[:-1].copy()
    # The lower neighbours of a row come first.
    for near, far in ((1, 0), (0, 1)):
        for pair in range(pairs.shape[1]):
            columns[place[pairs[near, pair]]] = pairs[far, pair]
            place[pairs[near, pair]] += 1
    return starts, columns


@numba.njit(cache=True, nogil=True)
def normalised_rows(
    pairs: np.ndarray, kept: np.ndarray, nodes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Builds D^-1/2 (A + I) D^-1/2 of the graph of the pairs that are kept, some of ascending ones, and D^-1/2.

    Gives row starts and ascending columns, int32, values and the diagonal, float32.
    """
    starts = np.arange(nodes + 1).astype(np.int32)
    for pair in range(len(kept)):
        if kept[pair]:
            starts[pairs[0, pair] + 1] += 1
            starts[pairs[1, pair] + 1] += 1
    scale = np.empty(nodes, np.float32)
    before = 0
    for node in range(nodes):
        before += starts[node + 1] - node - 1
        starts[node + 1] = before + node + 1
        scale[node] = 1 / np.sqrt(np.float32(starts[node + 1] - starts[node]))
    columns, values = np.empty(starts[nodes], np.int32), np.empty(starts[nodes], np.float32)
    place = starts[:-1].copy()
    # The lower neighbours of a row come first, then the node itself.
    for near, far in ((1, 0), (0, 0), (0, 1)):
        for pair in range(nodes if near == far else len(kept)):
            if near == far:
                row = column = pair
            elif kept[pair]:
                row, column = pairs[near, pair], pairs[far, pair]
            else:
                continue
            columns[place[row]], values[place[row]] = column, scale[row] * scale[column]
            place[row] += 1
    return starts, columns, values, scale


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def gradients_of_edges(
    low: np.ndarray, high: np.ndarray, kept: np.ndarray, scale: np.ndarray, products: np.ndarray, out: np.ndarray
) -> None:
    """Computes the gradients of edges, float32 `[S]`, see `generated_graph.DrawnOperator`.

    Of every product, `products` has the addresses of x and g, `[N, H]`, and H.
    """
    nodes = len(scale)
    through = np.zeros(nodes, np.float32)
    for number in range(len(products)):
        width = products[number, 2]
        x, g = matrix_at(products[number, 0], nodes, width), matrix_at(products[number, 1], nodes, width)
        _add_cross_dots(low, high, g, x, out, number == 0)
        for node in range(nodes):
            for column in range(width):
                through[node] += g[node, column] * x[node, column]
    for node in range(nodes):
        through[node] *= 2 * scale[node] * scale[node]
    for pair in range(len(out)):
        i, j = low[pair], high[pair]
        out[pair] *= scale[i] * scale[j]
        if kept[pair]:
            through[i] += out[pair]
            through[j] += out[pair]
    for node in range(nodes):
        through[node] *= scale[node] * scale[node] / -2
    for pair in range(len(out)):
        out[pair] += through[low[pair]] + through[high[pair]]


@numba.njit(cache=True, nogil=True)
def keys_of_drawn(others: np.ndarray, of_each: int, nodes: int) -> np.ndarray:
    """Makes keys i nodes + j, i < j, int64 `[D]`, of the partners drawn for each node among the N - 1 others."""
    keys = np.empty(len(others), np.int64)
    for place in range(len(others)):
        node = place // of_each
        other = others[place] + (others[place] >= node)
        keys[place] = min(node, other) * nodes + max(node, other)
    return keys


@numba.njit(cache=True, nogil=True)
def joined_pairs(pairs: np.ndarray, keys: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Joins ascending pairs, int32 `[2, M]`, none of them twice, and ascending keys of pairs, i nodes + j.

    Gives all pairs, int32 `[2, S]`, each once, and whether one is of the first list.
    """
    first = pairs.shape[1]
    joined, is_first = np.empty((2, first + len(keys)), np.int32), np.empty(first + len(keys), np.bool_)
    a = b = count = 0
    while a < first or b < len(keys):
        key = np.int64(pairs[0, a]) * nodes + pairs[1, a] if a < first else keys[b]
        is_first[count] = a < first and (b == len(keys) or key <= keys[b])
        if not is_first[count]:
            key = keys[b]
        a += is_first[count]
        while b < len(keys) and keys[b] == key:
            b += 1
        joined[0, count], joined[1, count] = key // nodes, key % nodes
        count += 1
    return joined[:, :count].copy(), is_first[:count].copy()
