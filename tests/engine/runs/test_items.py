"""Commands on clients that predict small graphs or pairs: a run from a file to its export, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.torch import load_file
from support.errors import refused
from support.fixtures import Configure
from support.small_graphs import CLASSES, OF_CLIENT, WITHOUT_TEST
from support.small_pairs import edges_of

from shoal.engine.config.config import Config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console

Keys = dict[str, Any]


@pytest.fixture
def configured(configure: Configure, graph_task: Keys, edge_task: Keys, tmp_path: Path) -> Configure:
    tasks = {"graph": graph_task, "edge": edge_task}

    def configured(task: str, **keys: Any) -> Config:
        plain = {name.replace("__", "."): value for name, value in keys.items()}
        return configure({**tasks[task], "run.root": str(tmp_path), "run.tensorboard": False, "rounds": 2, **plain})

    return configured


def exported(folder: Path) -> tuple[dict[str, np.ndarray], Path]:
    """Columns of an export, and its models."""
    assert read_summary(folder)["paths"] == ["autograd"]
    out = export(folder)
    with pa.OSFile(str(out / "predictions.arrow")) as file:
        table = pa.ipc.open_file(file).get_batch(0)
    return {
        name: table.column(name).to_numpy(zero_copy_only=False) for name in table.schema.names
    }, out / "models.safetensors"


@pytest.mark.parametrize("model", ["gcn", "gamlp"])
def test_an_export_has_a_row_for_every_graph(configured: Configure, graph_task: Keys, model: str) -> None:
    folder = run(configured("graph", model__name=model, model__readout="attention"))
    rows, file = exported(folder)
    assert set(rows) == {"graph", "client", "label", "part", "deployed", "global"}
    arrays = {name: np.load(Path(graph_task["data.path"]) / f"{name}.npy") for name in ("y", "split", "assignment")}
    assert sorted(rows["graph"]) == list(range(sum(OF_CLIENT)))
    arrays["split"] = np.array([None, "train", "val", "test"])[arrays["split"]]
    for name, column in {"y": "label", "split": "part", "assignment": "client"}.items():
        np.testing.assert_array_equal(rows[column], arrays[name][rows["graph"]])
    tested = [rows["part"] == "test"] & (rows["client"] == np.arange(6)[:, None])
    right = (rows["label"] == rows["global"]) & tested
    scored = [i for i in range(6) if tested[i].any()]
    assert WITHOUT_TEST not in scored
    share = sum(OF_CLIENT[i] * right[i].sum() / tested[i].sum() for i in scored) / sum(OF_CLIENT[i] for i in scored)
    assert read_metrics(folder)[-1]["scopes"]["global"]["test"]["nodes"] == pytest.approx(share)
    models = load_file(file)
    assert list(models["global/gate.weight"].shape) == [1, 8]
    assert list(models["global/backbone.head.linears.0.bias"].shape) == [CLASSES if model == "gcn" else 8]


@pytest.mark.parametrize("model", ["gcn", "gamlp"])
@pytest.mark.parametrize("method", ["fedavg", "global"])
def test_an_export_has_a_row_for_every_pair(configured: Configure, edge_task: Keys, model: str, method: str) -> None:
    folder = run(configured("edge", model__name=model, algorithm__name=method))
    rows, file = exported(folder)
    scopes = {"deployed"} if method == "global" else {"deployed", "global"}
    assert set(rows) == {"source", "target", "client", "label", "part", *scopes}
    assert set(rows["part"]) == {"train", "val", "test"}
    assignment = np.load(Path(edge_task["data.path"]) / "assignment.npy")
    np.testing.assert_array_equal(assignment[rows["source"]], assignment[rows["target"]])
    edges = edges_of(Path(edge_task["data.path"]))
    pairs = [(min(pair), max(pair)) for pair in zip(rows["source"].tolist(), rows["target"].tolist())]
    assert len(set(pairs)) == len(pairs)
    assert rows["label"].tolist() == [int(pair in edges) for pair in pairs]
    right = (rows["deployed"] == rows["label"])[rows["part"] == "test"]
    assert read_metrics(folder)[-1]["scopes"]["deployed"]["test"]["rows"] == pytest.approx(right.mean())
    if method != "global":
        np.testing.assert_array_equal(assignment[rows["source"]], rows["client"])
        bias = load_file(file)["global/backbone.head.linears.0.bias"]
        assert list(bias.shape) == [2 if model == "gcn" else 8]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize(
    ("task", "model", "parameters", "sizes"),
    [
        # Two layers of GCN, of 5 and 8 columns, and a classifier; of SGC the classifier of 5 columns.
        ("graph", "gcn", 5 * 8 + 8 + 8 * 8 + 8 + 8 * 4 + 4, ["45 graphs, "] * 2),
        ("edge", "gcn", 5 * 8 + 8 + 8 * 8 + 8 + 8 * 2 + 2, ["pairs at most, 45 nodes", "pairs, 45 nodes"]),
        ("edge", "sgc", 5 * 2 + 2, ["pairs at most, 45 nodes", "pairs, 45 nodes"]),
    ],
)
def test_a_dry_run_measures_batches(
    configured: Configure, tmp_path: Path, task: str, model: str, parameters: int, sizes: list[str], prepared: bool
) -> None:
    place = {} if prepared else {"data__store": str(tmp_path / "none")}
    config = configured(task, train__batch_size=2, model__name=model, **place)
    if prepared:
        run(config)
    with console.capture() as captured:
        show_plan(config)
    said = " ".join(captured.get().replace("│", " ").split())
    assert f"{model}, {parameters} parameters" in said
    assert sizes[prepared] in said


@pytest.mark.parametrize(
    ("task", "keys", "key", "says"),
    [
        ("edge", {"algorithm__name": "fedgta"}, "task", "take a method for edge tasks (local, global, fedavg, "),
        ("graph", {"algorithm__name": "fedgta"}, "task", "take a method for graph tasks (local, global, fedavg, "),
        ("edge", {"model__fanouts": [2, 2]}, "model.fanouts", "an edge task reads the whole graph, not drawn"),
        ("graph", {"model__fanouts": [2, 2]}, "model.fanouts", "a graph task reads whole graphs, not drawn"),
        ("edge", {"model__readout": "sum"}, "model.readout", "an edge task pools nothing"),
        *(
            (task, {"engine__trainer": trainer}, "engine.trainer", f"{trainer} needs a node task")
            for task in ("edge", "graph")
            for trainer in ("batched", "analytic")
        ),
        (
            "graph",
            {"algorithm__name": "fml", "algorithm__copilot": {"name": "gcn", "readout": "best"}},
            "FML",
            "model 'copilot': model.readout: must be one of mean, sum, max, attention, found 'best'",
        ),
    ],
)
def test_refused(configured: Configure, task: str, keys: Keys, key: str, says: str) -> None:
    with refused(key, says=says):
        run(configured(task, **keys))


def test_a_prompt_is_exported_with_its_model(configured: Configure) -> None:
    model = {"name": "transformer", "hidden": 8, "prompt": {"name": "vpg", "candidates": 3}}
    _, file = exported(run(configured("graph", model=model)))
    models = load_file(file)
    assert list(models["global/prompt.direction"].shape) == [5]
    assert list(models["global/prompt.candidates"].shape) == [3, 5]
    assert list(models["global/backbone.backbone.convs.0.lin_query.weight"].shape) == [8, 5]
    assert list(models["global/backbone.backbone.head.linears.0.bias"].shape) == [CLASSES]
