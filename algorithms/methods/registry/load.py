"""A method by name, or from a user's own file."""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.algorithms.base import WEIGHTED, Algorithm
from shoal.algorithms.method_errors import code_of, file_of
from shoal.algorithms.methods.registry.checks import class_place, require_method
from shoal.algorithms.methods.registry.names import METHODS, require_method_name
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import quoted
from shoal.storage.user_code.option_fields import field_values
from shoal.storage.user_code.user_code import UserCode, read_user_code

RECOMMENDED = "recommended"


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
        """Of the texts of a user's file and its helpers, 32 digits, wherever they lie; empty for a method of ours."""
        return "" if self.code is None else self.code.digest

    @property
    def code(self) -> UserCode | None:
        """The texts; None of a method of ours."""
        return None if self.source is None else UserCode(self.name, self.source, self.helpers)


def describe(name: str, options: Mapping[str, Any]) -> MethodSpec:
    """Reads a user's file, if it is one, and what it imports beside it: hosts on other machines need not see them.

    Raises:
        ShoalError: Unknown method or missing file.
    """
    require_method_name(name)
    if name in METHODS:
        return MethodSpec(name, dict(options))
    code = read_user_code("algorithm.name", name)
    return MethodSpec(name, dict(options), code.source, code.helpers)


def load(spec: MethodSpec) -> Algorithm:
    """Makes the method with its hyper-parameters.

    Raises:
        ShoalError: The file fails, the class is missing or no method, or a hyper-parameter is unknown or out of its
            range; of a user's file with the line.
    """
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
        # So does a method refuse its hyper-parameters, and Python a missing one.
        cause = error.__cause__
        if isinstance(cause, ValueError) or (isinstance(cause, TypeError) and "__init__()" in str(cause)):
            raise ShoalError("algorithm", spec.name, " ".join(str(cause).split()), detail=error.detail) from cause
        raise
    return method


def _in_form(cls: type[Algorithm], spec: MethodSpec) -> Mapping[str, Any]:
    """Options with those of the form that `form` names before them."""
    if "form" not in spec.options or "form" in cls.__dataclass_fields__:  # type: ignore[attr-defined]
        return spec.options
    options = dict(spec.options)
    forms = {RECOMMENDED: {}, **cls.forms}
    if (form := options.pop("form")) not in forms:
        raise ShoalError("algorithm.form", f"expected {' or '.join(forms)} for {spec.name}, got {quoted(form)}")
    return {**forms[form], **options}


def mixing_methods() -> list[str]:
    """Names of our methods whose clients may train different models."""
    return [name for name in METHODS if _our_class(name).client_models == "heterogeneous"]


def weighing_methods(task: str) -> Iterator[str]:
    """Names of our methods for a task that use what edges weigh, each read when it is asked for."""
    return (name for name in METHODS if {task, WEIGHTED} <= _our_class(name).supports)


def methods_for(task: str) -> list[str]:
    """Names of our methods that can train for a task."""
    return [name for name in METHODS if task in _our_class(name).supports]


def _our_class(name: str) -> type[Algorithm]:
    module_name, _, cls_name = METHODS[name].partition(":")
    return getattr(importlib.import_module(module_name), cls_name)
