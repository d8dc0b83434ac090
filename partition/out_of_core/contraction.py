"""Clusters of bounded weight, by label propagation in a few passes, and their contraction to one node each."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np

from shoal.partition.out_of_core.blocks import (
    Block,
    Level,
    Passes,
    blocks,
    empty_table,
    mix,
    slot_bits,
    slot_of,
    tally,
    weight_at,
    widest_row,
)
from shoal.storage.files.mapped import ROWS, cut_rows, read
from shoal.storage.kernels.prefetch import fetch_ahead
from shoal.storage.threads import batches, shares, spread, thread_count

PASSES = Passes("clustering", most=8, converged=0.01)


def cluster(
    level: Level, limit: int, enough: int, seed: int, entries: int, report: Callable[[str], None]
) -> np.ndarray:
    """Cluster of every node, int32 `[N]`, with the number of some node; -1 for a node without edges.

    In every pass each node moves to the cluster that it has most edge weight to, of those that it keeps within `limit`;
    a hash of seed and cluster decides between equals (Meyerhenke, Sanders and Schulz, "Partitioning Complex Networks
    via Size-constrained Clustering", SEA 2014). Nodes of one step decide at the same time. Nodes that stay alone
    because the cluster they would join is full are then joined with each other, if they would have joined the same one,
    like the leaves of a star (LaSalle et al., "Improving Graph Partitioning for Modern Graphs and Architectures", IA3
    2015).

    A node heavier than `limit` is a cluster of its own, and nodes that stay alone are joined only if there are more
    than `enough` clusters. Memory: 12 bytes a node, and `entries` read at a time, which changes no number.
    """
    label_N = np.arange(level.nodes, dtype=np.int32)
    weight_N = np.ones(level.nodes, dtype=np.int32)
    if level.node_weights is not None:
        weight_N[:] = level.node_weights
    PASSES.run(
        level,
        entries,
        lambda *rows: _decide(*rows, label_N, weight_N, limit, seed),
        lambda *rows: _move(*rows, label_N, weight_N, limit),
        report,
    )
    if np.count_nonzero(weight_N) > enough:
        open_N = np.full(level.nodes, -1, dtype=np.int32)
        for block in blocks(level, entries):
            _join(block, label_N, weight_N, open_N, limit)
    return label_N


@numba.njit(cache=True, nogil=True)
def _decide(
    low: int, high: int, b: Block, to: np.ndarray, label_N: np.ndarray, weight_N: np.ndarray, limit: int, seed: int
) -> None:
    key, value, touched = empty_table(b.indptr[low : high + 1])
    for row in range(low, high):
        current = label_N[b.first + row]
        weight = weight_at(b.node_weights, row)
        count = tally(b, row, label_N, key, value, touched)
        # Weights of clusters are read from memory at random: of the best alone, and of the next if that is full.
        while True:
            best, best_value, at = current, np.int64(0), np.int64(-1)
            for t in range(count):
                slot = touched[t]
                if value[slot] > best_value or (
                    value[slot] == best_value and best_value > 0 and mix(key[slot], seed) > mix(best, seed)
                ):
                    best, best_value, at = key[slot], value[slot], slot
            if best == current or weight_N[best] + weight <= limit:
                break
            value[at] = 0
        for t in range(count):
            key[touched[t]] = -1
        to[row] = best


@numba.njit(cache=True)
def _move(low: int, high: int, b: Block, to: np.ndarray, label_N: np.ndarray, weight_N: np.ndarray, limit: int) -> int:
    moved = 0
    for row in range(low, high):
        node, best = b.first + row, to[row]
        current = label_N[node]
        if b.indptr[row] == b.indptr[row + 1]:
            label_N[node] = -1
        elif best != current:
            weight = weight_at(b.node_weights, row)
            # A cluster that was left in this step stays empty: two nodes that join each other would change places.
            if weight_N[best] > 0 and weight_N[best] + weight <= limit:
                weight_N[current] -= weight
                weight_N[best] += weight
                label_N[node] = best
                moved += 1
    return moved


@numba.njit(cache=True)
def _join(b: Block, label_N: np.ndarray, weight_N: np.ndarray, open_N: np.ndarray, limit: int) -> None:
    key, value, touched = empty_table(b.indptr)
    for row in range(len(b.indptr) - 1):
        node = b.first + row
        weight = weight_at(b.node_weights, row)
        current = label_N[node]
        if current < 0 or weight_N[current] != weight:
            continue
        best, best_value = np.int32(-1), np.int64(0)
        for t in range(tally(b, row, label_N, key, value, touched)):
            slot = touched[t]
            if value[slot] > best_value:
                best, best_value = key[slot], value[slot]
            key[slot] = -1
        other = open_N[best]
        if other >= 0 and weight_N[other] + weight <= limit:
            label_N[node] = other
            weight_N[other] += weight
            weight_N[current] = 0
        else:
            open_N[best] = current


def number_clusters(label_N: np.ndarray) -> int:
    """Numbers clusters from 0 without gaps, in place, in their order; returns how many there are. -1 stays."""
    used_N = np.zeros(len(label_N), dtype=bool)
    for start in range(0, len(label_N), ROWS):
        label = label_N[start : start + ROWS]
        used_N[label[label >= 0]] = True
    number_N = np.cumsum(used_N, dtype=np.int32)
    for start in range(0, len(label_N), ROWS):
        label = label_N[start : start + ROWS]
        label[label >= 0] = number_N[label[label >= 0]] - 1
    return int(number_N[-1])


def contract(level: Level, coarse_N: np.ndarray, nodes: int, folder: Path, entries: int, bucket: int) -> Level:
    """The graph of clusters; edges inside a cluster are dropped, the weights of the others are added.

    Entries between clusters go to files in an empty folder by range of coarse node, and every file is merged in memory.
    So the work needs as much disk as there are such entries, 8 bytes each (12 if the level has weights), and as much
    again at most for the result, whose entries are memory maps. A row's neighbours are in the order of their first
    entry.

    `coarse_N` is the coarse node of every node, int32, -1 for those left out, which have no edges. `entries` are read
    and `bucket` entries merged at a time, unless a single coarse node has more.
    """
    degree_C, weight_C = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int32)
    for start in range(0, level.nodes, ROWS):
        stop = min(start + ROWS, level.nodes)
        weights = None if level.node_weights is None else level.node_weights[start:stop]
        _add_up(coarse_N[start:stop], read(level.indptr, start, stop + 1), weights, degree_C, weight_C)
    # Entries inside a cluster are in no bucket, so that most of a bucket is empty. Several are merged at a time.
    firsts = cut_rows(np.append(0, np.cumsum(degree_C)), max(1, bucket // thread_count()))
    ranges = list(pairwise(firsts))
    bucket_C = np.repeat(np.arange(len(ranges), dtype=np.int32), np.diff(firsts))
    indptr = np.zeros(nodes + 1, dtype=np.int64)

    def merged(number: int) -> tuple[np.ndarray, np.ndarray]:
        (low, high), path = ranges[number], folder / f"bucket-{number}"
        records = np.fromfile(path, dtype=np.int32).reshape(-1, 2 if level.weights is None else 3)
        path.unlink()
        return _merge(low, records, indptr[low + 1 : high + 1])

    with spread() as on_threads:
        for block in blocks(level, entries):
            rows = shares(block.indptr, 0, len(block.indptr) - 1)
            between = lambda ends, b=block: _between(b, *ends, coarse_N, bucket_C, len(ranges))  # noqa: E731
            for records, ends in on_threads(between, rows):
                for number, part in enumerate(np.split(records, ends[:-1])):
                    if len(part):
                        with (folder / f"bucket-{number}").open("ab") as f:
                            part.tofile(f)
        written = [number for number in range(len(ranges)) if (folder / f"bucket-{number}").exists()]
        with (folder / "indices").open("wb") as to_indices, (folder / "weights").open("wb") as to_weights:
            for numbers in batches(written):
                for indices, weights in on_threads(merged, numbers):
                    indices.tofile(to_indices)
                    weights.tofile(to_weights)
    np.cumsum(indptr, out=indptr)
    return Level(indptr, map_int32(folder / "indices", indptr[-1]), map_int32(folder / "weights", indptr[-1]), weight_C)


def map_int32(path: Path, length: int) -> np.ndarray:
    """The int32 values in a file, as a memory map if there are any: an empty file cannot be mapped."""
    if length == 0:
        return np.empty(0, dtype=np.int32)
    return np.memmap(path, dtype=np.int32, mode="r", shape=(int(length),))


@numba.njit(cache=True)
def _add_up(
    coarse_N: np.ndarray,
    indptr: np.ndarray,
    node_weights: np.ndarray | None,
    degree_C: np.ndarray,
    weight_C: np.ndarray,
) -> None:
    """Adds weights of nodes, and numbers of their entries, to those of their clusters."""
    for row in range(len(coarse_N)):
        if coarse_N[row] >= 0:
            degree_C[coarse_N[row]] += indptr[row + 1] - indptr[row]
            weight_C[coarse_N[row]] += weight_at(node_weights, row)


@numba.njit(cache=True, nogil=True)
def _between(
    b: Block, low: int, high: int, coarse_N: np.ndarray, bucket_C: np.ndarray, buckets: int
) -> tuple[np.ndarray, np.ndarray]:
    """Coarse node, coarse neighbour and, where there are any, weight of the entries between clusters, by bucket."""
    at = np.zeros(buckets + 1, dtype=np.int64)
    first = b.indptr[low]
    others = np.empty(b.indptr[high] - first, dtype=np.int32)
    for row in range(low, high):
        cluster, between = coarse_N[b.first + row], 0
        for e in range(b.indptr[row], b.indptr[row + 1]):
            fetch_ahead(coarse_N, b.indices, e)
            others[e - first] = coarse_N[b.indices[e]]
            if others[e - first] != cluster:
                between += 1
        if between:
            at[bucket_C[cluster] + 1] += between
    at = np.cumsum(at)
    records = np.empty((at[-1], 2 if b.weights is None else 3), dtype=np.int32)
    for row in range(low, high):
        cluster = coarse_N[b.first + row]
        for e in range(b.indptr[row], b.indptr[row + 1]):
            other = others[e - first]
            if other != cluster:
                to = at[bucket_C[cluster]]
                at[bucket_C[cluster]] += 1
                records[to, 0] = cluster
                records[to, 1] = other
                if records.shape[1] == 3:
                    records[to, 2] = weight_at(b.weights, e)
    # `at[b]` has moved to the end of bucket b; the last place is the total.
    return records, at[:-1]


@numba.njit(cache=True, nogil=True)
def _merge(low: int, records: np.ndarray, degree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts records by row and adds up those of one neighbour; `degree` is set to the entries of every row."""
    indices = np.empty(len(records), dtype=np.int32)
    weights = np.ones(len(records), dtype=np.int32)
    starts = np.zeros(len(degree) + 1, dtype=np.int64)
    for i in range(len(records)):
        starts[records[i, 0] - low + 1] += 1
    starts = np.cumsum(starts)
    at = starts[:-1].copy()
    for i in range(len(records)):
        row = records[i, 0] - low
        indices[at[row]] = records[i, 1]
        if records.shape[1] == 3:
            weights[at[row]] = records[i, 2]
        at[row] += 1

    widest = widest_row(starts)
    place = np.full(1 << slot_bits(widest), -1, dtype=np.int64)
    touched = np.empty(widest, dtype=np.int64)
    end = 0
    for row in range(len(starts) - 1):
        begin = end
        bits = slot_bits(starts[row + 1] - starts[row])
        mask = (1 << bits) - 1
        for e in range(starts[row], starts[row + 1]):
            slot = slot_of(indices[e], bits)
            while place[slot] >= 0 and indices[place[slot]] != indices[e]:
                slot = (slot + 1) & mask
            if place[slot] < 0:
                place[slot] = end
                touched[end - begin] = slot
                indices[end] = indices[e]
                weights[end] = weights[e]
                end += 1
            else:
                weights[place[slot]] += weights[e]
        for t in range(end - begin):
            place[touched[t]] = -1
        degree[row] = end - begin
    return indices[:end], weights[:end]
