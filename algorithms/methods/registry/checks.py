"""Checks of a user's method: a frozen dataclass whose hooks take the arguments of `Algorithm`."""

import ast
import inspect
from collections.abc import Set
from dataclasses import fields
from typing import Any, get_args

from shoal.algorithms.base import TASKS, WEIGHTED, Algorithm, ClientModels
from shoal.algorithms.method_errors import line_of
from shoal.storage.errors import ShoalError

# Arguments of every hook, without the method itself.
HOOKS = {
    "models": (),
    "setup": ("ctx",),
    "round": ("server", "ctx", "cohort"),
    "global_model": ("server",),
    "receive": ("client", "down"),
    "train": ("client", "received", "trainer", "phase"),
    "loss": ("out", "y", "w", "received"),
    "upload": ("client", "received", "phase"),
    "predict": ("client", "received", "part"),
}
_TERM = "a train() that calls trainer.fit(client, received, term=...)"
_BATCHED = "upload() and engine.trainer: autograd"
# Hooks and flags of earlier versions, and what replaces each.
REPLACED = {
    "begin": "receive(self, client, down)",
    "regularizer": _TERM,
    "regularizers": _TERM,
    "rows_beside": _TERM,
    "loss_beside": _TERM,
    "uploads": _BATCHED,
    "trained_together": _BATCHED,
    "keeps_model": 'client_models = "personal"',
    "mixed_models": 'client_models = "heterogeneous"',
    "shares_part": "a global_model() whose entries are not named w",
    "evaluates_global_model": "a global_model() with an entry w",
    "whole_graph": "centralized = True",
    "tasks": 'supports = frozenset({"node", "weighted"}), or some of node, edge, graph and weighted',
    "weighs_edges": 'supports, with or without "weighted"',
    "plain_training": "train() and loss(): a method that replaces neither is plain",
    "loss_of_several": "engine.trainer: autograd; batches are for plain cross-entropy",
}


def require_method(cls: Any, file: str, source: str) -> None:
    """Checks the class itself.

    Raises:
        ShoalError: Not a frozen dataclass derived from `Algorithm`, no `round`, hooks with other arguments, a hook or
            flag of an earlier version, or a flag with an unknown value; names the line.
    """
    where = class_place(cls, file, source)
    if not isinstance(cls, type) or not issubclass(cls, Algorithm):
        kind = f"class {cls.__name__}" if isinstance(cls, type) else type(cls).__name__
        raise ShoalError(where, f"{kind} is not a method; derive a class from shoal.Algorithm")
    name = cls.__name__
    own = vars(cls).get("__dataclass_params__")
    if own is None or not own.frozen:
        raise ShoalError(where, f"{name} is not a frozen dataclass; write @dataclass(frozen=True) above it")
    _require_current(cls, where)
    if cls.round is Algorithm.round:
        raise ShoalError(where, f"{name} has no round(self, server, ctx, cohort), the server's part of a round")
    for hook, received in HOOKS.items():
        function = getattr(cls, hook)
        if function is getattr(Algorithm, hook):
            continue
        bound = isinstance(inspect.getattr_static(cls, hook), staticmethod | classmethod)
        try:
            inspect.signature(function).bind(*received if bound else (None, *received))
        except (TypeError, ValueError) as error:
            wanted, line = ", ".join(("self", *received)), line_of(function) or where
            raise ShoalError(line, f"{name}.{hook} cannot be called as {hook}({wanted}): {error}") from None


def _require_current(cls: type[Algorithm], where: str) -> None:
    """Refuses hooks and flags of earlier versions, and flags with unknown values."""
    name, options = cls.__name__, {field.name for field in fields(cls)}  # type: ignore[arg-type]
    for old, new in REPLACED.items():
        if hasattr(cls, old) and old not in options:
            place = line_of(getattr(cls, old)) or where
            raise ShoalError(place, f"{name}.{old} is of an earlier version and not read any more; use {new}")
    if cls.client_models not in (known := get_args(ClientModels)):
        place = f"{name}.client_models"
        raise ShoalError(where, place, f"expected one of {', '.join(known)}, got {cls.client_models!r}")
    if not isinstance(cls.supports, Set) or not cls.supports <= TASKS | {WEIGHTED}:
        place, found = f"{name}.supports", cls.supports
        raise ShoalError(where, place, f"expected a frozenset of node, edge, graph and weighted, got {found!r}")


def class_place(cls: Any, file: str, source: str) -> str:
    """File and line of a class; only the file where the text does not say."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == getattr(cls, "__name__", None):
            return f"{file}, line {node.lineno}"
    return file
