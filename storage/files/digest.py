"""Digest of a file's content in 32 digits, whatever its path."""

import json
import os
from contextlib import suppress
from errno import EISDIR
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG

import xxhash

from shoal.storage.errors import ShoalError
from shoal.storage.files.places import cache_folder

CHUNK = 1 << 22
# Smaller files are read again in less time than a note of them takes.
NOTED_BYTES = 1 << 26


def digest(path: Path) -> str:
    """XXH3-128 of a file, in hexadecimal: at the speed of memory, and no protection against malice. Raises OSError."""
    hasher = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def text_digest(text: str) -> str:
    """XXH3-128 of a text, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(text.encode())


def input_digest(path: Path) -> str:
    """The digest of a user's file, read once for every change of it.

    A file that has its device, inode, size, time of change and time of change of the inode, which no user can set, has
    its content. Of large files the digest is noted below `cache_folder`. Raises ShoalError: the
    file is missing, no file, or cannot be read.
    """
    try:
        stat = path.stat()
        if not S_ISREG(stat.st_mode):
            raise OSError(EISDIR, "Is no file", str(path))
        return _known(str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=4096)
def _known(path: str, *stat: int) -> str:
    size = stat[2]
    if size < NOTED_BYTES:
        return digest(Path(path))
    try:
        note = cache_folder() / "digests" / text_digest(path)
    except ShoalError:
        return digest(Path(path))
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(note.read_text())
        if noted["stat"] == list(stat):
            return str(noted["digest"])
    found = digest(Path(path))
    # Without a place for the note the file is read again next time.
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished = note.with_name(f"{note.name}.{os.getpid()}")
        unfinished.write_text(json.dumps({"path": path, "stat": stat, "digest": found}))
        os.replace(unfinished, note)
    return found
