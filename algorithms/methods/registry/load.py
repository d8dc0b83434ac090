"""A method by name, or from a user's own file, whose class is checked."""

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Mapping, Set
from typing import Any, get_args

from shoal.algorithms.base import (
    NEWCOMERS,
    TARGETS,
    TASKS,
    WEIGHTED,
    Algorithm,
    ClientModels,
    mixes_models,
    takes_clusters,
    takes_targets,
)
from shoal.algorithms.method_errors import code_of, file_of, line_of
from shoal.algorithms.methods.registry.names import METHODS, require_method_name
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import quoted
from shoal.storage.user_code.option_fields import field_values
from shoal.storage.user_code.user_code import UserCode, read_user_code

RECOMMENDED = "recommended"
# Arguments of every hook, without the method itself.
HOOKS = {
    "models": (),
    "norms": (),
    "setup": ("ctx",),
    "round": ("server", "ctx", "cohort"),
    "global_model": ("server",),
    "receive": ("client", "down"),
    "train": ("client", "received", "trainer", "phase"),
    "loss": ("out", "y", "w", "received"),
    "pull": ("client", "received", "options"),
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


@dataclasses.dataclass(frozen=True)
class MethodSpec:
    """A method as it travels to the hosts.

    Attributes:
        name: A key of `METHODS`, or `file.py:Class`.
        options: Hyper-parameters, by field name.
        source: Text of the user's file; None for a method of ours.
        helpers: Texts of the modules beside the user's file that it imports, by dotted name.
    """

    name: str
    options: Mapping[str, Any]
    source: str | None = None
    helpers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The digest of a user's file and its helpers, 32 digits, wherever they lie; empty for our methods."""
        return "" if self.code is None else self.code.digest

    @property
    def code(self) -> UserCode | None:
        """The texts; None of a method of ours."""
        return None if self.source is None else UserCode(self.name, self.source, self.helpers)


def describe(name: str, options: Mapping[str, Any]) -> MethodSpec:
    """Reads a user's file, if it is one, and what it imports beside it; a ShoalError says that there is none."""
    require_method_name(name)
    if name in METHODS:
        return MethodSpec(name, dict(options))
    code = read_user_code("algorithm.name", name)
    return MethodSpec(name, dict(options), code.source, code.helpers)


def load(spec: MethodSpec) -> Algorithm:
    """Makes the method with its hyper-parameters; a ShoalError names a wrong class or option, of a user's the line."""
    if (code := spec.code) is None:
        cls = _our_class(spec.name)
        where = file_of(cls)
    else:
        cls = code.load()
        require_method(cls, code.file, code.source)
        where = class_place(cls, code.file, code.source)
    values = field_values(cls, _in_form(cls, spec), "algorithm.", spec.name, where)
    try:
        method = cls.__new__(cls)
    except TypeError as error:
        raise ShoalError("algorithm", spec.name, str(error)) from None
    try:
        with code_of(method, "__post_init__"):
            method.__init__(**values)  # type: ignore[misc]
    except ShoalError as error:
        # Methods refuse their hyper-parameters by such an error, and Python a missing one.
        cause = error.__cause__
        if isinstance(cause, ValueError) or (isinstance(cause, TypeError) and "__init__()" in str(cause)):
            raise ShoalError("algorithm", spec.name, " ".join(str(cause).split()), detail=error.detail) from cause
        raise
    return method


def _in_form(cls: type[Algorithm], spec: MethodSpec) -> Mapping[str, Any]:
    """Puts the options of the form that `form` names before the others."""
    if "form" not in spec.options or "form" in cls.__dataclass_fields__:  # type: ignore[attr-defined]
        return spec.options
    options = dict(spec.options)
    forms = {RECOMMENDED: {}, **cls.forms}
    if (form := options.pop("form")) not in forms:
        raise ShoalError("algorithm.form", f"expected {' or '.join(forms)} for {spec.name}, got {quoted(form)}")
    return {**forms[form], **options}


def mixing_methods() -> list[str]:
    """Lists our methods whose clients may train different models."""
    return [name for name in METHODS if mixes_models(_our_class(name))]


def weighing_methods(task: str) -> Iterator[str]:
    """Lists our methods for a task that use what edges weigh, each read when it is asked for."""
    return (name for name in METHODS if {task, WEIGHTED} <= _our_class(name).supports)


def methods_for(task: str) -> list[str]:
    """Lists our methods that can train for a task."""
    return [name for name in METHODS if task in _our_class(name).supports]


def methods_for_targets(task: str) -> list[str]:
    """Lists our methods for a task whose labels may be numbers, or several an item."""
    return [name for name in methods_for(task) if takes_targets(_our_class(name))]


def methods_for_clusters(task: str) -> list[str]:
    """Lists our methods for a task that train without labels."""
    return [name for name in methods_for(task) if takes_clusters(_our_class(name))]


def _our_class(name: str) -> type[Algorithm]:
    module_name, _, cls_name = METHODS[name].partition(":")
    return getattr(importlib.import_module(module_name), cls_name)


def require_method(cls: Any, file: str, source: str) -> None:
    """Refuses what is no frozen dataclass of `Algorithm`, or has hooks or flags that are not read; names the line."""
    where = class_place(cls, file, source)
    if not isinstance(cls, type) or not issubclass(cls, Algorithm):
        kind = f"class {cls.__name__}" if isinstance(cls, type) else type(cls).__name__
        raise ShoalError(where, f"{kind} is not a method; derive a class from shoal.Algorithm")
    name = cls.__name__
    parameters = vars(cls).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
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
    name, options = cls.__name__, {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for old, new in REPLACED.items():
        if hasattr(cls, old) and old not in options:
            place = line_of(getattr(cls, old)) or where
            raise ShoalError(place, f"{name}.{old} is of an earlier version and not read any more; use {new}")
    if cls.client_models not in (kinds := get_args(ClientModels)):
        place = f"{name}.client_models"
        raise ShoalError(where, place, f"expected one of {', '.join(kinds)}, got {cls.client_models!r}")
    if not isinstance(cls.supports, Set) or not cls.supports <= TASKS | {WEIGHTED, NEWCOMERS, TARGETS}:
        place, got = f"{name}.supports", cls.supports
        wanted = "node, edge, graph, weighted, newcomers and targets"
        raise ShoalError(where, place, f"expected a frozenset of {wanted}, got {got!r}")


def class_place(cls: Any, file: str, source: str) -> str:
    """Finds file and line of a class; only the file where the text does not say."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == getattr(cls, "__name__", None):
            return f"{file}, line {node.lineno}"
    return file
