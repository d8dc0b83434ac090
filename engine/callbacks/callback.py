"""The base of callbacks: code that a run calls after its rounds, in the process of the command."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.storage.errors import one_line

if TYPE_CHECKING:
    # A list of runs must not load NumPy.
    import numpy as np

Line = Mapping[str, Any]


@dataclass
class Running:
    """A run at work, as a callback sees it.

    Attributes:
        path: Its folder.
        config: Its resolved config as plain values.
        keys: The dotted keys of the config that change numbers.
        rounds: The number of rounds that it has at most.
        stopped: The reason to end before its last round; None: it does not.
    """

    path: Path
    config: Mapping[str, Any]
    keys: Mapping[str, Any]
    rounds: int
    stopped: str | None = None
    _lines: Callable[[], Sequence[Line]] = field(default=tuple, repr=False)

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of metrics.jsonl so far, one a round; read anew at each call."""
        return self._lines()

    def stop(self, why: str) -> None:
        """Ends the run after this round, or after the next one that ends with an evaluation; it then is finished.

        Args:
            why: A text for the summary; TypeError: it is none, or empty.
        """
        if not isinstance(why, str) or not why.strip():
            got = "an empty one" if isinstance(why, str) else type(why).__name__
            raise TypeError(f"stop() expects a text that says why, got {got}")
        self.stopped = self.stopped or one_line(why)


@dataclass(frozen=True)
class Predictions:
    """The predictions of a client's model for its items of a part.

    Attributes:
        scope: The scope of the model: `trained`, `deployed` or `global`.
        client: The number of the client.
        part: `val` or `test`.
        predicted: Classes, int16, or int32 where there are more, `[items]`.
        label: True classes, of the same type, `[items]`.
    """

    scope: str
    client: int
    part: str
    predicted: "np.ndarray"
    label: "np.ndarray"


@dataclass
class Callback:
    """Base of a callback; a subclass is a dataclass of its options, and replaces what it needs.

    It watches, and may end the run by `run.stop`. State of earlier rounds is rebuilt in `start` from
    `run.lines`, so that a run that is resumed ends where it would have ended.
    """

    def start(self, run: Running) -> None:
        """Runs before the first round, or the first after a resume; and again when lost rounds are repeated."""

    def after_round(self, run: Running, line: Line) -> None:
        """Runs after each round; `line` is its line of metrics.jsonl."""

    def after_evaluation(self, run: Running, line: Line) -> None:
        """Runs after each round that ends with an evaluation, after `after_round`."""

    def after_predictions(self, run: Running, line: Line, predictions: Sequence[Predictions]) -> None:
        """Runs last after each round in which clients were evaluated; hosts send predictions only if this is replaced.

        A model that equals, to the bit, one of an earlier evaluation is not evaluated again, and not in `predictions`:
        a client's `deployed` model if it is also its `trained` or `global` one. `trained` models are evaluated after
        their training.
        """

    def end(self, run: Running, summary: Line | None) -> None:
        """Runs at the end, in whatever way: `summary` is that of a finished run, and None if it did not finish."""
