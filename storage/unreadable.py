"""What to say when the system does not let a file be read: that is no fault of the file."""

import errno
import re
from pathlib import Path

from storage.errors import ShoalError

WAYS_OUT = {
    errno.ENOMEM: "free memory, or raise vm.max_map_count if this process maps very many files",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EACCES: "give this user the right to read it",
    errno.EPERM: "give this user the right to read it",
    errno.EIO: "look at the disk or the network that it lies on",
    errno.EISDIR: "there is a folder where a file should be, move it away",
}
ENDS_WITH_NUMBER = re.compile(r"\((\d+)\)$")


def cannot_read(path: Path, error: OSError) -> ShoalError:
    """The error for a file that is there and cannot be opened, mapped or read."""
    way_out = WAYS_OUT.get(error.errno or 0, "look at the file system that it lies on")
    return ShoalError(f"{path}: cannot be read: {error.strerror or error}; {way_out}")


def system_error(error: RuntimeError) -> OSError | None:
    """The system's own error of which torch says only the text and, at its end, the number; None: it is another."""
    message = str(error)
    number = ENDS_WITH_NUMBER.search(message)
    return OSError(int(number[1]), message.rpartition(": ")[2][: -len(number[0]) - 1]) if number else None
