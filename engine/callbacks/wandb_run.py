"""Rounds as a run of Weights & Biases."""

from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.engine.callbacks.callback import Callback, Line, Running
from shoal.engine.records.metrics import numbers_of


@dataclass
class WandbRun(Callback):
    """Logs keys and numbers to Weights & Biases, under the name of the run.

    Attributes:
        project: Its project.
        mode: `offline` writes `<run>/wandb`, which `wandb sync` sends; `online` sends immediately.
    """

    project: str = "shoal"
    mode: Literal["offline", "online"] = "offline"
    _run: Any = field(default=None, init=False, repr=False)

    def start(self, run: Running) -> None:
        """Begins a run of Weights & Biases."""
        if self._run is None:
            import wandb

            name = run.path.name
            self._run = wandb.init(
                project=self.project,
                name=name,
                id=name,
                resume="allow",
                mode=self.mode,
                dir=str(run.path),
                config=dict(run.keys),
                settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
            )

    def after_round(self, run: Running, line: Line) -> None:
        """Logs the numbers of a round."""
        self._run.log(numbers_of(line), step=line["round"])

    def end(self, run: Running, summary: Line | None) -> None:
        """Ends the run of Weights & Biases."""
        if self._run is not None:
            self._run.finish(exit_code=int(summary is None))
