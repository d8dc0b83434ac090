"""A file of a user's own, opened so that nothing but a file is read, and no more of it than is wanted."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_plain(path: str | Path) -> BufferedReader:
    """Opens a file for reading; a pipe or a device, which may never end, is refused.

    Raises:
        OSError: It cannot be opened, or is no file; `strerror` says why.
    """
    # Opening a pipe would wait for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            reason = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Is no file"
            raise OSError(errno.EINVAL, reason, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: str | Path, most_bytes: int) -> str:
    """The text of a small file in UTF-8, with or without a byte order mark.

    Raises:
        OSError: It cannot be opened, or is no file.
        ValueError: It is larger, or no text.
    """
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes >> 20} MiB")
    return content.decode("utf-8-sig")
