"""Configs of a program; tables and tensors of a run, against its files and against one another."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from support.errors import refused
from support.needs import needs
from torch_geometric.data import Data
from typer.testing import CliRunner

import shoal
from shoal.cli.cli import app
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.verify import verify_run
from shoal.storage.shards.shard import Shard


def test_metrics_are_the_lines(finished: shoal.Run) -> None:
    lines = [json.loads(line) for line in (finished.path / "metrics.jsonl").read_text().splitlines()]
    table = finished.metrics
    assert table["round"].to_pylist() == [1, 2, 3]
    assert table["cohort"].to_pylist() == [line["cohort"] for line in lines]
    assert table["loss"].to_pylist() == [line["loss"] for line in lines]
    assert table["seconds.train"].to_pylist() == [line["seconds"]["train"] for line in lines]
    # Evaluated every two rounds, and after the last.
    test = [line["scopes"]["deployed"]["test"]["nodes"] for line in lines[1:]]
    assert table["deployed.test.nodes"].to_pylist() == [None, *test]
    assert str(table.schema.field("bytes_up").type) == "int64"
    assert str(table.schema.field("deployed.test.nodes").type) == "double"


def test_scores_of_clients_make_the_accuracies_of_the_lines(finished: shoal.Run) -> None:
    rows = finished.clients.to_pylist()
    assert {row["round"] for row in rows} == {2, 3}
    lines = {line["round"]: line for line in finished.metrics.to_pylist()}
    for number in (2, 3):
        for scope in ("trained", "deployed", "global"):
            for part in ("val", "test"):
                own = [row for row in rows if (row["round"], row["scope"], row["part"]) == (number, scope, part)]
                assert [row["client"] for row in own] == [0, 1, 2, 3]
                mean = np.mean([row["correct"] / row["rows"] for row in own])
                assert mean == pytest.approx(lines[number][f"{scope}.{part}.clients"])
                assert np.mean([row["accuracy"] for row in own]) == pytest.approx(mean)
                assert np.mean([row["f1"] for row in own]) == pytest.approx(lines[number][f"{scope}.{part}.f1_clients"])


@pytest.mark.parametrize("damage", ["cut off", "a number", "sound"])
def test_verify_reads_the_scores_of_clients(finished: shoal.Run, damage: str) -> None:
    path = finished.path / "clients.arrows"
    sound = path.read_bytes()
    if damage == "a number":
        table = finished.clients
        place = table.schema.names.index("correct")
        correct = np.array(table["correct"]) + (np.arange(len(table)) == 0)
        changed = table.set_column(place, "correct", pa.array(correct, pa.int32()))
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(changed)
    else:
        path.write_bytes(sound[:-9] if damage == "cut off" else sound)
    try:
        faults = verify_run(finished.path)
    finally:
        path.write_bytes(sound)
    expected = {
        "cut off": [f"{path}: the scores of round 3 are damaged or missing"],
        "a number": [f"{path}: round 2 is not as this run wrote it"],
        "sound": [],
    }
    assert [fault.partition(";")[0] for fault in faults] == expected[damage]


def test_a_run_of_a_folder(finished: shoal.Run, small: dict[str, Any], tmp_path: Path) -> None:
    again = shoal.Run(str(finished.path))
    assert again.finished
    assert again.config == shoal.load_config(small)
    assert (shoal.prepare(small) / "manifest.json").exists()
    # A second run of the same config is that run.
    assert shoal.run(small).path == finished.path
    with refused(tmp_path, says="no run folder"):
        shoal.Run(tmp_path)


def test_evaluations_are_sums_of_the_scores_of_clients(finished: shoal.Run) -> None:
    rows = finished.evaluations.to_pylist()
    found = {tuple(row[key] for key in ("round", "scope", "part", "metric", "mean")): row["value"] for row in rows}
    assert len(found) == len(rows) == 2 * 3 * 2 * 8
    for place, own in finished.clients.to_pandas().groupby(["round", "scope", "part"], observed=True):
        made = {("f1", "clients"): own["f1"].mean(), ("accuracy", "rows"): own["correct"].sum() / own["rows"].sum()}
        means = {"clients": np.mean, "min": np.min, "median": np.median, "max": np.max}
        made |= {("accuracy", name): mean(own["accuracy"]) for name, mean in means.items()}
        assert {number: found[*place, *number] for number in made} == pytest.approx(made)


def test_plot_has_the_numbers_of_the_lines(finished: shoal.Run) -> None:
    metrics = finished.metrics.to_pydict()
    (line,) = finished.plot("deployed.test").axes[0].lines
    assert line.get_xydata().tolist() == [[n, 100 * metrics["deployed.test.nodes"][n - 1]] for n in (2, 3)]
    (line,) = finished.plot("loss", by="bytes").axes[0].lines
    sent = np.cumsum(np.add(metrics["bytes_up"], metrics["bytes_down"]))
    assert line.get_xydata().tolist() == [list(point) for point in zip(sent, metrics["loss"])]
    with refused("figure", says="there are trained.val, "):
        finished.plot("losses.test")


def test_sweep(elsewhere: dict[str, Any]) -> None:
    found = shoal.sweep({**elsewhere, "rounds": 1}, {"train.lr": [0.1, 1e-3], "seed": range(2)})
    assert found.complete
    assert found.table["train.lr"].to_pylist() == [0.1, 0.1, 0.001, 0.001]
    assert found.table["seed"].to_pylist() == [0, 1, 0, 1]
    assert [run.config.train.lr for run in found.runs] == [0.1, 0.1, 1e-3, 1e-3]
    tests = [run.summary["scopes"]["deployed"]["best"]["test"]["nodes"] for run in found.runs]
    assert found.table["deployed.best.test"].to_pylist() == tests
    with refused("algorithm.name", says="'nothing' is unknown"):
        shoal.sweep(elsewhere, {"algorithm.name": ["nothing"]})
    made = shoal.table(found.runs, figures=["deployed.best.test"], rows=["train.lr"])
    assert [float(row[-1].split()[0]) for row in made.rows] == pytest.approx(
        [100 * np.mean(tests[:2]), 100 * np.mean(tests[2:])], abs=0.06
    )
    differences = shoal.compare(found.runs[0], found.runs[2].path)
    assert differences[0].rows[0][:3] == ("train.lr", "0.1", "0.001")
    for each in (found, found.runs[0], made, found.scaling):
        assert len(repr(each).splitlines()) <= 10
        assert each._repr_html_().count("<table>") == 1
    for name in (shoal.table, shoal.report):
        with refused(found.path.parent, says="neither a run nor a sweep"):
            name(found.path.parent)


def test_validation_chooses_a_value_for_each_method(elsewhere: dict[str, Any]) -> None:
    axes = {"algorithm": ["local", {"name": "fedgta", "eps": 0.5}], "train.lr": [0.5, 1e-3], "seeds": 2}
    found = shoal.sweep(elsewhere, axes, choose="train.lr", choose_seeds=1, choose_by="trained", rounds=1)
    rows = found.table.to_pylist()
    assert {row["algorithm"]: row["algorithm.eps"] for row in rows} == {"local": None, "fedgta": 0.5}
    for method in ("local", "fedgta"):
        of_seeds = [[row for row in rows if (row["algorithm"], row["seed"]) == (method, seed)] for seed in (0, 1)]
        best = max(of_seeds[0], key=lambda row: row["trained.best.val"])["train.lr"]
        assert [row["train.lr"] for row in of_seeds[1] if row["state"] == "finished"] == [best]
    with refused("choose_by", says="must be one of main, trained, deployed, "):
        shoal.sweep(elsewhere, axes, choose="train.lr", choose_by="test")


@needs("search")
def test_a_search_of_a_program_is_that_of_the_command(elsewhere: dict[str, Any], tmp_path: Path) -> None:
    (file := tmp_path / "config.yaml").write_text(yaml.safe_dump({**elsewhere, "rounds": 3}))
    space = {"train.lr": "0.001:0.1:log", "train.epochs": [1, 2]}
    of_search: dict[str, Any] = {"search": "optuna", "trials": 3, "prune": "halving", "choose_seeds": 1}
    found = shoal.sweep(file, {"seed": [0, 1]}, space=space, **of_search)
    assert found.complete
    assert found.table["seed"].to_pylist() == [0, 1]
    words = ["--space=train.lr=0.001:0.1:log", "--space=train.epochs=1,2", "--trials=3", "--prune=halving"]
    command = ["sweep", str(file), "seed=0,1", "--search=optuna", "--choose-seeds=1", "--no-report", *words]
    before = (found.path / "search.json").read_bytes()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (found.path / "search.json").read_bytes() == before
    (row,) = found.search.rows
    assert row[1] == "3"
    assert f"rate {found.table['train.lr'][0].as_py():.4g}" in row[-1]
    for wrong, option in (
        ({"space": space}, "--search"),
        ({"space": space, "search": "grid"}, "--search"),
        ({"space": space, **of_search, "trials": 0}, "--trials"),
        ({"space": {"train.lrr": "1:2"}, **of_search}, "train.lrr"),
        ({"space": space, **of_search, "fork_at": 1}, "--fork-at"),
        ({"space": space, **of_search, "choose": "seed"}, "--choose"),
        ({"fork_at": 0}, "--fork-at"),
    ):
        with refused(option):
            shoal.sweep(file, {"seed": [0, 1]}, **wrong)
    with refused(says="is no search"):
        _ = shoal.sweep(file, {"seed": [0]}).search


def test_combinations_of_a_program_share_first_rounds(elsewhere: dict[str, Any]) -> None:
    found = shoal.sweep({**elsewhere, "rounds": 3}, {"train.lr": [0.1, 1e-3]}, fork_at=2)
    one, other = (run.metrics.to_pylist() for run in found.runs)
    assert [line["loss"] for line in one[:2]] == [line["loss"] for line in other[:2]]
    assert one[2]["loss"] != other[2]["loss"]
    assert [run.path.name.split("-at-")[1][:2] for run in found.runs] == ["2-", "2-"]


def test_scale_and_overrides(elsewhere: dict[str, Any]) -> None:
    over: dict[str, Any] = {"rounds": 1, "algorithm": "local", "data.store": None}
    found = shoal.scale(elsewhere, clients=[2, 3], warmup=0, **over)
    assert [run.config.partition.clients for run in found.runs] == [2, 3]
    assert {run.config.algorithm.name for run in found.runs} == {"local"}
    assert {row[0] for row in found.scaling.rows} == {"2", "3"}
    assert shoal.run(elsewhere, partition={"clients": 2}, **over).path == found.runs[0].path
    assert (shoal.prepare(elsewhere, partition={"clients": 3}, **over) / "manifest.json").exists()


def test_a_dict_is_the_file_of_the_same_keys(small: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(small))
    assert shoal.load_config(small) == shoal.load_config(file) == shoal.load_config(str(file))
    assert shoal.load_config(shoal.load_config(small)) == shoal.load_config(small)


def test_overrides(small: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({**small, "train": {"epochs": 7}}))
    for source in (file, yaml.safe_load(file.read_text()), shoal.load_config(file)):
        found = shoal.load_config(source, rounds=np.int64(9), train={"lr": 0.5}, **{"data.root": tmp_path})
        assert (found.rounds, found.train.lr, found.train.epochs, found.data.root) == (9, 0.5, 7, str(tmp_path))
        assert shoal.load_config(source, model={"name": "mlp"}).plain()["model"]["name"] == "mlp"
        assert shoal.load_config(source, **{"partition.clients": 3}).partition.method == "metis"


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ({"rounds": 0}, "rounds", "found 0"),
        ({"train": {"rate": 1}}, "train.rate", "unknown key; known here: epochs, "),
        ({"rounds": object}, "rounds", "a type is no value of a config"),
        ({"seed.x": 1}, "seed", "a whole number"),
    ],
)
def test_a_mistake_is_one_line(small: dict[str, Any], overrides: dict[str, Any], key: str, says: str) -> None:
    with refused(key, says=says):
        shoal.load_config(small, **overrides)


def test_run_root_is_relative(small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without = {key: value for key, value in small.items() if key != "run"}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert shoal.load_config(without).run.root == str(tmp_path / name / "runs")


def graph_of(shard: Shard, seed: int = 0) -> tuple[Data, np.ndarray]:
    """A client's graph as that of another library, its nodes in another order, and their global ids."""
    order = np.random.default_rng(seed).permutation(shard.nodes)
    new = np.argsort(order)
    source = np.repeat(np.arange(shard.nodes), np.diff(shard.indptr))
    edges = torch.from_numpy(np.stack([new[source], new[shard.indices]]))
    return Data(x=torch.from_numpy(shard.x[order]), edge_index=edges), shard.node[order]


