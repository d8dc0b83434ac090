"""A run that ends when a number no longer becomes better."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from shoal.engine.callbacks.callback import Callback, Line, Running
from shoal.engine.config.sections import current_name
from shoal.engine.records.metrics import numbers_of
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Number, Positive
from shoal.storage.suggestions import did_you_mean


@dataclass
class EarlyStopping(Callback):
    """Ends the run once a number did not improve `patience` times in a row.

    Its state follows from the metrics of the run alone, so that a resumed run ends in the same round.

    Attributes:
        figure: Any number of a line of metrics by its dotted name, as `deployed.val.nodes` or `loss`; rounds that do
            not have it do not count.
        patience: How often it may not improve before the run ends.
        mode: `max` if larger values are better, `min` if smaller ones are.
        min_delta: By how much more than this it must change to be an improvement.
    """

    figure: str = "deployed.val.nodes"
    patience: Positive = 10
    mode: Literal["max", "min"] = "max"
    min_delta: Annotated[Number, Field(ge=0)] = 0.0
    _best: float | None = field(default=None, init=False, repr=False)
    _waited: int = field(default=0, init=False, repr=False)

    def start(self, run: Running) -> None:
        """Counts the rounds that there are."""
        self._best, self._waited = None, 0
        for line in run.lines:
            self._count(run, line)

    def after_round(self, run: Running, line: Line) -> None:
        """Counts a round."""
        self._count(run, line)

    def after_evaluation(self, run: Running, line: Line) -> None:
        """Raises a ShoalError if no round up to the first evaluation has the number."""
        if self._best is None:
            numbers = numbers_of(line)
            if current_name(self.figure) not in numbers:
                raise ShoalError(
                    "callbacks",
                    "early_stopping.figure",
                    f"{did_you_mean(self.figure, numbers)}no round has the number {self.figure!r}; there are "
                    f"{', '.join(numbers)}",
                )

    def _count(self, run: Running, line: Line) -> None:
        value = numbers_of(line).get(current_name(self.figure))
        if value is None:
            return
        sign = 1 if self.mode == "max" else -1
        if self._best is None or sign * (value - self._best) > self.min_delta:
            self._best, self._waited = value, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            times = f"{self._waited} times in a row" if self._waited > 1 else "once"
            run.stop(f"{self.figure} was not better than {self._best:.4g} {times}")
