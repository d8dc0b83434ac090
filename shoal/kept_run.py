"""What is kept of a run, as tables and tensors."""

from os import PathLike
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from safetensors.torch import load_file
from torch import Tensor

from engine.commands import export as export_command
from engine.records.client_scores import read_client_scores
from engine.records.metrics import read_metrics
from engine.records.run_folder import CONFIG, finished, read_summary
from engine.settings.config import Config, load_config
from shoal.tables import metrics_table
from storage.errors import ShoalError

Best = Literal["served", "global"] | None


class Run:
    """A run, finished or at work, by its folder.

    Tables are Arrow's; `.to_pandas()` makes data frames of them, where pandas is installed. Accuracies are shares of 1.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Of a run folder.

        Raises:
            ShoalError: It is none.
        """
        self.path = Path(path)
        if not (self.path / CONFIG).exists():
            raise ShoalError(f"{self.path}: no run folder: has no {CONFIG}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {'finished' if self.finished else 'unfinished'})"

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return finished(self.path)

    @property
    def config(self) -> Config:
        """Its config, with all defaults.

        Raises:
            ShoalError: The file is damaged.
        """
        return load_config(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """What it came to: numbers of the last and of the best validation round by scope, bytes, seconds, memory.

        Raises:
            ShoalError: It is not finished, or the file is damaged.
        """
        return read_summary(self.path)

    @property
    def metrics(self) -> pa.Table:
        """A row a round, a column a number: see `shoal.tables.metrics_table`.

        Raises:
            ShoalError: The file is damaged.
        """
        return metrics_table(read_metrics(self.path))

    @property
    def clients(self) -> pa.Table:
        """The scores of every client at every evaluation, a row for each round, scope, part and client.

        Returns:
            `round` int32, `scope` and `part` (text: `served`, `test`), `client`, `rows` and `correct` int32 (items of
            the part, and how many were predicted rightly), `f1` float64 (macro-F1), the metric of the run under its
            name, float64, if it is not accuracy, and `accuracy` float64. Shares of 1.

        Raises:
            ShoalError: The run kept none (`run.client_scores`).
        """
        table = read_client_scores(self.path)
        right, rows = (table[name].cast(pa.float64()) for name in ("correct", "rows"))
        return table.append_column("accuracy", pc.divide(right, rows))

    def predictions(self, best: Best = None) -> pa.Table:
        """The prediction of every item, after the last round or the best one of a scope.

        Args:
            best: Scope whose best validation round is meant, which `run.keep_best` keeps; None: the last round.

        Returns:
            A row a node: `node` int64 (global id), `client` int32, `label` int32, `part` int8 (0 none, 1 train, 2
            validation, 3 test), and the predicted class, int32, in every scope, `served` and `global`. In graph tasks
            `graph` in the place of `node`, in edge tasks `source` and `target`.

        Raises:
            ShoalError: The run is not finished, its checkpoint cannot be used, or the store is another one.
        """
        file = self._exported(best) / export_command.PREDICTIONS
        # Not mapped: the next call writes the file again.
        with pa.OSFile(str(file)) as source:
            return pa.ipc.open_file(source).read_all()

    def models(self, best: Best = None) -> dict[str, Tensor]:
        """Parameters of the models, after the last round or the best one of a scope.

        Args:
            best: As for `predictions`.

        Returns:
            Tensors by name, under `global/` if the server has a model, and under `client/<number>/` where clients hold
            models of their own; what follows are the names of the backbone's parameters.

        Raises:
            ShoalError: As for `predictions`.
        """
        found: dict[str, Tensor] = load_file(self._exported(best) / export_command.MODELS)
        return found

    def _exported(self, best: Best) -> Path:
        """The folder of the models and predictions; made again each time, for a run may have been run afresh."""
        return export_command.export(self.path, best)
