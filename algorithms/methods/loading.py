"""A method by name, or from a user's own file."""

import dataclasses
import importlib
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from algorithms.base import Algorithm
from storage.errors import ShoalError
from storage.option_types import checked, quoted
from storage.plain_file import read_text

METHODS = {
    "local": "algorithms.methods.local:Local",
    "global": "algorithms.methods.centralized:Global",
    "fedavg": "algorithms.methods.fedavg:FedAvg",
    "fedgta": "algorithms.methods.fedgta:FedGTA",
    "fedproto": "algorithms.methods.fedproto:FedProto",
    "fedtgp": "algorithms.methods.fedtgp:FedTGP",
    "fedpg": "algorithms.methods.fedpg.fedpg:FedPG",
    "class_means": "algorithms.methods.class_means:ClassMeans",
}

LARGEST_SOURCE = 1 << 22


@dataclasses.dataclass(frozen=True)
class MethodSpec:
    """A method as it travels to the hosts.

    Attributes:
        name: A key of `METHODS`, or `file.py:Class`.
        options: Hyper-parameters, by field name.
        source: Text of the user's file; None for a method of ours.
    """

    name: str
    options: Mapping[str, Any]
    source: str | None = None


def describe(name: str, options: Mapping[str, Any]) -> MethodSpec:
    """Reads a user's file, if it is one, so that hosts on other machines need not see it.

    Raises:
        ShoalError: Unknown method or missing file.
    """
    if name in METHODS:
        return MethodSpec(name, dict(options))
    file, colon, cls = name.rpartition(":")
    if not colon or not file.endswith(".py") or not cls:
        raise ShoalError(f"algorithm.name: {name!r} is unknown; there are {', '.join(METHODS)}, or my_file.py:MyMethod")
    try:
        return MethodSpec(name, dict(options), read_text(file, LARGEST_SOURCE))
    except OSError as error:
        raise ShoalError(f"algorithm.name: {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ShoalError(f"algorithm.name: {file} cannot be read: not a text in UTF-8") from error
    except ValueError as error:
        raise ShoalError(f"algorithm.name: {file} cannot be read: {error}") from error


def load(spec: MethodSpec) -> Algorithm:
    """Makes the method with its hyper-parameters.

    Raises:
        ShoalError: The class is missing or no `Algorithm`, or a hyper-parameter is unknown or out of its range.
    """
    cls = _class(spec)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    hints = get_type_hints(cls)
    for key, value in spec.options.items():
        if key not in fields:
            known = ", ".join(fields) or "no option"
            raise ShoalError(f"algorithm.{key}: unknown; {spec.name} has {known}")
        try:
            values[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"algorithm.{key}: {error}, found {quoted(value)}") from None
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ShoalError(f"algorithm: {spec.name}: {error}") from None


def mixing_methods() -> list[str]:
    """Names of our methods whose clients may train different models."""
    return [name for name in METHODS if _class(MethodSpec(name, {})).mixed_models]


def _class(spec: MethodSpec) -> type[Algorithm]:
    if spec.source is None:
        module_name, _, cls_name = METHODS[spec.name].partition(":")
        return getattr(importlib.import_module(module_name), cls_name)
    file, _, cls_name = spec.name.rpartition(":")
    module = types.ModuleType(f"shoal_user_{Path(file).stem}")
    module.__file__ = file
    # Dataclasses look their module up by name.
    sys.modules[module.__name__] = module
    try:
        exec(compile(spec.source, file, "exec"), module.__dict__)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ShoalError(f"{file}: fails while it is read: {type(error).__name__}: {reason}") from error
    cls = getattr(module, cls_name, None)
    is_method = isinstance(cls, type) and issubclass(cls, Algorithm) and dataclasses.is_dataclass(cls)
    if cls is None or not is_method or not cls.__dataclass_params__.frozen:
        raise ShoalError(f"{file}: has no frozen dataclass {cls_name} derived from algorithms.base.Algorithm")
    return cls
