"""Modules that lie beside a user's file: collected as texts, and imported from these texts on every process."""

import ast
import builtins
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from shoal.storage.errors import ShoalError

# A module of these names beside the file is never meant: the file imports the engine's, or Python's own.
TAKEN = frozenset({"shoal"}) | sys.stdlib_module_names
PACKAGE = ".__init__"
TOO_DEEP = (SyntaxError, ValueError, RecursionError, MemoryError)


def collect(file: Path, source: str, key: str = "algorithm.name") -> dict[str, str]:
    """Collects modules beside a file that it imports, and these: texts by dotted name, a package's in `.__init__`."""
    texts: dict[str, str] = {}
    waiting = [("", source)]
    while waiting:
        package, text = waiting.pop()
        for name in _imports(text, package):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                dotted = ".".join(parts[:length])
                if parts[0] in TAKEN or dotted in texts or dotted + PACKAGE in texts:
                    continue
                module = _read_module(file.parent.joinpath(*parts[:length]), key)
                if module is None:
                    break
                is_package, text = module
                texts[dotted + PACKAGE * is_package] = text
                waiting.append((dotted if is_package else dotted.rpartition(".")[0], text))
    return dict(sorted(texts.items()))


def _imports(source: str, package: str) -> Iterator[str]:
    """Lists modules that a text may import, absolute; of a text that is no Python none, loading it says why."""
    try:
        tree = ast.parse(source)
    except TOO_DEEP:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                outer = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
                base = ".".join([*outer, *([base] if base else [])]) if outer else ""
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _read_module(place: Path, key: str) -> tuple[bool, str] | None:
    """Reads whether a module is a package, and its text; None where no module lies."""
    for is_package, file in ((True, place / "__init__.py"), (False, place.with_name(f"{place.name}.py"))):
        if file.is_file():
            try:
                return is_package, file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not a text in UTF-8"
                raise ShoalError(key, f"{file} cannot be read: {reason}") from error
    return None


class LocalModules:
    """Imports modules from texts for one file, under names that no other file has."""

    def __init__(self, name: str, folder: Path, texts: Mapping[str, str]) -> None:
        """Imports nothing yet; `name` is that of the file's module, and those of its helpers lie below it."""
        self._name, self._folder, self._texts = name, folder, texts
        self.files = frozenset(map(self._file, texts))
        for old in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
            del sys.modules[old]

    def run(self, file: str, source: str) -> ModuleType:
        """Runs the text of the file's own module. Raises BaseException: whatever the text raises."""
        module = self._module(self._name, file, "")
        exec(compile_text(source, file), module.__dict__)
        return module

    def _file(self, key: str) -> str:
        path = self._folder.joinpath(*key.split("."))
        return str(path.with_name(f"{path.name}.py"))

    def _module(self, name: str, file: str, package: str) -> ModuleType:
        module = ModuleType(name)
        # An import statement calls what stands here.
        names = {**vars(builtins), "__import__": self._import}
        module.__dict__.update(__file__=file, __builtins__=names, __package__=package)
        # Dataclasses look their module up by name.
        sys.modules[name] = module
        return module

    def _import(
        self,
        name: str,
        variables: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
        wanted: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level:
            package = (variables or {}).get("__package__", "")
            if not package:
                raise ImportError(f"write `import {name or 'helper'}`: your files are in no package")
            absolute = importlib.util.resolve_name("." * level + name, package)
            name = absolute.removeprefix(self._name).removeprefix(".")
            if absolute == self._name:
                raise ImportError("attempted relative import beyond the package that lies beside the file")
        top = name.split(".")[0]
        if top not in self._texts and top + PACKAGE not in self._texts:
            return builtins.__import__(name, variables, local, wanted or (), level)
        parts = name.split(".")
        modules = [self._load(".".join(parts[: length + 1])) for length in range(len(parts))]
        for part in wanted or ():
            inner = f"{name}.{part}"
            if not hasattr(modules[-1], part) and (inner in self._texts or inner + PACKAGE in self._texts):
                self._load(inner)
        return modules[-1] if wanted else modules[0]

    def _load(self, dotted: str) -> ModuleType:
        """Loads a module of the texts, run once."""
        name = f"{self._name}.{dotted}"
        if name in sys.modules:
            return sys.modules[name]
        is_package = dotted + PACKAGE in self._texts
        if not is_package and dotted not in self._texts:
            raise ModuleNotFoundError(f"No module named {dotted!r} beside the file", name=dotted)
        key = dotted + PACKAGE * is_package
        file = self._file(key)
        outer = name.rpartition(".")[0]
        module = self._module(name, file, name if is_package else outer if outer != self._name else "")
        try:
            exec(compile_text(self._texts[key], file), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
        above, _, last = dotted.rpartition(".")
        if above:
            setattr(sys.modules[f"{self._name}.{above}"], last, module)
        return module


def compile_text(source: str, file: str) -> CodeType:
    """Compiles a text, free of the options of the text that asks for it."""
    return compile(source, file, "exec", dont_inherit=True)
