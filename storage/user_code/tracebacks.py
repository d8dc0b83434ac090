"""Errors in a user's code: one line of text, and the line of the file."""

import dis
import traceback
from collections.abc import Collection
from types import TracebackType

LONGEST, MOST_NAMES = 400, 20


def in_words(error: BaseException) -> str:
    """Writes type and message of an error in one line."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its message cannot be read)"
    return f"{type(error).__name__}: {message[:LONGEST]}" if message else type(error).__name__


def innermost_line(files: Collection[str], trace: TracebackType | None) -> str | None:
    """Finds the innermost line of a traceback that lies in some files, as `file.py, line 7`; None: there is none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    return next((f"{file}, line {line}" for file, line in reversed(lines) if file in files), None)


def raised_by_itself(error: BaseException, files: Collection[str]) -> bool:
    """Whether code in these files raised the error by a `raise`; a signal interrupts other instructions."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename not in files:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def names_there(error: BaseException) -> str:
    """Lists what an object of ours has, where an error says that it has no such attribute; else nothing."""
    it = getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or not type(it).__module__.startswith("shoal."):
        return ""
    names = [name for name in dir(it) if not name.startswith("_")]
    return f"; it has {', '.join(names[:MOST_NAMES])}" if names else ""
