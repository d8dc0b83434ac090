"""The mutants of a file: mutmut's changes, and three of ours.

Left as they are: docstrings, annotations, names given to types, decorators, `__all__` and the like, `__repr__`, and the
text of an error.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_string


def one_less(node: cst.Integer) -> Iterator[cst.CSTNode]:
    """As `sum(1)` to `sum(0)`; mutmut counts up."""
    yield cst.parse_expression(str(node.evaluated_value - 1))


def opposite(node: cst.If) -> Iterator[cst.CSTNode]:
    yield node.with_changes(test=cst.parse_expression(f"not ({cst.Module([]).code_for_node(node.test)})"))


def left_out(node: cst.Expr | cst.Raise) -> Iterator[cst.CSTNode]:
    yield cst.Pass()


CHANGES = [*mutation_operators, (cst.Integer, one_less), (cst.If, opposite), (cst.Expr | cst.Raise, left_out)]


@dataclass(frozen=True)
class Mutant:
    """A changed source, the number of its first changed line, and the changed lines: `before -> after`."""

    source: str
    line: int
    change: str


class Visitor(cst.CSTVisitor):
    """Collects nodes and what they may be changed to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.Annotation() | cst.Decorator() | cst.Expr(value=cst.BaseString() | cst.Ellipsis()):
                return False
            case cst.FunctionDef(name=cst.Name(value="__repr__" | "__str__")):
                return False
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]) if re.match("__|[A-Z][a-z]", name):
                return False
            case cst.Call(func=cst.Name(value="isinstance" | "len")):
                without = operator_arg_removal
            case _:
                without = None
        for kind, change in CHANGES:
            if isinstance(node, kind) and change is not without:
                # mutmut's other changes of a string are its letters in another case.
                changed = list(change(node))[: 1 if change is operator_string else None]
                self.found += [(node, new) for new in changed]
        return not isinstance(node, cst.Raise)


def mutants_of(source: str) -> list[Mutant]:
    """All that Python can read, from the top of the file down, none twice."""
    module, visitor = cst.parse_module(source), Visitor()
    module.visit(visitor)
    mutants: dict[str, Mutant] = {}
    for node, changed in visitor.found:
        text = module.deep_replace(node, changed).code
        if text == source or text in mutants or not readable(text):
            continue
        old, new = source.splitlines(), text.splitlines()
        head = alike(old, new)
        tail = alike(old[head:][::-1], new[head:][::-1])
        change = " -> ".join(" ".join(map(str.strip, part[head : len(part) - tail])) for part in (old, new))
        mutants[text] = Mutant(text, head + 1, change)
    return sorted(mutants.values(), key=lambda mutant: mutant.line)


def alike(old: Sequence[str], new: Sequence[str]) -> int:
    """Number of first lines that are the same."""
    return next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))


def readable(source: str) -> bool:
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(source, "mutant", "exec")
        except SyntaxError:
            return False
    return True
