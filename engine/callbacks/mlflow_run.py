"""Rounds as a run of MLflow."""

import os
from dataclasses import dataclass, field
from typing import Any

from shoal.engine.callbacks.callback import Callback, Line, Running
from shoal.engine.records.metrics import numbers_of

# MLflow limits parameters in a request, and characters of a value.
MOST_PARAMETERS, LONGEST_VALUE = 100, 500
TAG = "shoal.run"


@dataclass
class MLflowRun(Callback):
    """Logs keys and numbers to MLflow; a resumed run continues the same run there.

    Attributes:
        uri: Where to, as MLflow names it; None: $MLFLOW_TRACKING_URI, else `mlflow.db` in the root of the runs.
        experiment: Its experiment.
    """

    uri: str | None = None
    experiment: str = "shoal"
    _client: Any = field(default=None, init=False, repr=False)
    _id: str = field(default="", init=False, repr=False)

    def start(self, run: Running) -> None:
        """Begins a run of MLflow, or finds the one of before."""
        if self._client is not None:
            return
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        root = run.path.absolute().parent
        uri = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name(self.experiment)
        place = experiment.experiment_id if experiment else client.create_experiment(self.experiment)
        # A run that is started over has the name of the run before, but no lines, and must not continue that one.
        earlier = client.search_runs([place], f"tags.`{TAG}` = '{run.path.name}'") if run.lines else []
        if earlier:
            self._id = earlier[0].info.run_id
            client.set_terminated(self._id, "RUNNING")
        else:
            self._id = client.create_run(place, run_name=run.path.name, tags={TAG: run.path.name}).info.run_id
            keys = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in run.keys.items()]
            for first in range(0, len(keys), MOST_PARAMETERS):
                client.log_batch(self._id, params=keys[first : first + MOST_PARAMETERS])
        self._client = client

    def after_round(self, run: Running, line: Line) -> None:
        """Logs the numbers of a round."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = {name: value for name, value in numbers_of(line).items() if name != "round"}
        self._client.log_batch(self._id, [Metric(_name(n), v, now, line["round"]) for n, v in numbers.items()])

    def end(self, run: Running, summary: Line | None) -> None:
        """Records the end of the run."""
        if self._client is not None:
            self._client.set_terminated(self._id, "KILLED" if summary is None else "FINISHED")


def _name(number: str) -> str:
    """Returns the name of a number in MLflow, with letters, digits and `_-. :/` alone."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in number)
