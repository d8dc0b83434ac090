"""Callbacks by name, or from a user's own file."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from shoal.engine.callbacks.callback import Callback
from shoal.engine.config.config import Config
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.option_fields import field_values, require_all
from shoal.storage.user_code.tracebacks import in_words
from shoal.storage.user_code.user_code import UserCode, read_user_code

CALLBACKS = {
    "csv": "shoal.engine.callbacks.csv_file:CsvFile",
    "early_stopping": "shoal.engine.callbacks.early_stopping:EarlyStopping",
    "mlflow": "shoal.engine.callbacks.mlflow_run:MLflowRun",
    "tensorboard": "shoal.engine.callbacks.tensorboard:TensorBoard",
    "wandb": "shoal.engine.callbacks.wandb_run:WandbRun",
}
# Packages that a callback needs and Shoal does not; the extras that bring them have the same names.
EXTRAS = ("mlflow", "wandb")


def load_callbacks(config: Config) -> dict[str, Callback]:
    """The callbacks of a config by the names that messages use, in its order; TensorBoard first, unless it is named.

    Raises:
        ShoalError: Unknown name, wrong option, a package is missing, or a user's file fails; names the key.
    """
    named = [(each.name, each.options) for each in config.callbacks]
    if config.run.tensorboard and all(name != "tensorboard" for name, _ in named):
        named.insert(0, ("tensorboard", {}))
    found: dict[str, Callback] = {}
    for name, options in named:
        if name in found:
            raise ShoalError("callbacks", f"{name} is there twice; name each callback once")
        found[name] = _load(name, options)
    return found


def _load(name: str, options: Mapping[str, Any]) -> Callback:
    cls, code = _class(name)
    section = f"callbacks: {name}."
    values = field_values(cls, options, section, "it", f"callbacks: {code.place if code else name}")
    require_all(cls, values, section)
    if code is not None:
        with code.at_work("callbacks"):
            return cls(**values)
    try:
        return cls(**values)
    except Exception as error:
        raise ShoalError("callbacks", name, in_words(error)) from error


def _class(name: str) -> tuple[type[Callback], UserCode | None]:
    """The class, and the text of a user's own."""
    if name in CALLBACKS:
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            raise ShoalError("callbacks", name, f"needs the package {name}; pip install 'shoal[{name}]'")
        module, _, cls_name = CALLBACKS[name].partition(":")
        return getattr(importlib.import_module(module), cls_name), None
    if not is_own(name):
        raise ShoalError(
            "callbacks",
            f"{name!r} is unknown; there are {', '.join(CALLBACKS)}, or my_file.py:MyCallback"
            f"{did_you_mean(name, CALLBACKS)}",
        )
    code = read_user_code("callbacks", name)
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, Callback) or not is_dataclass(cls):
        raise ShoalError(code.place, f"{name.rpartition(':')[2]} is no callback; derive a class from shoal.Callback")
    return cls, code
