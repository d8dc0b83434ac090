"""Terms that the glossary retired stand in no name, message or heading, and docstrings begin as sentences do.

People read the rest of the prose, not this test.
"""

import ast
import re
from collections.abc import Iterator, Sequence

from rooms import ROOT, modules, nodes_of

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

# A function's docstring begins with a verb, a class's with an article and a noun, and none with one of these.
NOT_FIRST = frozenset({"Of", "That", "Those", "As", "Where", "Who", "Whose", "What", "Which", "How", "When", "So"})
# A comment that begins so has no subject.
FRAGMENT = re.compile(r"(?m)^ *# ((?:Of|That of|Those of) .*)$")
# Locals are called by what they are.
VAGUE = frozenset({"found", "own", "each", "known", "one", "of"})

Found = set[tuple[str, str, str]]


FILES = list(modules().values())


def found() -> Found:
    """What is retired and still there: file, where in it (`name`, `message`, `heading`), and the term."""
    here: Found = set()
    for path in FILES:
        name = str(path)
        nodes = nodes_of(path)
        names = {path.stem, *identifiers(nodes)}
        here |= {(name, "name", term) for identifier in names for term in of_name(identifier, name)}
        here |= {(name, "message", term) for text in messages(nodes) for term in of_text(text)}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = str(path.relative_to(ROOT))
        headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", path.read_text()))
        here |= {(name, "heading", term) for text in headings for term in of_text(text)}
    return here


def of_name(identifier: str, path: str) -> Iterator[str]:
    """Retired terms of a name in a file."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]
    in_engine = path.startswith(("engine/", "shoal/"))
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


def identifiers(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names that a module gives: functions, classes, arguments, attributes, variables."""
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def messages(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Texts of raised errors, logged lines and printed ones."""
    for node in nodes:
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


def docstrings(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, str]]:
    """Names of what has a docstring, and its first word; the module's own name is empty."""
    for node in nodes:
        described = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if described and (text := ast.get_docstring(node, clean=False)):
            yield getattr(node, "name", ""), re.split(r"\W", text.lstrip(), maxsplit=1)[0]


def test_no_docstring_begins_with_a_question_word() -> None:
    wrong = [
        f"{path}: {name or 'the module'} begins with {word}"
        for path in FILES
        for name, word in docstrings(nodes_of(path))
        if word in NOT_FIRST
    ]
    assert not wrong, "begin with a verb in the third person, or with an article and a noun"


def test_comments_have_a_subject() -> None:
    wrong = [f"{path}: {text}" for path in FILES for text in FRAGMENT.findall((ROOT / path).read_text())]
    assert not wrong, "say what it is of, as a sentence"


def test_no_local_is_called_by_a_word_that_says_nothing() -> None:
    wrong = {
        f"{path}, line {node.lineno}: {node.id}"
        for path in FILES
        for function in nodes_of(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
    }
    assert not wrong, "call it by what it is"


def test_docstrings_are_read_with_the_names_of_their_owners() -> None:
    tree = ast.parse('"""How."""\nclass A:\n    """A class."""\n    def f(self):\n        """Of it."""\ndef g(): pass')
    assert sorted(docstrings(list(ast.walk(tree)))) == [("", "How"), ("A", "A"), ("f", "Of")]
