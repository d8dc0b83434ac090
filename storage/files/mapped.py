"""Reading arrays on disk from front to back, without keeping in memory what was read."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 1 << 18


@dataclass(frozen=True)
class Extent:
    """The place of a map's values in its file, C-ordered; another process can map them, too."""

    path: Path
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]

    def open_map(self) -> np.ndarray:
        """Maps the values in this process. Raises OSError, ValueError: they are not there."""
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def extent_of(array: Any) -> Extent | None:
    """Finds the place of an array that is a map of a file; None: it lies in memory."""
    if not isinstance(array, np.memmap) or not array.flags.c_contiguous or array.filename is None:
        return None
    whole = array
    # A slice keeps the offset of the map it was cut from.
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    return Extent(Path(array.filename), array.dtype, whole.offset + array.ctypes.data - whole.ctypes.data, array.shape)


def read(array: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Reads `array[start:stop]`, of a map as a copy: pages touched through a map count as memory of this process."""
    extent = extent_of(array)
    if extent is None:
        return np.asarray(array[start:stop])
    width = int(np.prod(array.shape[1:]))
    inside = start * width * array.itemsize
    flat = np.fromfile(extent.path, array.dtype, (stop - start) * width, offset=extent.offset + inside)
    return flat.reshape(-1, *array.shape[1:])


def row_blocks(indptr: np.ndarray, entries: int) -> Iterator[tuple[int, np.ndarray, int, int]]:
    """Yields all rows of a CSR in order, in blocks of at most `entries` entries, or of one row where it has more.

    Yields:
        The first row; the block's row pointer, starting at 0, int64 `[rows + 1]`; where its entries begin and end.
    """
    rows = len(indptr) - 1
    for start in range(0, rows, ROWS):
        pointer = read(indptr, start, min(start + ROWS, rows) + 1)
        for row, stop in pairwise(cut_rows(pointer, entries)):
            low, high = int(pointer[row]), int(pointer[stop])
            yield start + row, pointer[row : stop + 1] - low, low, high


def cut_rows(pointer: np.ndarray, entries: int) -> list[int]:
    """Cuts rows into ranges of at most `entries` entries, or of one row where it has more: their ends, 0 first."""
    ends = [0]
    while ends[-1] < len(pointer) - 1:
        stop = int(np.searchsorted(pointer, pointer[ends[-1]] + entries, side="right")) - 1
        ends.append(min(max(stop, ends[-1] + 1), len(pointer) - 1))
    return ends
