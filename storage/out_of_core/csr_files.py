"""The two arrays of a CSR as .npy files, written row after row."""

from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np

from shoal.storage.files.atomic import reopen, to_disk
from shoal.storage.kernels.edge_keys import KeyLayout, row_ends
from shoal.storage.out_of_core.npy_rows import HEADER_BYTES, npy_header

INDPTR, INDICES = "indptr.npy", "indices.npy"
MAX_BLOCK = 1 << 22


class CsrWriter:
    """Row pointer, int64 `[N + 1]`, and neighbours, int32 `[E]`, of a CSR in the making."""

    def __init__(self, folder: Path, layout: KeyLayout, entries: int, block: int) -> None:
        """Opens the files after `entries` neighbours; at most `block` row ends are worked on at a time."""
        self.entries = entries
        self._layout, self._block = layout, min(block, MAX_BLOCK)
        self._stack = ExitStack()
        self._indptr = self._stack.enter_context(reopen(folder / INDPTR))
        self._indices = self._stack.enter_context(reopen(folder / INDICES))
        self._indices.truncate(HEADER_BYTES + 4 * entries)
        self._indices.seek(HEADER_BYTES + 4 * entries)
        self._indptr.seek(HEADER_BYTES)
        self._indptr.write(np.zeros(1, dtype=np.int64).data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def append(self, pairs: np.ndarray, row: int, end: int) -> None:
        """Writes rows `row` to `end - 1` of ascending pairs; the first may continue the last row of the call before."""
        self._indptr.seek(HEADER_BYTES + 8 * (row + 1))
        at = 0
        while row < end:
            ends = np.empty(min(self._block, end - row), dtype=np.int64)
            at = row_ends(pairs, at, row, self._layout.target_bits, self.entries, ends)
            self._indptr.write(ends.data)
            row += len(ends)
        target = np.uint64((1 << self._layout.target_bits) - 1)
        for first in range(0, len(pairs), MAX_BLOCK):
            self._indices.write((pairs[first : first + MAX_BLOCK] & target).astype(np.int32).data)
        self.entries += len(pairs)

    def save(self) -> None:
        """Brings everything to disk."""
        for file in (self._indptr, self._indices):
            to_disk(file)

    def finish(self) -> None:
        """Writes the headers, which say how long the arrays are."""
        for file, length, dtype in (
            (self._indptr, self._layout.nodes + 1, np.int64),
            (self._indices, self.entries, np.int32),
        ):
            file.seek(0)
            file.write(npy_header((length,), np.dtype(dtype)))
            to_disk(file)
