"""A class of a program or a notebook as a file that a config can name."""

import ast
import builtins
import inspect
import linecache
import symtable
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.digest import text_digest
from shoal.storage.user_code.local_imports import TAKEN

PLAIN = (bool, int, float, str, bytes, type(None))


def spec_of(cls: type | FunctionType, folder: Path) -> str:
    """Names a class, or a function, for a config: `my_file.py:Name`.

    Of a class of a notebook, a file is written in `folder` with its text and all that it uses: imports, functions,
    classes, and plain values. Raises ShoalError: there is no text of it, or it uses what no text can hold.
    """
    name, module = cls.__name__, sys.modules.get(cls.__module__)
    if cls.__qualname__ != name:
        raise ShoalError(cls.__qualname__, "is defined within another; define it by itself")
    file = getattr(module, "__file__", None)
    if file and Path(file).suffix == ".py" and Path(file).is_file():
        return f"{Path(file).resolve()}:{name}"
    text = "\n\n".join(_Gathering(name, vars(module) if module else {}).of(name, cls)) + "\n"
    place = folder / text_digest(text)[:8] / f"{name}.py"
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as unfinished:
        unfinished.write_text(text)
    return f"{place.resolve()}:{name}"


class _Gathering:
    """The texts that a class needs, each after those that it needs itself."""

    def __init__(self, wanted: str, variables: dict[str, Any]) -> None:
        self._wanted, self._variables = wanted, variables
        self._seen: set[str] = set()

    def of(self, name: str, value: Any) -> Iterator[str]:
        """Collects the texts that make a name what it is in the notebook."""
        self._seen.add(name)
        if isinstance(value, ModuleType):
            self._require_installed(value)
            yield f"import {value.__name__} as {name}"
        elif _is_plain(value):
            yield f"{name} = {value!r}"
        elif getattr(value, "__module__", None) != self._variables.get("__name__"):
            yield self._from(name, value)
        else:
            text = _text_of(name, value)
            if text is None:
                raise self._refusal(name, value)
            for used in sorted(_free_names(text)):
                if used not in self._seen and used in self._variables and not hasattr(builtins, used):
                    yield from self.of(used, self._variables[used])
            yield text

    def _from(self, name: str, value: Any) -> str:
        """Writes the import of a class or function of an installed package."""
        module = sys.modules.get(getattr(value, "__module__", None) or "")
        called = getattr(value, "__name__", "")
        if module is None or getattr(module, called, None) is not value:
            raise self._refusal(name, value)
        self._require_installed(module)
        return f"from {module.__name__} import {called} as {name}"

    def _require_installed(self, module: ModuleType) -> None:
        file = Path(getattr(module, "__file__", None) or sys.executable)
        ours = module.__name__.partition(".")[0] in TAKEN
        if not ours and "site-packages" not in file.parts and file.is_relative_to(Path.cwd()):
            raise ShoalError(self._wanted, f"uses {file}; put the class into a file beside that, as my_file.py:Name")

    def _refusal(self, name: str, value: Any) -> ShoalError:
        kind = type(value).__name__
        return ShoalError(
            self._wanted, f"there is no text of {name} ({kind}); take an option for it, or put the class into a file"
        )


def _is_plain(value: Any) -> bool:
    """Whether a value is what its text gives again."""
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    # An infinity or NaN is written as a name.
    return type(value) in PLAIN and not (isinstance(value, float) and value - value != 0)


def _text_of(name: str, value: Any) -> str | None:
    """Finds the text of a class or function of a notebook, with decorators, in the cell that defined it."""
    functions = map(_inner, vars(value).values()) if isinstance(value, type) else [value]
    for function in functions:
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None:
            continue
        lines = linecache.getlines(code.co_filename)
        try:
            body = ast.parse("".join(lines)).body
        except SyntaxError:
            # The cell has commands of the notebook.
            continue
        for node in reversed(body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                return "".join(lines[first - 1 : node.end_lineno]).rstrip()
    return None


def _inner(value: Any) -> Any:
    """Returns the function below a property or a method that is no plain function."""
    return getattr(value, "fget", None) or getattr(value, "__func__", value)


def _free_names(text: str) -> set[str]:
    """Collects the names that a text takes from outside of itself."""
    waiting, names = [symtable.symtable(text, "notebook", "exec")], set()
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        top = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return names
