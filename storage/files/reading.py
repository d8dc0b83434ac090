"""A file of a user's own, opened so that nothing but a file is read, and no more of it than is wanted."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from shoal.storage.errors import ShoalError


def open_plain(path: str | Path) -> BufferedReader:
    """Opens a file. Raises OSError: it cannot be opened, or is a pipe or device, which may never end."""
    # Opening a pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            number, reason = (errno.EISDIR, "Is a directory") if stat.S_ISDIR(mode) else (errno.EINVAL, "Is no file")
            raise OSError(number, reason, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path) -> bytes:
    """Reads the whole content of a file; errors of `open_plain`."""
    with open_plain(path) as file:
        return file.read()


def read_text(path: str | Path, most_bytes: int) -> str:
    """Reads a small text in UTF-8, byte order mark or not. Raises OSError; ValueError: it is no such text."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes >> 20} MiB")
    return content.decode("utf-8-sig")


WAYS_OUT = {
    errno.ENOMEM: "free memory, or raise vm.max_map_count if this process maps very many files",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EACCES: "give this user the right to read it",
    errno.EPERM: "give this user the right to read it",
    errno.EIO: "look at the disk or the network that it lies on",
    errno.EINVAL: "a pipe or a device may be where a file should be, move it away",
    errno.EISDIR: "there is a folder where a file should be, move it away",
}


def cannot_read(path: Path, error: OSError) -> ShoalError:
    """Makes the error for a file that is there and cannot be opened, mapped or read."""
    way_out = WAYS_OUT.get(error.errno or 0, "look at the file system that it lies on")
    return ShoalError(path, f"cannot be read: {error.strerror or error}; {way_out}")
