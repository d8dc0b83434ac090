"""A graph on disk, read block by block of whole rows, in order, and sums of a row's weights by key.

The sums are in a small open-addressing table: the inner loop of clustering and contraction.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np

from shoal.storage.files.mapped import ROWS, cut_rows, read
from shoal.storage.kernels.prefetch import fetch_ahead
from shoal.storage.progress import step
from shoal.storage.threads import ahead, spread, spread_rows

# A pass over at least so many entries is shown as a step.
LONG_PASS = 1 << 27
# The moves of so many entries, or of one row, are decided at a time: fewer where a level has not so many times as many.
STEP, STEPS = 1 << 17, 256
# 2^64 over the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Level:
    """A graph of the multilevel scheme, undirected and without self loops; every array may be a memory map.

    The CSR has row pointers int64 and neighbours int32, every edge both ways. `weights` of entries, `[E]`, and
    `node_weights`, how many nodes of the finest graph a node stands for, `[N]`, are int32; None: all one.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None = None
    node_weights: np.ndarray | None = None

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def entries(self) -> int:
        """Number of directed entries: twice the number of undirected edges."""
        return int(self.indptr[-1])


class Block(NamedTuple):
    """Consecutive whole rows of a level from node `first` on, as compiled loops take them; `indptr` starts at 0.

    `steps` are the ends of its steps, in rows, 0 first. They depend on the level alone.
    """

    first: int
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None
    node_weights: np.ndarray | None
    steps: np.ndarray


def blocks(level: Level, entries: int) -> Iterator[Block]:
    """All rows in order, in blocks of at most `entries` entries, or of one step; a long pass is shown as a step.

    A second thread, if there may be one, reads the next block.
    """
    if level.entries < LONG_PASS:
        yield from ahead(_blocks(level, entries))
        return
    with step("pass over the edges", level.entries, "entries") as advance:
        for block in ahead(_blocks(level, entries)):
            yield block
            advance(len(block.indices))


def _blocks(level: Level, entries: int) -> Iterator[Block]:
    of_step = max(1, min(STEP, level.entries // STEPS))
    for start in range(0, level.nodes, ROWS):
        pointer = read(level.indptr, start, min(start + ROWS, level.nodes) + 1)
        steps = np.array(cut_rows(pointer, of_step))
        for begin, end in pairwise(cut_rows(pointer[steps], entries)):
            row, stop = int(steps[begin]), int(steps[end])
            low, high, first = int(pointer[row]), int(pointer[stop]), start + row
            yield Block(
                first,
                pointer[row : stop + 1] - low,
                read(level.indices, low, high),
                None if level.weights is None else read(level.weights, low, high),
                None if level.node_weights is None else level.node_weights[first : start + stop],
                steps[begin : end + 1] - row,
            )


# Decides for rows of a block, from one to another, where they would go, by label: in an int32 of every row of the
# block. Threads decide at the same time, so it changes nothing else.
Decide = Callable[[int, int, Block, np.ndarray], None]
# Moves rows of a block to where that was decided, as far as they still may; returns how many moved.
Move = Callable[[int, int, Block, np.ndarray], int]


@dataclass(frozen=True)
class Passes:
    """Passes of one kind, until one moves at most the share `converged` of the nodes, or there were `most`."""

    name: str
    most: int
    converged: float

    def run(self, level: Level, entries: int, decide: Decide, move: Move, report: Callable[[str], None]) -> None:
        """Moves nodes step by step, each step decided by the labels before it; `report` gets a line a pass.

        The number of threads, and of `entries` that are read at a time, changes no number.
        """
        for number in range(1, self.most + 1):
            moved = 0
            with spread() as on_threads:
                for block in blocks(level, entries):
                    to = np.empty(len(block.indptr) - 1, dtype=np.int32)
                    for low, high in pairwise(block.steps.tolist()):
                        spread_rows(on_threads, block.indptr, low, high, decide, block, to)
                        moved += move(low, high, block, to)
            report(f"{self.name}, pass {number}: {moved} of {level.nodes} nodes moved")
            if moved <= self.converged * level.nodes:
                return


@numba.njit(cache=True)
def widest_row(indptr: np.ndarray) -> int:
    """Entries of the longest row."""
    widest = 0
    for row in range(len(indptr) - 1):
        widest = max(widest, indptr[row + 1] - indptr[row])
    return widest


@numba.njit(cache=True)
def weight_at(weights: np.ndarray | None, at: int) -> int:
    """A weight; 1 where there are none."""
    return 1 if weights is None else weights[at]


@numba.njit(cache=True)
def slot_bits(entries: int) -> int:
    """log2 of the slots of a table that `entries` keys fill to a half at most: 4 or more."""
    bits = 4
    while (1 << bits) < 2 * entries:
        bits += 1
    return bits


@numba.njit(cache=True)
def slot_of(key: int, bits: int) -> np.int64:
    """Returns the slot at which the search for a key starts."""
    return np.int64((np.uint64(key) * GOLDEN) >> np.uint64(64 - bits))


@numba.njit(cache=True)
def mix(key: int, seed: int) -> np.uint64:
    """A hash of key and seed, 64 bits (the finaliser of SplitMix64)."""
    h = (np.uint64(key) ^ (np.uint64(seed) << np.uint64(32))) * GOLDEN
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@numba.njit(cache=True)
def empty_table(indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys (all -1), values and touched slots of a table for the longest of some rows."""
    widest = widest_row(indptr)
    slots = 1 << slot_bits(widest)
    return np.full(slots, -1, dtype=np.int32), np.empty(slots, dtype=np.int64), np.empty(widest, dtype=np.int64)


@numba.njit(cache=True)
def tally(b: Block, row: int, label_N: np.ndarray, key: np.ndarray, value: np.ndarray, touched: np.ndarray) -> int:
    """Sums the weights of the entries of a row by the label of their neighbour.

    The number of labels is returned, and the slot of each in `touched`, in the order of their first entry; `key`
    must be all -1, and the caller resets it.
    """
    bits = slot_bits(b.indptr[row + 1] - b.indptr[row])
    mask = (1 << bits) - 1
    count = 0
    for e in range(b.indptr[row], b.indptr[row + 1]):
        fetch_ahead(label_N, b.indices, e)
        label = label_N[b.indices[e]]
        weight = np.int64(weight_at(b.weights, e))
        slot = slot_of(label, bits)
        while key[slot] != label and key[slot] != -1:
            slot = (slot + 1) & mask
        if key[slot] == -1:
            key[slot] = label
            value[slot] = weight
            touched[count] = slot
            count += 1
        else:
            value[slot] += weight
    return count
