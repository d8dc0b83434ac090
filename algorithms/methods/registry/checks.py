"""Whether a user's file holds a method: a frozen dataclass whose hooks take what the engine gives them."""

import ast
import inspect
from collections.abc import Mapping
from typing import Any

from shoal.algorithms.base import Algorithm
from shoal.storage.errors import ShoalError
from shoal.storage.user_code.option_fields import field_values

# What the engine gives to each hook of a method, beside the method itself.
HOOKS = {
    "models": (),
    "trained_together": (),
    "setup": ("ctx",),
    "round": ("server", "ctx", "cohort"),
    "global_model": ("server",),
    "receive": ("client", "down"),
    "train": ("client", "given", "trainer", "phase"),
    "loss": ("out", "y", "w", "given"),
    "regularizer": ("client", "given"),
    "regularizers": ("clients", "w_BP", "given"),
    "rows_beside": ("given",),
    "loss_beside": ("out", "y", "given"),
    "upload": ("client", "given", "phase"),
    "uploads": ("clients", "w", "given", "phase"),
    "predict": ("client", "given", "part"),
}


def require_method(cls: Any, file: str, source: str) -> None:
    """Checks the class itself.

    Raises:
        ShoalError: No frozen dataclass derived from `Algorithm`, without a `round`, or with hooks of other arguments;
            names the line.
    """
    name = cls.__name__ if isinstance(cls, type) else ""
    where = class_place(cls, file, source)
    if not isinstance(cls, type) or not issubclass(cls, Algorithm):
        kind = f"class {name}" if name else f"{type(cls).__name__}"
        raise ShoalError(f"{where}: a {kind} is no method; derive a class from shoal.algorithms.base.Algorithm")
    own = vars(cls).get("__dataclass_params__")
    if own is None or not own.frozen:
        raise ShoalError(f"{where}: {name} is no frozen dataclass; write @dataclass(frozen=True) above it")
    if cls.round is Algorithm.round:
        raise ShoalError(f"{where}: {name} has no round(self, server, ctx, cohort), the server's part of a round")
    for hook, received in HOOKS.items():
        function = getattr(cls, hook)
        if function is getattr(Algorithm, hook):
            continue
        bound = isinstance(inspect.getattr_static(cls, hook), staticmethod | classmethod)
        code = getattr(function, "__code__", None)
        line = f"{code.co_filename}, line {code.co_firstlineno}" if code else where
        try:
            inspect.signature(function).bind(*received if bound else (None, *received))
        except (TypeError, ValueError) as error:
            wanted = ", ".join(("self", *received))
            raise ShoalError(f"{line}: {name}.{hook} cannot be called as {hook}({wanted}): {error}") from None


def read_options(cls: type[Algorithm], name: str, options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of hyper-parameters, with the types of their fields.

    Args:
        cls: The method.
        name: What an error calls it.
        options: As written.
        where: File and line of the class.

    Raises:
        ShoalError: An option is unknown or of a wrong type, a default is, or a type cannot be found.
    """
    return field_values(cls, options, "algorithm.", name, where)


def class_place(cls: Any, file: str, source: str) -> str:
    """File and line of a class; only the file where the text does not say."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == getattr(cls, "__name__", None):
            return f"{file}, line {node.lineno}"
    return file
