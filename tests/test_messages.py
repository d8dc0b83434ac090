"""Every message of an error that a user can cause stands in `messages.txt`, so that wording is reviewed in one place.

`python tests/test_messages.py` writes the file anew.
"""

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from rooms import modules, nodes_of

FILE = Path(__file__).with_name("messages.txt")
ERRORS = {"ShoalError", "FetchError", "ProtocolError", "MethodFault", "DeviceLost"}


def messages() -> list[str]:
    """Texts of all errors of the product, sorted, each once; `{name}` stands for what is put in."""
    return sorted({text for path in modules().values() for text in messages_of(nodes_of(path))})


def messages_of(nodes: list[ast.AST]) -> Iterator[str]:
    """Texts of the errors that a file makes; those made of variables alone have none."""
    for node in nodes:
        if isinstance(node, ast.Call) and name_of(node.func) in ERRORS and node.args:
            for parts in product(*map(list, map(texts_of, node.args))):
                text = ": ".join(parts)
                if re.search("[a-z]", re.sub("{.*?}", "", text)):
                    yield text.replace("\n", "\\n")


def texts_of(node: ast.expr) -> Iterator[str]:
    """What an expression may be: of a condition both branches, of a sum its parts behind one another."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{name_of(part.value)}}}" for part in parts
            )
        case ast.IfExp(body=body, orelse=orelse):
            yield from texts_of(body)
            yield from texts_of(orelse)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            yield from (a + b for a in texts_of(left) for b in texts_of(right))
        case _:
            yield "{" + name_of(node) + "}"


def name_of(node: ast.expr) -> str:
    """The last name of `a.b.name`, and of a call of it; empty for other expressions."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def test_messages_are_those_on_file() -> None:
    found, known = set(messages()), set(FILE.read_text().splitlines())
    assert not found ^ known, "read them, then `python tests/test_messages.py`:\n" + "\n".join(
        [*(f"- {text}" for text in sorted(known - found)), *(f"+ {text}" for text in sorted(found - known))]
    )


if __name__ == "__main__":
    FILE.write_text("".join(f"{text}\n" for text in messages()))
