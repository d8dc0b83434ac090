"""Callbacks by name, or from a user's own file."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from algorithms.faults import in_words
from algorithms.methods.beside import Beside
from algorithms.methods.checks import class_place, read_class
from algorithms.methods.loading import describe
from engine.callbacks.callback import Callback
from engine.settings.config import Config
from storage.alike import did_you_mean
from storage.digest import text_digest
from storage.errors import ShoalError
from storage.option_types import checked, quoted

CALLBACKS = {
    "csv": "engine.callbacks.csv_file:CsvFile",
    "early_stopping": "engine.callbacks.early_stopping:EarlyStopping",
    "mlflow": "engine.callbacks.mlflow_run:MLflowRun",
    "tensorboard": "engine.callbacks.tensorboard:TensorBoard",
    "wandb": "engine.callbacks.wandb_run:WandbRun",
}
# Packages that a callback needs and Shoal does not; the extras that bring them have the same names.
EXTRAS = ("mlflow", "wandb")


def load_callbacks(config: Config) -> dict[str, Callback]:
    """The callbacks of a config by what a message calls them, in its order; TensorBoard first, if nothing else is said.

    Raises:
        ShoalError: Unknown name, wrong option, a package is missing, or a user's file fails; names the key.
    """
    named = [(each.name, each.options) for each in config.callbacks]
    if config.run.tensorboard and all(name != "tensorboard" for name, _ in named):
        named.insert(0, ("tensorboard", {}))
    found: dict[str, Callback] = {}
    for name, options in named:
        if name in found:
            raise ShoalError(f"callbacks: {name} is there twice; name each callback once")
        found[name] = _load(name, options)
    return found


def _load(name: str, options: Mapping[str, Any]) -> Callback:
    cls, where = _class(name)
    own = {field.name: field for field in fields(cls) if field.init}
    hints = get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in options.items():
        if key not in own:
            known = ", ".join(own) or "no option"
            raise ShoalError(f"callbacks: {name}.{key}: unknown; it has {known}{did_you_mean(key, own)}")
        try:
            values[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"callbacks: {name}.{key}: {error}, found {quoted(value)}") from None
    for key, field in own.items():
        if key not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ShoalError(f"callbacks: {name}.{key}: missing")
    try:
        return cls(**values)
    except Exception as error:
        raise ShoalError(f"callbacks: {where or name}: {in_words(error)}") from error


def _class(name: str) -> tuple[type[Callback], str]:
    """The class, and file and line of a user's own.

    Raises:
        ShoalError: There is none, or it is no callback.
    """
    if name in CALLBACKS:
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            raise ShoalError(f"callbacks: {name}: needs the package {name}; pip install 'shoal[{name}]'")
        module, _, cls_name = CALLBACKS[name].partition(":")
        return getattr(importlib.import_module(module), cls_name), ""
    file, colon, cls_name = name.rpartition(":")
    if not colon or not file.endswith(".py") or not cls_name:
        raise ShoalError(
            f"callbacks: {name!r} is unknown; there are {', '.join(CALLBACKS)}, or my_file.py:MyCallback"
            f"{did_you_mean(name, CALLBACKS)}"
        )
    return _own(name, file, cls_name)


def _own(name: str, file: str, cls_name: str) -> tuple[type[Callback], str]:
    """A class of a user's file; the one place that knows how such files are read."""
    try:
        spec = describe(name, {})
    except ShoalError as error:
        raise ShoalError(str(error).replace("algorithm.name", "callbacks")) from None
    assert spec.source is not None
    beside = Beside(f"shoal_callback_{text_digest(file + spec.digest)}", Path(file).parent, spec.helpers)
    cls: Any = read_class(beside, file, spec.source, cls_name)
    where = class_place(cls, file, spec.source)
    if not isinstance(cls, type) or not issubclass(cls, Callback) or not is_dataclass(cls):
        raise ShoalError(f"{where}: {cls_name} is no callback; derive a class from shoal.Callback")
    return cls, where
