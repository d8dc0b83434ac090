"""Callbacks by name or from a user's file, and their calls: a logger that fails is dropped, another ends the run."""

import importlib
import importlib.util
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from shoal.engine.callbacks.callback import Callback, Line, Predictions, Running
from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import LOGGERS
from shoal.storage.errors import ReaderGone, ShoalError
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
# These callbacks need packages that Shoal does not; the extras that install them have the same names.
EXTRAS = ("mlflow", "wandb")

log = logging.getLogger(__name__)


def load_callbacks(config: Config) -> dict[str, Callback]:
    """Loads the callbacks of a config by the names that messages use, in order; TensorBoard first, unless it is named.

    Raises ShoalError, which names the key: a name is unknown, an option wrong, a package missing, or a file fails.
    """
    named = [(callback.name, callback.options) for callback in config.callbacks]
    if config.run.tensorboard and all(name != "tensorboard" for name, _ in named):
        named.insert(0, ("tensorboard", {}))
    callbacks: dict[str, Callback] = {}
    for name, options in named:
        if name in callbacks:
            raise ShoalError("callbacks", f"{name} is there twice; name each callback once")
        callbacks[name] = _load(name, options)
    return callbacks


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
    """Returns the class of a callback, and the code if it is a user's."""
    if name in CALLBACKS:
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            raise ShoalError("callbacks", name, f"needs the package {name}; pip install 'shoal[{name}]'")
        module, _, cls_name = CALLBACKS[name].partition(":")
        return getattr(importlib.import_module(module), cls_name), None
    if not is_own(name):
        raise ShoalError(
            "callbacks",
            f"{did_you_mean(name, CALLBACKS)}{name!r} is unknown; there are {', '.join(CALLBACKS)}, or "
            "my_file.py:MyCallback",
        )
    code = read_user_code("callbacks", name)
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, Callback) or not is_dataclass(cls):
        raise ShoalError(code.place, f"{name.rpartition(':')[2]} is no callback; derive a class from shoal.Callback")
    return cls, code


def asks_for_predictions(callbacks: Mapping[str, Callback]) -> bool:
    """Returns whether a callback replaces `after_predictions`."""
    return any(type(callback).after_predictions is not Callback.after_predictions for callback in callbacks.values())


class Calls:
    """The callbacks of one run, by the names that messages use; `running` is the run as they see it."""

    def __init__(self, callbacks: Mapping[str, Callback], running: Running, say: Callable[[str], None]) -> None:
        """Calls nothing yet; `say` reports a failed callback to the user."""
        self._callbacks, self.running, self._say = dict(callbacks), running, say

    @property
    def may_stop(self) -> bool:
        """Returns whether a callback may end the run."""
        return any(name not in LOGGERS for name in self._callbacks)

    def start(self) -> None:
        """Calls hooks before the first round, and when rounds were lost; a callback that may end the run raises."""
        self.running.stopped = None
        self._each("start", lambda callback: callback.start(self.running))

    def after(self, line: Line) -> None:
        """Calls hooks after a round; a callback that may end the run raises."""
        self._each("after_round", lambda callback: callback.after_round(self.running, line))
        if "scopes" in line:
            self._each("after_evaluation", lambda callback: callback.after_evaluation(self.running, line))

    def after_predictions(self, line: Line, predicted: Sequence[tuple[str, int, str, Any]]) -> None:
        """Calls hooks with the predictions of a round, as the server gives them; raises as `after`."""
        predictions = [Predictions(scope, client, part, *both) for scope, client, part, both in predicted]
        self._each("after_predictions", lambda callback: callback.after_predictions(self.running, line, predictions))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Calls hooks once, at the end of a run; if it is finished, a failed callback that is no logger raises."""
        last, self._callbacks = self._callbacks, {}
        failures = []
        for name, callback in last.items():
            try:
                callback.end(self.running, summary)
            except ReaderGone:
                raise
            except (Exception, SystemExit) as error:
                self._note(name, "end", error)
                if name not in LOGGERS:
                    failures.append(_failure(name, "end", error))
        if failures and summary is not None:
            raise failures[0]

    def _each(self, hook: str, call: Callable[[Callback], None]) -> None:
        for name, callback in list(self._callbacks.items()):
            try:
                call(callback)
            except ReaderGone:
                raise
            except (Exception, SystemExit) as error:
                if name not in LOGGERS:
                    raise _failure(name, hook, error) from error
                del self._callbacks[name]
                self._note(name, hook, error)

    def _note(self, name: str, hook: str, error: BaseException) -> None:
        line = str(_failure(name, hook, error))
        if name in LOGGERS:
            line += "; the run continues without it"
        self._say(line)
        log.warning("%s\n%s", line, "".join(traceback.format_exception(error)))


def _failure(name: str, hook: str, error: BaseException) -> ShoalError:
    """Makes an error with the name of the callback and the innermost line of its file; the traceback is its detail."""
    if isinstance(error, ShoalError):
        return error
    file = name.rpartition(":")[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if file and frame.filename == file]
    where = f"{name}: {file}, line {lines[-1]}" if lines else name
    return ShoalError(
        "callbacks", f"{where}, in {hook}(): {in_words(error)}", detail="".join(traceback.format_exception(error))
    )
