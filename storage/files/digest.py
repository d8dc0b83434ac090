"""Digest of a file's content in 32 digits, whatever its path."""

import json
import os
import time
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

import psutil
import xxhash

from shoal.storage.errors import ShoalError
from shoal.storage.files.places import cache_folder
from shoal.storage.files.reading import open_plain, read_bytes

CHUNK = 1 << 22
# Smaller files are read again in less time than a note of them takes.
NOTED_BYTES = 1 << 24
# A file may change again within the resolution of its times, which is two seconds on some disks.
QUIET_SECONDS = 3.0
# File systems that keep no time of a change through a memory map.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


def digest(path: Path) -> str:
    """Computes XXH3-128 of a file, in hexadecimal: at the speed of memory, and no protection against malice.

    Raises OSError: it cannot be read, or is no file.
    """
    with open_plain(path) as file:
        return _digest(file)


def _digest(file: BufferedReader) -> str:
    hasher = xxhash.xxh3_128()
    while chunk := file.read(CHUNK):
        hasher.update(chunk)
    return hasher.hexdigest()


def text_digest(text: str) -> str:
    """Computes XXH3-128 of a text, in hexadecimal."""
    return digest_of(text.encode())


def digest_of(content: bytes) -> str:
    """Computes XXH3-128 of bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(content)


def input_digest(path: Path) -> str:
    """Digests a user's file; a large one on a disk is read once for every change of it.

    A file that has its device, inode, size, time of change and time of change of the inode, which no user can set, has
    its content. Of large files the digest is noted below `cache_folder` once they have not changed for
    some seconds. Raises ShoalError: the file is missing, no file, or cannot be read.
    """
    try:
        with open_plain(path) as file:
            small = os.fstat(file.fileno()).st_size < NOTED_BYTES
            return _digest(file) if small or _in_memory(path) else _noted_digest(path, file)
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror or error}") from error


def _noted_digest(path: Path, file: BufferedReader) -> str:
    try:
        note = cache_folder() / "digests" / text_digest(str(path))
    except ShoalError:
        return _digest(file)
    before = _stat(file)
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads(read_bytes(note))
        if noted["stat"] == before:
            return str(noted["digest"])
    # A page that is on disk is marked again, with the time, when a map next writes to it.
    with suppress(OSError):
        os.fsync(file.fileno())
    before, digest = _stat(file), _digest(file)
    quiet = time.time_ns() - max(before[-2:]) > 1e9 * QUIET_SECONDS
    if quiet and _stat(file) == before:
        # The file is read again next time if there is no place for the note.
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            unfinished = note.with_name(f"{note.name}.{os.getpid()}")
            unfinished.write_text(json.dumps({"path": str(path), "stat": before, "digest": digest}))
            os.replace(unfinished, note)
    return digest


def _stat(file: BufferedReader) -> list[int]:
    stat = os.fstat(file.fileno())
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _in_memory(path: Path) -> bool:
    """Whether a file lies on none of the disks, but in memory."""
    resolved = path.resolve()
    mounts = [mount for mount in psutil.disk_partitions(all=True) if resolved.is_relative_to(mount.mountpoint)]
    # The last one of several on one folder counts.
    return bool(mounts) and max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype in IN_MEMORY
