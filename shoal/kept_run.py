"""The results of a run, as tables and tensors."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from safetensors.torch import load_file
from torch import Tensor

from shoal.engine.config.config import Config, load_config
from shoal.engine.config.sections import DOMAINS
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


def evaluations_table(lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The table of `Run.evaluations`; `lines` are those of `metrics_table`."""
    rows = [
        (line["round"], scope, part, *mean_and_value)
        for line in lines
        for scope, parts in line.get("scopes", {}).items()
        for part, numbers in parts.items()
        for mean_and_value in _means_of(numbers)
    ]
    columns = list(zip(*rows)) or [()] * 6
    names = ("round", *(text := ("scope", "part", "metric", "mean")), "value")
    types = (pa.int64(), *[pa.string()] * len(text), pa.float64())
    return pa.table({name: pa.array(values, kind) for name, values, kind in zip(names, columns, types)})


def _means_of(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Metric, mean and value of every number of a part that is one over clients."""
    for name, value in numbers.items():
        if isinstance(value, Mapping) and name != DOMAINS:
            yield from ((name, mean, number) for mean, number in value.items() if mean in MEANS and number is not None)
        elif name in MEANS:
            yield "accuracy", name, value
        elif name in OF_F1:
            yield "f1", OF_F1[name], value


# Means over clients, and what is said of the clients beside them; the names of macro-F1's.
MEANS = ("nodes", "rows", "clients", "min", "median", "max")
OF_F1 = {"f1": "rows", "f1_clients": "clients"}


Best = Literal["deployed", "global"] | None


class Run:
    """A run, finished or at work, by its folder `path`; whatever cannot be read of it raises `ShoalError`.

    Tables are Arrow's; `.to_pandas()` makes data frames of them, where pandas is installed. Accuracies are shares of 1.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Opens a run folder, or copies a run from an address; raises `ShoalError` if there is no run."""
        self.path = Path(path)
        if is_address(str(path)):
            from shoal.kept.at_address import local_copy

            self.path = local_copy(str(path))
        if not (self.path / CONFIG).exists():
            raise ShoalError(self.path, f"no run folder: has no {CONFIG}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {'finished' if self.finished else 'unfinished'})"

    def _repr_html_(self) -> str:
        from shoal.study.sweep_folder import row_of
        from shoal.tables.study_table import Layout, table_of

        made = table_of([row_of({}, self.path)], Layout())._repr_html_() if self.finished else ""
        return f"<p>{html.escape(repr(self))}</p>\n{made}"

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
        """Its results: numbers of the last and of the best validation round by scope, bytes, seconds, memory.

        Raises:
            ShoalError: It is not finished, or its record is not whole.
        """
        return read_summary(self.path)

    @property
    def metrics(self) -> pa.Table:
        """A row a round, a column a number: see `shoal.kept_run.metrics_table`. Of a run at work the rounds so far.

        Raises:
            ShoalError: The record of the run is not whole.
        """
        return metrics_table(read_metrics(self.path))

    @property
    def evaluations(self) -> pa.Table:
        """The scores over clients at every evaluation, a row for each number.

        Returns:
            `round` int64; `scope`, `part`, `metric` and `mean` text; `value` float64. The scope says whose model
            (`trained`, `deployed`, `global`, `domains`), the part which items (`val`, `test`), the metric what of them
            (`accuracy`, `f1`, and other metrics of the run), as shares of 1, and the mean how clients are summed up:
            weighted by all their items (`nodes`) or by those of the part (`rows`), plainly (`clients`), or the `min`,
            `median` and `max` of them. `f1` of `rows` is that of all clients' predictions together.
        """
        return evaluations_table(read_metrics(self.path))

    def plot(self, figure: str = "deployed.test", by: Literal["round", "bytes", "seconds"] = "round") -> Any:
        """Draws a number over the rounds.

        Args:
            figure: `<scope>.<part>`, the metric of the run, a mean over clients weighted by their items; or a column of
                `metrics`, as `loss` or `deployed.test.clients`.
            by: Over rounds, bytes sent both ways so far, or seconds of rounds so far.

        Returns:
            A `matplotlib.figure.Figure` with one line, which a notebook shows; scores are in %.

        Raises:
            ShoalError: The run has no such number; names some that it has.
        """
        # It loads matplotlib, which takes a second.
        from shoal.plots import draw_plot

        return draw_plot(read_metrics(self.path), figure, by)

    @property
    def clients(self) -> pa.Table:
        """The scores of every client at every evaluation, a row for each round, scope, part and client.

        Returns:
            `round` int32, `scope` and `part` (dictionaries of text: `deployed`, `test`), `client`, `rows` and `correct`
            int32 (items of the part, and how many were predicted rightly), `f1` float64 (macro-F1), other
            metrics of the run under their names, float64, and `accuracy` float64. Shares of 1.

        Raises:
            ShoalError: The run kept none (`run.client_scores`).
        """
        table = read_client_scores(self.path)
        right, rows = (table[name].cast(pa.float64()) for name in ("correct", "rows"))
        return table.append_column("accuracy", pc.divide(right, rows))

    def predictions(self, best: Best = None, *, probabilities: bool = False) -> pa.Table:
        """The prediction of every item, after the last round or the best one of a scope.

        Args:
            best: Scope whose best validation round is meant, which `run.keep_best` keeps; None: the last round.
            probabilities: Also those of all classes.

        Returns:
            A row a node, all parts:

                - `node` int64, its number in the whole graph; `client` int32, who holds it
                - `label` int32, the true class, -1 for none; `part` text, `train`, `val` or `test`, null for none
                - `deployed` int32, the class that the client's deployed model predicts; `global` int32, that of the
                  server's model, where there is one. With `best` that scope alone.
                - with `target: clustering` instead `deployed_cluster` and `global_cluster`, int32, numbers of clusters
                  of the client's items
                - with `probabilities`: `deployed_probability` and `global_probability`, float32 `[C]`, the
                  softmax of the method's scores by class; the largest is that of the predicted class
                - where classes have names: `label_name`, `deployed_name` and `global_name`, text (categories)
                - where nodes have ids of their own, as those of tables: `id`, int64 or text

                In graph tasks `graph` instead of `node`, in edge tasks `source` and `target` (with ids
                `source_id`, `target_id`).

        Raises:
            ShoalError: The run is not finished, its checkpoint cannot be used, or the store is another one.
        """
        from shoal.engine.records.outputs import PREDICTIONS
        from shoal.engine.runs.export import export

        # The file is made again each time, because a run may have been run afresh.
        file = export(self.path, best, probabilities) / PREDICTIONS
        # The file is read, not mapped: the next call writes it again.
        with pa.OSFile(str(file)) as source:
            return pa.ipc.open_file(source).read_all()

    def predict(self, graph: Any, client: int | None = None, best: Best = None) -> pa.Table:
        """The predictions of the nodes of another graph, which need be in no store, by a model of the run.

        Args:
            graph: A path of files, as `data.path` takes it, a `shoal.Graph`, or a `torch_geometric` `Data` with `x` and
                `edge_index`, or `adj_t`, and maybe `edge_weight`; labels and masks are not read. It has as many
                features as the run's graph, with the same meaning, and is prepared by the same config (hops,
                `data.row_normalize`, features of degrees).
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
        from shoal.engine.runs.predict import open_graph

        other = open_graph(self.path, graph, best)
        names, p_NC = other.label_names, other.scores(client).softmax(1)
        columns = {
            "node": pa.array(range(len(p_NC)), pa.int64()),
            "predicted": pa.array(p_NC.argmax(1).numpy(), pa.int32()),
            "probability": pa.FixedSizeListArray.from_arrays(pa.array(p_NC.numpy().ravel()), p_NC.shape[1]),
        }
        return pa.table(columns, metadata=None if names is None else {"label_names": json.dumps(names)})

    def models(self, best: Best = None) -> dict[str, Tensor]:
        """Parameters of the models, after the last round or the best one of a scope, as `predictions` takes it.

        Returns:
            Tensors by name, under `global/` if the server has a model, and under `client/<number>/` where clients hold
            personal models; then the names of the backbone's parameters.
        """
        from shoal.engine.records.outputs import MODELS
        from shoal.engine.runs.export import export

        tensors: dict[str, Tensor] = load_file(export(self.path, best) / MODELS)
        return tensors
