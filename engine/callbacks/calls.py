"""Calls the callbacks of a run: a logger that fails is dropped, another callback that fails ends the run."""

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from shoal.algorithms.method_errors import in_words
from shoal.engine.callbacks.callback import Callback, Line, Running
from shoal.engine.config.run_identity import LOGGERS
from shoal.storage.errors import ShoalError

log = logging.getLogger(__name__)


class Calls:
    """The callbacks of one run, by the names that messages use; `running` is the run as they see it."""

    def __init__(self, callbacks: Mapping[str, Callback], running: Running, say: Callable[[str], None]) -> None:
        """Calls nothing yet; `say` reports a failed callback to the user."""
        self._callbacks, self.running, self._say = dict(callbacks), running, say

    def start(self) -> None:
        """Before the first round, and again where rounds were lost; a callback that may end the run raises."""
        self.running.stopped = None
        self._each("start", lambda callback: callback.start(self.running))

    def after(self, line: Line) -> None:
        """After a round; a callback that may end the run raises."""
        self._each("after_round", lambda callback: callback.after_round(self.running, line))
        if "scopes" in line:
            self._each("after_evaluation", lambda callback: callback.after_evaluation(self.running, line))

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """At the end of a run, once; of a finished one a failed callback raises, if it does more than write."""
        last, self._callbacks = self._callbacks, {}
        failures = []
        for name, callback in last.items():
            try:
                callback.end(self.running, summary)
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
    """One line with the name of the callback and the innermost line of its file; the traceback as its detail."""
    if isinstance(error, ShoalError):
        return error
    file = name.rpartition(":")[0]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if file and frame.filename == file]
    where = f"{name}: {file}, line {lines[-1]}" if lines else name
    return ShoalError(
        "callbacks",
        f"{where}, in {hook}(): {in_words(error)}",
        detail="".join(traceback.format_exception(error)),
    )
