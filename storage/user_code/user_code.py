"""The texts of a user's file and of what it imports beside it, and the class that they hold."""

import ast
import inspect
import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from shoal.storage.errors import ReaderGone, ShoalError
from shoal.storage.files.digest import text_digest
from shoal.storage.files.reading import read_text
from shoal.storage.user_code.local_imports import LocalModules, collect
from shoal.storage.user_code.tracebacks import in_words, innermost_line, names_there, raised_by_itself

LARGEST_SOURCE = 1 << 22


@dataclass(frozen=True)
class UserCode:
    """A user's file as it travels to the hosts and is kept with a run.

    Attributes:
        name: `my_file.py:Name`.
        helpers: Texts of the modules beside it that it imports, by dotted name (see `beside.collect`).
    """

    name: str
    source: str
    helpers: Mapping[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Path of the file when it was read."""
        return self.name.rpartition(":")[0]

    @property
    def digest(self) -> str:
        """The digest of the texts, 32 digits, wherever they lie."""
        return text_digest(json.dumps([self.source, sorted(self.helpers.items())]))

    @property
    def identity(self) -> str:
        """Identifies the class: two classes of one file differ."""
        return f"{self.digest}:{self.name.rpartition(':')[2]}"

    @property
    def files(self) -> frozenset[str]:
        """Paths of all texts when they were read."""
        return frozenset({self.file, *(str(Path(self.file).parent / path) for path in map(path_of, self.helpers))})

    def load(self) -> Any:
        """Loads the object of that name; the file runs once a process. Raises ShoalError: it fails, or lacks it."""
        return _load(self.name, self.source, tuple(sorted(self.helpers.items())))

    def function(self, key: str, *arguments: str) -> Callable[..., Any]:
        """Loads the function of that name. Raises ShoalError: as `load`; it is none, or takes other arguments."""
        function, name, listed = self.load(), self.name.rpartition(":")[2], ", ".join(arguments)
        if not callable(function):
            raise self.fault(key, f"{name} is no function; write def {name}({listed})")
        try:
            inspect.signature(function).bind(*arguments)
        except (TypeError, ValueError) as error:
            raise self.fault(key, f"{name} cannot be called as {name}({listed}): {error}") from None
        return function

    @property
    def place(self) -> str:
        """File and line of the class; only the file where the text does not say."""
        name = self.name.rpartition(":")[2]
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return f"{self.file}, line {node.lineno}"
        return self.file

    @contextmanager
    def at_work(self, key: str) -> Iterator[None]:
        """Turns what code in the block raises into a ShoalError with its file and line, and the traceback as detail."""
        try:
            yield
        except (ShoalError, ReaderGone):
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not raised_by_itself(error, self.files):
                raise
            if type(error).__name__ == "OutOfMemoryError":
                raise
            detail = "".join(traceback.format_exception(error))
            where = innermost_line(self.files, error.__traceback__) or self.place
            raise ShoalError(key, where, in_words(error) + names_there(error), detail=detail) from error

    def fault(self, key: str, what: str) -> ShoalError:
        """Makes the error for a class that is or gives something wrong."""
        return ShoalError(key, self.place, what)


def path_of(module: str) -> Path:
    """Returns the path of a module below the folder of the file, from its dotted name as `collect` gives it."""
    path = Path(*module.split("."))
    return path.with_name(f"{path.name}.py")


def read_user_code(key: str, name: str) -> UserCode:
    """Reads a user's file, and what it imports beside it, for hosts that lack them. Raises ShoalError: unreadable."""
    file = name.rpartition(":")[0]
    try:
        source = read_text(file, LARGEST_SOURCE)
    except OSError as error:
        raise ShoalError(key, f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ShoalError(key, f"{file} cannot be read: not a text in UTF-8") from error
    except ValueError as error:
        raise ShoalError(key, f"{file} cannot be read: {error}") from error
    return UserCode(name, source, collect(Path(file), source, key))


@cache
def _load(name: str, source: str, helpers: tuple[tuple[str, str], ...]) -> Any:
    file, _, wanted = name.rpartition(":")
    # Two files of one text know different folders.
    module_name = f"shoal_own_{text_digest(json.dumps([file, source, helpers]))}"
    return read_class(LocalModules(module_name, Path(file).parent, dict(helpers)), file, source, wanted)


def read_class(beside: LocalModules, file: str, source: str, name: str) -> Any:
    """Runs a user's file and returns a class. Raises ShoalError: it fails, with the line; or has no such class."""
    try:
        module = beside.run(file, source)
    except ReaderGone:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not raised_by_itself(error, beside.files | {file}):
            raise
        where = _place_of_failure(error, file, beside.files)
        raise ShoalError(
            where, f"fails while it is read: {_reason(error)}", detail="".join(traceback.format_exception(error))
        ) from error
    cls = getattr(module, name, None)
    if cls is None:
        body = ast.parse(source).body
        classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
        functions = [node.name for node in body if isinstance(node, ast.FunctionDef)]
        kind, defined = ("class", classes) if classes else ("class or function", functions)
        raise ShoalError(file, f"has no {kind} {name}; it has {', '.join(defined) or 'none'}")
    return cls


def _place_of_failure(error: BaseException, file: str, helpers: frozenset[str]) -> str:
    """Finds the innermost line of the file, or a helper beside it, that a failure of its import came through."""
    files = helpers | {file}
    if isinstance(error, SyntaxError) and error.filename in files:
        return f"{error.filename}, line {error.lineno}" if error.lineno else str(error.filename)
    return innermost_line(files, error.__traceback__) or file


def _reason(error: BaseException) -> str:
    # Its words would repeat file and line.
    return f"SyntaxError: {error.msg}" if isinstance(error, SyntaxError) else in_words(error)
