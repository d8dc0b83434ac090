"""Commands on clients that predict edges: a run from a file to its export, and what is refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file
from support.errors import refused
from support.small_pairs import edges_of

from shoal.engine.config.config import Config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console
from shoal.storage.options.split_codes import TEST

Configure = Callable[..., Config]


@pytest.fixture
def configured(configure: Configure, edge_task: dict[str, Any], tmp_path: Path) -> Configure:
    def configured(**keys: Any) -> Config:
        plain = {name.replace("__", "."): value for name, value in keys.items()}
        return configure({**edge_task, "run.root": str(tmp_path), "run.tensorboard": False, "rounds": 2, **plain})

    return configured


@pytest.mark.parametrize("model", ["gcn", "gamlp"])
@pytest.mark.parametrize("method", ["fedavg", "global"])
def test_an_export_has_a_row_for_every_pair(
    configured: Configure, edge_task: dict[str, Any], model: str, method: str
) -> None:
    folder = run(configured(model__name=model, algorithm__name=method))
    assert read_summary(folder)["paths"] == ["autograd"]
    out = export(folder)
    with pa.OSFile(str(out / "predictions.arrow")) as file:
        table = pa.ipc.open_file(file).get_batch(0)
    rows = {name: table.column(name).to_numpy() for name in table.schema.names}
    scopes = {"served"} if method == "global" else {"served", "global"}
    assert set(rows) == {"source", "target", "client", "label", "part", *scopes}
    assert set(rows["part"].tolist()) == {1, 2, 3}
    assignment = np.load(Path(edge_task["data.path"]) / "assignment.npy")
    np.testing.assert_array_equal(assignment[rows["source"]], assignment[rows["target"]])
    if method != "global":
        np.testing.assert_array_equal(assignment[rows["source"]], rows["client"])
    edges = edges_of(Path(edge_task["data.path"]))
    pairs = [(min(pair), max(pair)) for pair in zip(rows["source"].tolist(), rows["target"].tolist())]
    assert len(set(pairs)) == len(pairs)
    assert rows["label"].tolist() == [int(pair in edges) for pair in pairs]
    tested = rows["part"] == TEST
    right = (rows["served"] == rows["label"])[tested]
    assert read_metrics(folder)[-1]["scopes"]["served"]["test"]["rows"] == pytest.approx(right.mean())
    if method != "global":
        models = load_file(out / "models.safetensors")
        bias = models["global/backbone.head.linears.0.bias"]
        assert list(bias.shape) == [2 if model == "gcn" else 8]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("model", ["gcn", "sgc"])
def test_a_dry_run_measures_batches_of_pairs(configured: Configure, tmp_path: Path, prepared: bool, model: str) -> None:
    place = {} if prepared else {"data__store": str(tmp_path / "none")}
    config = configured(train__batch_size=2, model__name=model, **place)
    if prepared:
        run(config)
    with console.capture() as captured:
        show_plan(config)
    # Two layers of GCN, of 5 and 8 columns, and a classifier of 2 classes; of SGC the classifier of 5 columns.
    parameters = 5 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2 if model == "gcn" else 5 * 2 + 2
    said = " ".join(captured.get().replace("│", " ").split())
    assert f"{model}, {parameters} parameters" in said
    assert ("pairs, 45 nodes" if prepared else "pairs at most, 45 nodes") in said


@pytest.mark.parametrize(
    ("keys", "key", "says"),
    [
        ({"algorithm__name": "fedgta"}, "task", "take a method for edge tasks (local, global, fedavg, "),
        ({"model__fanouts": [2, 2]}, "model.fanouts", "an edge task reads the whole graph, not drawn neighbours"),
        ({"model__readout": "sum"}, "model.readout", "an edge task pools nothing"),
        ({"engine__trainer": "batched"}, "engine.trainer", "batched needs a node task"),
        ({"engine__trainer": "analytic"}, "engine.trainer", "analytic needs a node task"),
    ],
)
def test_refused(configured: Configure, keys: dict[str, Any], key: str, says: str) -> None:
    with refused(key, says=says):
        run(configured(**keys))
