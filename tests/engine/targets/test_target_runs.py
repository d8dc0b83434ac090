"""Runs on numbers and labels: a round against one written out in torch, what training reads, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.small_runs import small_run
from support.user_graph import user_graph

from shoal import Run
from shoal.engine.config.config import parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.summary import read_summary
from shoal.engine.runs.predict import open_graph, table_of
from shoal.engine.runs.run import run
from shoal.storage.shards.view import Cache
from shoal.study.figure_data import client_numbers

NODES, CLIENTS, LR, EPOCHS = 90, 3, 0.1, 2
SPLIT = np.tile([1, 1, 2, 3, 3], NODES // 5)
CLIENT = np.arange(NODES) % CLIENTS


def numbers() -> np.ndarray:
    """Two targets of different spreads; one or both are missing at some nodes."""
    rng = np.random.default_rng(5)
    y = np.stack([1000 + 50 * rng.standard_normal(NODES), rng.standard_normal(NODES)], 1).astype(np.float32)
    y[::9, 0], y[3::9, 1] = np.nan, np.nan
    y[SPLIT == 0] = np.nan
    return y


def labels() -> np.ndarray:
    y = (numbers() > np.nanmean(numbers(), 0)).astype(np.float32)
    y[np.isnan(numbers())] = np.nan
    return y


def config(folder: Path, y: np.ndarray, target: Any, **changes: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    split = np.where(np.isnan(y.reshape(NODES, -1)).all(1), 0, SPLIT)
    plain: dict[str, Any] = {
        "data": {"dataset": "files", "path": user_graph(folder, NODES, y=y, split=split), "split": "public"},
        "partition": {"method": "file", "file": str(folder / "client.npy"), "clients": CLIENTS},
        "model": {"name": "mlp", "layers": 1},
        "train": {"optimizer": "sgd", "lr": LR, "epochs": EPOCHS, "dropout": 0.0, "weight_decay": 0.0},
        "target": target,
    }
    np.save(folder / "client.npy", CLIENT)
    whole = small_run(folder, **{**plain, **changes})
    del whole["data"]["options"]
    return whole


def run_plain(plain: dict[str, Any]) -> Path:
    return run(parse_config(plain, "a run on targets"))


def after(
    folder: Path, rounds: int, y: np.ndarray, target: Any, **changes: Any
) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """The run, and weight and bias of the server's model after some rounds."""
    path = run_plain(config(folder, y, target, rounds=rounds, **changes))
    bias, weight = (Run(path).models()[f"global/head.linears.0.{name}"] for name in ("bias", "weight"))
    return path, weight, bias


def plain_round(weight: torch.Tensor, bias: torch.Tensor, folder: Path, y: np.ndarray, kind: str, scale: str) -> Any:
    """FedAvg's next round, client by client: parameters, and the loss over all clients, in spreads."""
    x = torch.from_numpy(np.load(folder / "graph.npz")["x"])
    split = np.where(np.isnan(y).all(1), 0, SPLIT)
    train = [np.flatnonzero((split == 1) & (client == CLIENT)) for client in range(CLIENTS)]
    new, total, losses = [torch.zeros_like(weight), torch.zeros_like(bias)], 0, []
    for mine in train:
        of = {"federation": np.concatenate(train), "client": mine}.get(scale)
        mean, spread = (0.0, 1.0) if of is None else (np.nanmean(y[of], 0), np.nanstd(y[of], 0))
        z = torch.from_numpy(((y[mine] - mean) / spread).astype(np.float32))
        given = ~z.isnan()
        w = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
        optimizer = torch.optim.SGD(w, lr=LR)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            said = F.linear(x[mine], *w)
            if kind == "regression":
                loss = F.mse_loss(said[given], z[given])
            else:
                loss = F.binary_cross_entropy_with_logits(said[given], z[given])
            loss.backward()
            optimizer.step()
        new = [n + len(mine) * p.detach() for n, p in zip(new, w)]
        total += len(mine)
        losses.append((len(mine), loss.item()))
    return [n / total for n in new], sum(n * value for n, value in losses) / total


@pytest.mark.parametrize(
    ("kind", "scale"),
    [("regression", "federation"), ("regression", "client"), ("regression", "none"), ("multilabel", "")],
)
def test_round_is_that_of_plain_torch(tmp_path: Path, kind: str, scale: str) -> None:
    y = numbers() if kind == "regression" else labels()
    if scale == "none":
        y = (y - np.nanmean(y, 0)) / np.nanstd(y, 0)
    target = {"kind": kind, **({"scale": scale} if scale else {})}
    _first, *w = after(tmp_path, 1, y, target)
    (weight, bias), loss = plain_round(*w, tmp_path, y, kind, scale)
    second, *found = after(tmp_path, 2, y, target)
    torch.testing.assert_close(found[0], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[1], bias, rtol=1e-4, atol=1e-6)
    assert read_metrics(second)[1]["loss"] == pytest.approx(loss, rel=1e-4)
    require_scores(second, tmp_path, y, kind, scale)


