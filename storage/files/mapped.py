"""Reading arrays on disk from front to back, without keeping in memory what was read."""

from collections.abc import Iterator

import numpy as np

ROWS = 1 << 18


def read(array: np.ndarray, start: int, stop: int) -> np.ndarray:
    """`array[start:stop]`, of a map read as a copy, as pages touched through a map count as memory of this process."""
    if not isinstance(array, np.memmap) or not array.flags.c_contiguous or array.filename is None:
        return np.asarray(array[start:stop])
    whole = array
    # A slice keeps the offset of the map it was cut from.
    while isinstance(whole.base, np.memmap):
        whole = whole.base
    width = int(np.prod(array.shape[1:]))
    inside = array.ctypes.data - whole.ctypes.data + start * width * array.itemsize
    flat = np.fromfile(array.filename, array.dtype, (stop - start) * width, offset=whole.offset + inside)
    return flat.reshape(-1, *array.shape[1:])


def row_blocks(indptr: np.ndarray, entries: int) -> Iterator[tuple[int, np.ndarray, int, int]]:
    """All rows of a CSR in ascending order, in blocks of at most `entries` entries, or of one row where that has more.

    Yields:
        The first row; the block's row pointer, starting at 0, int64 `[rows + 1]`; where its entries begin and end.
    """
    rows = len(indptr) - 1
    for start in range(0, rows, ROWS):
        pointer = read(indptr, start, min(start + ROWS, rows) + 1)
        row = 0
        while row < len(pointer) - 1:
            stop = int(np.searchsorted(pointer, pointer[row] + entries, side="right")) - 1
            stop = min(max(stop, row + 1), len(pointer) - 1)
            low, high = int(pointer[row]), int(pointer[stop])
            yield start + row, pointer[row : stop + 1] - low, low, high
            row = stop
