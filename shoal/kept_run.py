"""The results of a run, as tables and tensors."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from safetensors.torch import load_file
from torch import Tensor

from shoal.engine.config.config import Config, load_config
from shoal.engine.records.client_scores import read_client_scores
from shoal.engine.records.metrics import numbers_of, read_metrics
from shoal.engine.records.run_folder import CONFIG, finished, read_summary
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address


def metrics_table(lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A row a round; columns by dotted name, null where a round has no such number.

    - `round` int64, `cohort` list<int64>: the clients that took part
    - `loss` float64: mean of the cohort's training losses
    - `<scope>.<part>.<weighting>` float64, as `deployed.test.nodes`: accuracies, shares of 1, of evaluated rounds
    - `scalars_up`, `scalars_down` float64: as papers count, four bytes each; `hosts.alive`, `hosts.of` int64
    - `bytes_up`, `bytes_down` int64: sent by clients, to clients; `seconds.<part>` float64; `memory.<process>` int64,
      bytes; `retries` int64; `notes.<name>` float64: what the method notes

    Args:
        lines: As `shoal.engine.records.metrics.read_metrics` gives them.
    """
    rows = [numbers_of(line) for line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    cohorts = pa.array([line["cohort"] for line in lines], pa.list_(pa.int64()))
    return table.append_column("cohort", cohorts)


Best = Literal["deployed", "global"] | None


class Run:
    """A run, finished or at work, by its folder `path`; whatever cannot be read of it raises `ShoalError`.

    Tables are Arrow's; `.to_pandas()` makes data frames of them, where pandas is installed. Accuracies are shares of 1.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Of a run folder, or of a run at an address, which is copied; raises `ShoalError` if it is none."""
        self.path = Path(path)
        if is_address(str(path)):
            from shoal.engine.studies.at_address import local_copy

            self.path = local_copy(str(path))
        if not (self.path / CONFIG).exists():
            raise ShoalError(self.path, f"no run folder: has no {CONFIG}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {'finished' if self.finished else 'unfinished'})"

    @property
    def finished(self) -> bool:
        """Whether it has a summary."""
        return finished(self.path)

    @property
    def config(self) -> Config:
        """Its config, with all defaults."""
        return load_config(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """Its results: numbers of the last and of the best validation round by scope, bytes, seconds, memory."""
        return read_summary(self.path)

    @property
    def metrics(self) -> pa.Table:
        """A row a round, a column a number: see `shoal.kept_run.metrics_table`."""
        return metrics_table(read_metrics(self.path))

    @property
    def clients(self) -> pa.Table:
        """The scores of every client at every evaluation, a row for each round, scope, part and client.

        Returns:
            `round` int32, `scope` and `part` (dictionaries of text: `deployed`, `test`), `client`, `rows` and `correct`
            int32 (items of the part, and how many were predicted rightly), `f1` float64 (macro-F1), the metric of the
            run under its name, float64, if it is not accuracy, and `accuracy` float64. Shares of 1.

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
            validation, 3 test), and the predicted class, int32, in every scope, `deployed` and `global`. In graph tasks
            `graph` instead of `node`, in edge tasks `source` and `target`. Where classes have names, which are those of
            the user's labels, also `label_name`, `deployed_name` and `global_name`, categories. Nodes with ids of their
            own, as those of tables, also have `id`, int64 or text, and in edge tasks `source_id` and `target_id`.

        Raises:
            ShoalError: The run is not finished, its checkpoint cannot be used, or the store is another one.
        """
        from shoal.engine.runs.export import PREDICTIONS, export

        # Made again each time, for a run may have been run afresh.
        file = export(self.path, best) / PREDICTIONS
        # Not mapped: the next call writes the file again.
        with pa.OSFile(str(file)) as source:
            return pa.ipc.open_file(source).read_all()

    def predict(self, graph: Any, client: int | None = None, best: Best = None) -> pa.Table:
        """The predictions of the nodes of another graph, which need be in no store, by a model of the run.

        Args:
            graph: A `shoal.Graph`, or a `torch_geometric` `Data` with `x` and `edge_index`, or `adj_t`, and maybe
                `edge_weight`; labels and masks are not read. It has as many features as the run's graph, with the same
                meaning, and is prepared by the same config (hops, `data.row_normalize`, features of degrees).
            client: Number of the client whose model predicts, as it would be deployed now; None: the server's model
                (scope `global`). Methods that have none, as `local` or `fedproto`, need a client.
            best: As `predictions` takes it.

        Returns:
            A row a node, in their order: `node` int64 (0 to N - 1), `predicted` int32 (the class) and `probability`
            float32 `[C]`, the softmax of the method's scores. Names of classes, if there are any, are in the schema's
            metadata, `label_names`, as a JSON list.

        Raises:
            ShoalError: As `predictions`, or another number of features, a client that is missing or is none, a graph
                that cannot be read, or a task other than `node`.
        """
        from shoal.engine.runs.predict import predict

        scores_NC, names = predict(self.path, graph, client, best)
        p_NC = scores_NC.softmax(1)
        columns = {
            "node": pa.array(range(len(p_NC)), pa.int64()),
            "predicted": pa.array(scores_NC.argmax(1).numpy(), pa.int32()),
            "probability": pa.FixedSizeListArray.from_arrays(pa.array(p_NC.numpy().ravel()), p_NC.shape[1]),
        }
        return pa.table(columns, metadata=None if names is None else {"label_names": json.dumps(names)})

    def models(self, best: Best = None) -> dict[str, Tensor]:
        """Parameters of the models, after the last round or the best one of a scope, as `predictions` takes it.

        Returns:
            Tensors by name, under `global/` if the server has a model, and under `client/<number>/` where clients hold
            personal models; then the names of the backbone's parameters.
        """
        from shoal.engine.runs.export import MODELS, export

        found: dict[str, Tensor] = load_file(export(self.path, best) / MODELS)
        return found
