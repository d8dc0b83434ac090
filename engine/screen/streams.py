"""Standard output and standard error of the command: closed, full, or of an encoding that lacks a character."""

import codecs
import io
import locale
import os
import signal
import sys
from typing import Any

from shoal.storage.errors import ShoalError


class _Output(io.FileIO):
    """Results. Where `head` has read enough, the command ends as by SIGPIPE; a full disk ends it with a line."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self)
            raise SystemExit(128 + signal.SIGPIPE) from None
        except OSError as error:
            _to_nowhere(self)
            raise ShoalError("standard output", f"cannot be written: {error.strerror}; files are kept") from error


class _Messages(io.FileIO):
    """Progress. Where it cannot be written, as on a terminal that is gone, it is lost, and the command goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            _to_nowhere(self)
            return len(data)


def _to_nowhere(file: io.FileIO) -> None:
    """What is written from now on, also at the end of the process, is lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def open_streams() -> None:
    """Puts both streams in the place of Python's; a character that a terminal lacks is written as its number."""
    for name, kind in (("stdout", _Output), ("stderr", _Messages)):
        stream = getattr(sys, name)
        if stream is not None:
            raw = kind(stream.fileno(), "wb", closefd=False)
            options = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
            text = io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, "backslashreplace", **options)
            setattr(sys, name, text)


def files_in_utf8() -> None:
    """Starts this process again where Python would read files in another encoding, that of an old locale."""
    if not sys.flags.utf8_mode and codecs.lookup(locale.getencoding()).name != "utf-8":
        os.environ["PYTHONUTF8"] = "1"
        os.environ.setdefault("PYTHONIOENCODING", getattr(sys.stdout, "encoding", "ascii"))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