def require_scores(path: Path, folder: Path, y: np.ndarray, kind: str, scale: str) -> None:
    """Compares the scores of a run with those of its model, in the units of the targets, client by client."""
    table = Run(path).predictions().sort_by("node").to_pydict()
    said, split = np.array(table["global"], np.float64), np.where(np.isnan(y).all(1), 0, SPLIT)
    weight, bias = (Run(path).models()[f"global/head.linears.0.{name}"].double().numpy() for name in ("weight", "bias"))
    score = np.load(folder / "graph.npz")["x"].astype(np.float64) @ weight.T + bias
    if kind == "regression" and scale != "none":
        for client in range(CLIENTS):
            of = (split == 1) & ((client == CLIENT) | (scale == "federation"))
            mine = client == CLIENT
            score[mine] = score[mine] * np.nanstd(y[of], 0) + np.nanmean(y[of], 0)
    np.testing.assert_allclose(said, 1 / (1 + np.exp(-score)) if kind == "multilabel" else score, rtol=2e-4, atol=1e-5)
    if kind == "multilabel":
        return
    test = [np.flatnonzero((split == 3) & (client == CLIENT)) for client in range(CLIENTS)]
    r2 = [np.mean([1 - np.nansum((y[i, t] - score[i, t]) ** 2) / (np.nanvar(y[i, t]) * (~np.isnan(y[i, t])).sum())
                   for t in range(2)]) for i in test]  # fmt: skip
    scores = read_summary(path)["scopes"]["global"]["final"]["test"]
    assert scores["r2"]["min"] == pytest.approx(np.min(r2), rel=1e-3)
    assert scores["r2"]["max"] == pytest.approx(np.max(r2), rel=1e-3)
    # A mean over clients is one of sums of squares: of so many addends as it has items, or rows, or the same for all.
    items = np.bincount(CLIENT)
    for mean in ("nodes", "rows", "clients"):
        of_targets = []
        for t in range(2):
            given = [i[~np.isnan(y[i, t])] for i in test]
            weights = [{"nodes": items[CLIENT[i[0]]], "rows": len(i), "clients": 1}[mean] for i in given]
            errors = sum(w * np.mean((y[i, t] - score[i, t]) ** 2) for w, i in zip(weights, given))
            spreads = sum(w * np.var(y[i, t].astype(np.float64)) for w, i in zip(weights, given))
            of_targets.append(1 - errors / spreads)
        assert scores["r2"][mean] == pytest.approx(np.mean(of_targets), rel=1e-3)
    assert scores["metric"] == "r2"
    assert "nodes" not in scores
    assert scores["rmse"]["clients"] > scores["mae"]["clients"]


def test_loss_of_one_target_is_in_its_units(tmp_path: Path) -> None:
    y = numbers()[:, 0]
    y[np.isnan(y)] = 1000.0
    path, *_ = after(tmp_path, 1, y, "regression")
    train = y[SPLIT == 1]
    loss = read_metrics(path)[0]["loss"]
    assert 0.3 * train.var() < loss < 4 * train.var()


def test_training_does_not_see_other_targets(tmp_path: Path) -> None:
    """Validation and test targets that are replaced leave every bit of training and of its scale."""
    for scale in ("federation", "client"):
        y, other = numbers(), numbers()
        other[SPLIT > 1] = 7 - 3 * other[SPLIT > 1]
        runs = [
            after(tmp_path / f"{scale}{place}", 2, a, {"kind": "regression", "scale": scale})
            for place, a in enumerate((y, other))
        ]
        (path, *w), (path_of_other, *w_of_other) = runs
        assert all(map(torch.equal, w, w_of_other))
        assert [line["loss"] for line in read_metrics(path)] == [line["loss"] for line in read_metrics(path_of_other)]
        scores = [read_summary(p)["scopes"]["global"]["final"]["test"]["r2"] for p in (path, path_of_other)]
        assert scores[0] != scores[1]


@pytest.mark.parametrize(
    "method", ["local", "fedprox", "scaffold", "feddc", "fedopt", "moon", "lg_fedavg", "gcfl_plus"]
)
def test_methods_on_parameters_learn_numbers(tmp_path: Path, method: str) -> None:
    """On numbers that features tell, a method is better than the mean."""
    x = np.random.default_rng(0).standard_normal((NODES, 4)).astype(np.float32)
    y = (50 + 10 * x[:, 0] - 5 * x[:, 1]).astype(np.float32)
    plain = config(
        tmp_path, y, "regression", algorithm={"name": method}, rounds=30, model={"name": "mlp", "hidden": 16},
        train={"lr": 0.02, "epochs": 5, "dropout": 0.0},
    )  # fmt: skip
    np.savez(tmp_path / "graph.npz", **{**np.load(tmp_path / "graph.npz"), "x": x})
    scores = read_summary(run_plain(plain))["scopes"]["deployed"]["final"]["test"]
    assert scores["r2"]["clients"] > 0.4
    assert scores["rmse"]["clients"] < 8


