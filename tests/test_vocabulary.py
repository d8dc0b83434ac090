"""Terms that the glossary retired stand in no name, message or heading. Prose is read by people, not by this test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("shoal", "engine", "algorithms", "partition", "storage")
# Whole words of a name: `lent_rows` and `Memo` have one, `talent` and `memory` none.
WORDS = (
    "told heard said alike lent sight invite invites invited mend mends mended nobody memo memos "
    "settle settles settled draft drafts stacked wire"
)
RETIRED = frozenset(WORDS.split())
# Several words of a name in a row. `at_once` by itself is an option of sweeps: how many runs work at a time.
RUNS_OF_WORDS = ("of_several", "for_several", "side_by_side", "trained_together", "are_at_once", "one_at_once")
WHOLE_NAMES = frozenset({"How", "Malformed", "Steps"})
OF_ENGINE = frozenset({"piece", "pieces"})
# Hook and parameter of earlier methods, now `receive` and `received`.
OF_HOOKS = frozenset({"begin", "given"})
PHRASES = ("of one's own", "in the place of", "side by side", "of several")
LOGGING = frozenset({"print", "echo", "debug", "info", "warning", "error", "exception", "warn", "_warn", "fail"})

Found = set[tuple[str, str, str]]


def product() -> list[Path]:
    return sorted(
        path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.resolve() == path.absolute()
    )


def found() -> Found:
    """What is retired and still there: file, where in it (`name`, `message`, `heading`), and the term."""
    here: Found = set()
    for path in product():
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text())
        here |= {(name, "name", term) for identifier in identifiers(tree) for term in of_name(identifier, name)}
        here |= {(name, "name", term) for term in of_name(path.stem, name)}
        here |= {(name, "message", term) for text in messages(tree) for term in of_text(text)}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = str(path.relative_to(ROOT))
        headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", path.read_text()))
        here |= {(name, "heading", term) for text in headings for term in of_text(text)}
    return here


def of_name(identifier: str, path: str) -> Iterator[str]:
    """Retired terms of a name in a file."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]
    in_engine = path.startswith("engine/")
    yield from RETIRED.intersection(words)
    yield from OF_ENGINE.intersection(words if in_engine else ())
    yield from (run for run in RUNS_OF_WORDS if f"_{run}_" in f"_{'_'.join(words)}_")
    if re.search(r"._at_once$", identifier):
        yield "at_once"
    if identifier in WHOLE_NAMES:
        yield identifier
    if identifier in OF_HOOKS and path.startswith(("algorithms/", "engine/hosts/")):
        yield identifier


def of_text(text: str) -> Iterator[str]:
    """Retired terms of a message or a heading."""
    yield from RETIRED.intersection(re.findall(r"[a-z']+", text.lower()))
    yield from (phrase for phrase in PHRASES if phrase in text.lower())


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Names that a module gives: functions, classes, arguments, attributes, variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def messages(tree: ast.Module) -> Iterator[str]:
    """Texts of raised errors, logged lines and printed ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from texts(node.exc)
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
            if name in LOGGING or name.endswith("Error"):
                for argument in node.args:
                    yield from texts(argument)


def texts(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def test_no_term_is_retired() -> None:
    assert not sorted(found()), "see the glossary in docs/architecture.md for the words to take"
