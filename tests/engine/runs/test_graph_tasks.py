"""Commands on clients of small graphs: a run from a file to its export, and what is refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file
from support.errors import refused
from support.small_graphs import CLASSES, OF_CLIENT, WITHOUT_TEST

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
def configured(configure: Configure, graph_task: dict[str, Any], tmp_path: Path) -> Configure:
    def configured(**keys: Any) -> Config:
        plain = {name.replace("__", "."): value for name, value in keys.items()}
        return configure({**graph_task, "run.root": str(tmp_path), "run.tensorboard": False, "rounds": 2, **plain})

    return configured


@pytest.mark.parametrize("model", ["gcn", "gamlp"])
def test_an_export_has_a_row_for_every_graph(configured: Configure, graph_task: dict[str, Any], model: str) -> None:
    folder = run(configured(model__name=model, model__readout="attention"))
    assert read_summary(folder)["paths"] == ["autograd"]
    out = export(folder)
    with pa.OSFile(str(out / "predictions.arrow")) as file:
        table = pa.ipc.open_file(file).get_batch(0)
    rows = {name: table.column(name).to_numpy() for name in table.schema.names}
    assert set(rows) == {"graph", "client", "label", "part", "served", "global"}
    arrays = {name: np.load(Path(graph_task["data.path"]) / f"{name}.npy") for name in ("y", "split", "assignment")}
    assert sorted(rows["graph"]) == list(range(sum(OF_CLIENT)))
    for name, column in {"y": "label", "split": "part", "assignment": "client"}.items():
        np.testing.assert_array_equal(rows[column], arrays[name][rows["graph"]])
    tested = [rows["part"] == TEST] & (rows["client"] == np.arange(6)[:, None])
    right = (rows["label"] == rows["global"]) & tested
    scored = [i for i in range(6) if tested[i].any()]
    assert WITHOUT_TEST not in scored
    share = sum(OF_CLIENT[i] * right[i].sum() / tested[i].sum() for i in scored) / sum(OF_CLIENT[i] for i in scored)
    assert read_metrics(folder)[-1]["scopes"]["global"]["test"]["nodes"] == pytest.approx(share)
    models = load_file(out / "models.safetensors")
    assert list(models["global/gate.weight"].shape) == [1, 8]
    assert list(models["global/backbone.head.linears.0.bias"].shape) == [CLASSES if model == "gcn" else 8]


@pytest.mark.parametrize("prepared", [False, True])
def test_a_dry_run_measures_batches_of_graphs(configured: Configure, tmp_path: Path, prepared: bool) -> None:
    config = configured(train__batch_size=2, **({} if prepared else {"data__store": str(tmp_path / "none")}))
    if prepared:
        run(config)
    with console.capture() as captured:
        show_plan(config)
    # Two layers of GCN, of 5 and 8 columns, and a classifier of 4 classes.
    parameters = 5 * 8 + 8 + 8 * 8 + 8 + 8 * 4 + 4
    assert f"gcn, {parameters} parameters" in captured.get()


@pytest.mark.parametrize(
    ("keys", "key", "says"),
    [
        ({"algorithm__name": "fedgta"}, "task", "take a method for graph tasks (local, global, fedavg, "),
        ({"model__fanouts": [2, 2]}, "model.fanouts", "a graph task reads whole graphs, not drawn neighbours"),
        ({"engine__trainer": "batched"}, "engine.trainer", "batched needs a node task"),
        ({"engine__trainer": "analytic"}, "engine.trainer", "analytic needs a node task"),
        (
            {"algorithm__name": "fml", "algorithm__copilot": {"name": "gcn", "readout": "best"}},
            "FML",
            "model 'copilot': model.readout: must be one of mean, sum, max, attention, found 'best'",
        ),
    ],
)
def test_refused(configured: Configure, keys: dict[str, Any], key: str, says: str) -> None:
    with refused(key, says=says):
        run(configured(**keys))


def test_a_prompt_is_exported_with_its_model(configured: Configure) -> None:
    keys = {"model": {"name": "transformer", "hidden": 8, "prompt": {"name": "vpg", "candidates": 3}}}
    models = load_file(export(run(configured(**keys))) / "models.safetensors")
    assert list(models["global/prompt.direction"].shape) == [5]
    assert list(models["global/prompt.candidates"].shape) == [3, 5]
    assert list(models["global/backbone.backbone.convs.0.lin_query.weight"].shape) == [8, 5]
    assert list(models["global/backbone.backbone.head.linears.0.bias"].shape) == [CLASSES]
