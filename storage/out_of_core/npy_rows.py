"""An .npy file written row block by row block, whole or not at all; a killed write goes on where it was."""

import io
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write, to_disk
from shoal.storage.files.disk import require_disk
from shoal.storage.progress import step
from shoal.storage.store.writer import Journal

HEADER_BYTES = 128


def npy_header(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    """Makes the header of a C-ordered .npy file of up to two axes: always 128 bytes, so it can be written last."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    assert len(header.getvalue()) == HEADER_BYTES
    return header.getvalue()


def write_rows(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    blocks: Callable[[int], Iterable[np.ndarray]],
    commit_bytes: int,
    where: str,
) -> None:
    """Writes an array block by block, unless the file exists; a kill loses about `commit_bytes`.

    `blocks(first)` gives the rows from number `first` on, in blocks of any size, which are cast to `dtype`. Raises
    ShoalError: there are fewer or more rows than `shape` says, or they do not fit on the disk.
    """
    if path.exists():
        return
    row_bytes = dtype.itemsize * int(np.prod(shape[1:]))
    unfinished, journal_path = path.with_name(path.name + ".unfinished"), path.with_name(path.name + ".rows")
    journal = Journal(journal_path)
    done = journal.entries[-1]["rows"] if journal.entries and unfinished.exists() else 0
    require_disk(path.parent, (shape[0] - done) * row_bytes, path.name)
    try:
        with ExitStack() as stack:
            file = stack.enter_context(unfinished.open("r+b" if done else "wb"))
            file.truncate(HEADER_BYTES + done * row_bytes if done else 0)
            if not done:
                file.write(npy_header(shape, dtype))
            file.seek(0, os.SEEK_END)
            committed = done
            advance = stack.enter_context(step(f"{where}: {path.stem}", shape[0], "rows", done))
            for block in blocks(done):
                file.write(np.ascontiguousarray(block, dtype=dtype).data)
                done += len(block)
                advance(len(block))
                if (done - committed) * row_bytes >= commit_bytes:
                    to_disk(file)
                    journal.append({"rows": done})
                    committed = done
            if done != shape[0]:
                raise ShoalError(where, f"{done} rows, but {shape[0]} are announced; get the file again")
            to_disk(file)
        os.replace(unfinished, path)
        journal_path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