@pytest.mark.parametrize(
    ("algorithm", "model", "client"),
    [
        ("fedavg", "gcn", None),
        ("fedavg", "sgc", 2),
        ("local", "sgc", 1),
        ("fedproto", "gcn", 3),
        ("global", "sgc", None),
    ],
)
def test_predict_of_a_clients_graph_is_its_prediction(
    small: dict[str, Any], algorithm: str, model: str, client: int | None
) -> None:
    run = shoal.run({**small, "algorithm": algorithm, "model": {"name": model}, "rounds": 2})
    store = RunPlan.of(run.config, trains=False).prepare()
    graph, node = graph_of(store.shard(client or 0))
    own = run.predictions(probabilities=True).to_pandas().set_index("node").loc[node]
    found = run.predict(graph, client).to_pandas()
    assert found["node"].tolist() == list(range(len(node)))
    scope = "global" if "global" in own else "deployed"
    assert found["predicted"].tolist() == own[scope].tolist()
    p_NC = np.stack(found["probability"])
    np.testing.assert_allclose(np.stack(own[f"{scope}_probability"]), p_NC, rtol=1e-4)
    assert p_NC.sum(1) == pytest.approx(1.0)
    assert (p_NC.argmax(1) == found["predicted"]).all()


def test_predict_another_graph_with_the_models_parameters(finished: shoal.Run) -> None:
    """One hop of SGC and its softmax by dense algebra, on a path of four nodes that no store has."""
    x_NF = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    a_NN = np.eye(4) + np.diag([1, 1, 1], 1) + np.diag([1, 1, 1], -1)
    scale = 1 / np.sqrt(a_NN.sum(1))
    weight, bias = (
        finished.models()[f"global/{name}"].numpy() for name in ("head.linears.0.weight", "head.linears.0.bias")
    )
    scores_NC = (scale[:, None] * a_NN * scale) @ x_NF @ weight.T + bias
    edges = np.array([[0, 1, 2], [1, 2, 3]])
    graph = Data(x=torch.from_numpy(x_NF), edge_index=torch.from_numpy(edges))
    p_NC = np.stack(finished.predict(graph)["probability"].to_pylist())
    exp_NC = np.exp(scores_NC)
    assert p_NC == pytest.approx(exp_NC / exp_NC.sum(1, keepdims=True), rel=1e-5)


@pytest.mark.parametrize(
    ("features", "client", "place", "says"),
    [(7, None, "graph", "expected 8 features a node"), (8, 4, "client", "expected 0 to 3"), (8, "1", "client", "")],
)
def test_predict_graph_or_client_that_does_not_fit_is_refused(
    finished: shoal.Run, features: int, client: Any, place: str, says: str
) -> None:
    graph = Data(x=torch.zeros(3, features), edge_index=torch.tensor([[0, 1], [1, 2]]))
    with refused(place, says=says):
        finished.predict(graph, client)
    with refused("graph.x"):
        finished.predict(Data(edge_index=graph.edge_index))


def test_predict_without_a_global_model_needs_a_client(small: dict[str, Any]) -> None:
    run = shoal.run({**small, "algorithm": "local", "rounds": 2})
    with refused("client", says="local has no global model; name a client, 0 to 3"):
        run.predict(Data(x=torch.zeros(3, 8), edge_index=torch.tensor([[0], [1]])))
