"""What a method's code did wrong: one line with the file and the line in it, for a method of ours or a user's own."""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType, TracebackType
from typing import Any, NoReturn

import torch

from shoal.algorithms.base import Algorithm
from shoal.storage.errors import ShoalError
from shoal.storage.user_code.tracebacks import in_words, raised_by_itself

OURS = "shoal."


class ProtocolError(Exception):
    """What a hook of a method gave is not what the protocol asks of it; `code_of` adds where the hook stands."""


@contextmanager
def code_of(method: Algorithm, hook: str, before: str = "") -> Iterator[None]:
    """Inside of the block a hook of a method runs; whatever it raises becomes one line that names its file and line.

    Errors that are such a line already, a full GPU and a Ctrl-C pass as they are.

    Args:
        method: The method.
        hook: Name of the hook, as `upload`.
        before: What the line says first, of the round for instance.

    Raises:
        ShoalError: The hook failed, or called `sys.exit`.
    """
    try:
        yield
    except BaseException as error:
        raise_named(method, hook, error, before)


def raise_named(method: Algorithm, hook: str, error: BaseException, before: str = "") -> NoReturn:
    """Raises the error of a hook as one line; see `code_of`. Without a hook the error is raised as it is."""
    if not hook or isinstance(error, ShoalError | torch.OutOfMemoryError):
        raise error
    if isinstance(error, ProtocolError):
        raise fault(method, hook, str(error), before) from None
    if isinstance(error, KeyboardInterrupt) and not raised_by_itself(error, _files(type(method))):
        raise error
    raise failure(method, hook, error, before) from error


def failure(method: Algorithm, hook: str, error: BaseException, before: str = "") -> ShoalError:
    """The error of a hook that raised, with the innermost line of the method's file and the traceback as its detail."""
    detail = "".join(traceback.format_exception(error))
    where = place_in(_files(type(method)), error.__traceback__)
    if where is None and type(method).__module__.startswith(OURS):
        # The engine's own code, which a method of ours runs but did not write.
        return ShoalError(f"{before}{in_words(error)}", detail=detail)
    where = where or _definition(method, hook)
    return ShoalError(f"{before}{where}, in {hook}(): {in_words(error)}", detail=detail)


def fault(method: Algorithm, hook: str | Callable[..., Any], what: str, before: str = "") -> ShoalError:
    """The error of a hook that gave something wrong; names the line where the hook is defined.

    Args:
        method: The method.
        hook: Name of the hook, or the function that the method gave in its place.
        what: What is wrong and what is wanted.
        before: As for `code_of`.
    """
    if isinstance(hook, str):
        return ShoalError(f"{before}{_definition(method, hook)}, in {hook}(): {what}")
    name = getattr(hook, "__name__", type(hook).__name__)
    return ShoalError(f"{before}{_line_of(hook) or file_of(type(method))}, in {name}(): {what}")


def yield_place(method: Algorithm, steps: Any) -> str:
    """Where the generator of `round` stands: the innermost `yield` in the method's files, a user's own first."""
    lines = []
    while isinstance(steps, GeneratorType) and steps.gi_frame is not None:
        lines.append((steps.gi_code.co_filename, steps.gi_frame.f_lineno))
        steps = steps.gi_yieldfrom
    return _innermost(lines, _files(type(method))) or _definition(method, "round")


def place_in(files: frozenset[str], trace: TracebackType | None) -> str | None:
    """The innermost line of a traceback that lies in some files, as `file.py, line 7`; those of a user come first."""
    return _innermost([(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)], files)


def _innermost(lines: Sequence[tuple[str, int]], files: frozenset[str]) -> str | None:
    found = [(file, line) for file, line in lines if file in files]
    own = [(file, line) for file, line in found if shown(file) == file]
    for file, line in reversed(own or found):
        return f"{shown(file)}, line {line}"
    return None


def file_of(cls: type) -> str:
    """The file of a method's class, a user's own as it was given, one of ours below the root of the packages."""
    return shown(getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__)


def shown(file: str) -> str:
    """A file of ours below the root of the packages, any other as it is."""
    before, found, rest = file.rpartition("/algorithms/")
    ours = sys.modules[Algorithm.__module__].__file__ or ""
    return f"algorithms/{rest}" if found and ours.startswith(f"{before}/algorithms/") else file


def _files(cls: type) -> frozenset[str]:
    """The files of a class and of those that it derives from, without the base of all; of a user's, helpers, too."""
    files = set()
    for base in cls.__mro__:
        if base in (Algorithm, object):
            continue
        name = base.__module__
        inside = [name] if name.startswith(OURS) else [n for n in sys.modules if n == name or n.startswith(f"{name}.")]
        files |= {getattr(sys.modules.get(n), "__file__", None) for n in inside}
    return frozenset(file for file in files if file)


def _definition(method: Algorithm, hook: str) -> str:
    """Where a hook of a method is defined; only the file if the method has none of its own."""
    own = getattr(type(method), hook, None)
    place = _line_of(own) if own is not getattr(Algorithm, hook, None) else None
    return place or file_of(type(method))


def _line_of(function: object) -> str | None:
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    return f"{shown(code.co_filename)}, line {code.co_firstlineno}" if code else None