def test_graphs_have_targets(tmp_path: Path) -> None:
    """Forty small graphs: a number each, which is the mean of a feature over its nodes."""
    rng, each, graphs = np.random.default_rng(0), 5, 60
    x = rng.standard_normal((graphs * each, 4)).astype(np.float32)
    graph = np.repeat(np.arange(graphs), each)
    y = 20 + 4 * x[:, 0].reshape(graphs, each).mean(1)
    ring = np.arange(graphs * each)
    edges = np.stack([ring, graph * each + (ring + 1) % each])
    np.savez(tmp_path / "graphs.npz", edge_index=edges, x=x, y=y, graph=graph)
    plain = small_run(
        tmp_path, task="graph", target="regression", rounds=60, partition={"method": "random", "clients": 3},
        model={"name": "gin", "hidden": 16}, train={"lr": 0.02, "epochs": 3, "dropout": 0.0},
        data={"dataset": "files", "path": str(tmp_path / "graphs.npz"), "fractions": [0.6, 0.2, 0.2]},
    )  # fmt: skip
    del plain["data"]["options"]
    path = run_plain(plain)
    assert read_summary(path)["scopes"]["global"]["final"]["test"]["r2"]["clients"] > 0.6
    label = Run(path).predictions().sort_by("graph")["label"].to_numpy()
    np.testing.assert_allclose(label, y, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "place", "says"),
    [
        ({"algorithm": {"name": "fedproto"}}, "algorithm.name", "fedproto is for classes, found target regression"),
        ({"algorithm": {"name": "fedgta"}}, "algorithm.name", "take a method on parameters (local, global, fedavg"),
        ({"evaluation": {"metrics": "f1"}}, "evaluation.metrics", "take some of r2, rmse, mae, mse"),
        ({"evaluation": {"metrics": "rmse"}}, "evaluation.metrics", "rmse cannot; begin with r2"),
        ({"privacy": {"unit": "node", "noise": 1.0}}, "privacy.unit", "node clips gradients of classes"),
        ({"privacy": {"unit": "client", "noise": 1.0}}, "target.scale", "federation tells sums of the numbers of all"),
        ({"engine": {"trainer": "analytic"}}, "engine.trainer", "analytic is for classes, found target regression"),
        ({"attack": "label_flip"}, "attack.kind", "target.kind"),
    ],
)
def test_what_needs_classes_is_refused(tmp_path: Path, changes: dict[str, Any], place: str, says: str) -> None:
    with refused(place, says=says):
        run_plain(config(tmp_path, numbers(), "regression", **changes))


def test_targets_of_published_classes_are_refused(tmp_path: Path) -> None:
    with refused("target", says="dataset 'sbm' is for classification, found regression"):
        run_plain(small_run(tmp_path, target="regression"))
    with refused("partition.method", says="dirichlet divides by classes"):
        plain = config(tmp_path, numbers(), "regression")
        run_plain({**plain, "partition": {"method": "dirichlet", "clients": CLIENTS}})
    with refused("evaluation.metrics", says="r2 is for another target"):
        run_plain(small_run(tmp_path, evaluation={"metrics": "r2"}))


def test_checkpoint_has_no_accuracy_to_draw(tmp_path: Path) -> None:
    path = run_plain(config(tmp_path, numbers(), "regression", run={"tensorboard": True, "checkpoint_every": 1}))
    assert client_numbers(path, "global") is None
    assert (path / "tensorboard").exists()


def test_private_clients_tell_no_sums_of_their_numbers(tmp_path: Path) -> None:
    """With their own scale, other numbers of one client leave what another client sees of its own."""
    y, other = numbers(), numbers()
    other[CLIENT == 0] = 3 * other[CLIENT == 0] - 1
    seen = []
    for place, targets in enumerate((y, other)):
        target = {"kind": "regression", "scale": "client"}
        parsed = parse_config(
            config(tmp_path / str(place), targets, target, privacy={"unit": "client", "noise": 1.0}), "private numbers"
        )
        store = prepare(parsed)
        job = make_job(parsed, store, "private")
        assert job.scale is not None
        assert (job.scale.mean_T.tolist(), job.scale.spread_T.tolist()) == ([0.0, 0.0], [1.0, 1.0])
        seen.append([job.view(store, client, Cache(0)).train_label for client in range(CLIENTS)])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(seen[0][1:], seen[1][1:]))
    assert (seen[0][0].nan_to_num() - seen[1][0].nan_to_num()).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_tables_of_another_graph_are_predicted(tmp_path: Path, kind: str) -> None:
    """They have no labels, or some that are not read."""
    y = numbers() if kind == "regression" else labels()
    path = run_plain(config(tmp_path, y, kind, run={"checkpoint_every": 1}))
    for label in ("", ",label_0"):
        graph = tmp_path / f"other{len(label)}"
        graph.mkdir()
        rows = [f"{i},{i % 2}.5,1,2,3{label and ',x'}" for i in range(4)]
        (graph / "edges.csv").write_text("source,target\n0,1\n2,3\n")
        (graph / "nodes.csv").write_text("\n".join([f"id,a,b,c,d{label}", *rows]) + "\n")
        table = open_graph(path, str(graph), None)
        values = table_of(table, [None])
        assert values.column_names == ["node", "predicted_0", "predicted_1"]
        assert np.isfinite(values["predicted_0"].to_numpy()).all()
