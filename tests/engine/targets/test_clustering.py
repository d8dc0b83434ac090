"""Runs that cluster: a round against one written out in torch, labels that training never sees, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics
from support.errors import refused
from support.small_runs import small_run

from shoal import Run
from shoal.algorithms.rng import key
from shoal.engine.config.config import parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.summary import read_summary
from shoal.engine.runs.predict import open_graph
from shoal.engine.runs.run import run
from shoal.influence.influence import influence

CLIENTS, EACH, LR = 3, 24, 0.1
NODES = CLIENTS * EACH
CLIENT = np.repeat(np.arange(CLIENTS), EACH)


def arrays(seed: int = 0) -> dict[str, Any]:
    """Two communities a client, with edges inside them, and features that do not tell them apart."""
    rng = np.random.default_rng(seed)
    y = np.arange(NODES) % 2
    source, target = rng.integers(NODES, size=(2, 4000))
    inside = (CLIENT[source] == CLIENT[target]) & (y[source] == y[target])
    edges = np.stack([source, target])[:, inside]
    return {"edge_index": edges, "x": rng.standard_normal((NODES, 6)).astype(np.float32), "y": y}


def config(folder: Path, graph: dict[str, Any], **changes: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    np.savez(folder / "graph.npz", **graph)
    plain: dict[str, Any] = {
        "target": "clustering",
        "data": {"dataset": "files", "path": str(folder / "graph.npz")},
        "partition": {"method": "file", "file": str(folder / "client.npy"), "clients": CLIENTS},
        "model": {"name": "mlp", "layers": 2, "hidden": 5},
        "train": {"optimizer": "sgd", "lr": LR, "epochs": 1, "dropout": 0.0, "weight_decay": 0.0},
    }
    np.save(folder / "client.npy", CLIENT)
    whole = small_run(folder, **{**plain, **changes})
    del whole["data"]["options"]
    return whole


def run_plain(plain: dict[str, Any]) -> Path:
    return run(parse_config(plain, "a run that clusters"))


def plain_step(w: list[torch.Tensor], graph: dict[str, Any], mine: np.ndarray, seed: int) -> Any:
    """One step of gradient descent of a client on its edges, by a dense adjacency; new first layer, and the loss."""
    a = np.zeros((NODES, NODES), dtype=bool)
    a[tuple(graph["edge_index"])] = True
    a = (a | a.T)[np.ix_(mine, mine)]
    np.fill_diagonal(a, False)
    upper = np.argwhere(np.triu(a))
    drawn = np.random.default_rng(seed).integers(EACH, size=(2, len(upper))).T
    none = np.array([(i, j) for i, j in drawn if i != j and not a[i, j]])
    w = [p.clone().requires_grad_() for p in w]
    z = F.relu(F.linear(torch.from_numpy(graph["x"][mine]), *w))
    product = (z - z.mean(0)) @ (z - z.mean(0)).T
    loss = -F.logsigmoid(product[tuple(upper.T)]).mean() - F.logsigmoid(-product[tuple(none.T)]).mean()
    loss.backward()
    return [p.detach() - LR * p.grad for p in w if p.grad is not None], loss.item()


def test_round_is_that_of_plain_torch(tmp_path: Path) -> None:
    graph = arrays()
    names = [f"global/head.linears.0.{name}" for name in ("weight", "bias")]
    plain = config(tmp_path, graph, rounds=1)
    models = [Run(run_plain({**plain, "rounds": rounds})).models() for rounds in (1, 2)]
    store, w = prepare(parse_config(plain, "a run that clusters")), [models[0][name] for name in names]
    steps = [plain_step(w, graph, store.shard(i).node, key(0, 2, i, "unlabelled")) for i in range(CLIENTS)]
    for place, name in enumerate(names):
        expected = torch.stack([new[place] for new, _ in steps]).mean(0)
        torch.testing.assert_close(models[1][name], expected, rtol=1e-4, atol=1e-6)
    second = run_plain({**plain, "rounds": 2})
    assert read_metrics(second)[1]["loss"] == pytest.approx(np.mean([loss for _, loss in steps]), rel=1e-4)
    # The classifier has no part in the loss.
    last = "global/head.linears.1.weight"
    assert torch.equal(models[0][last], models[1][last])


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "gcn", "hidden": 8}},
        {"model": {"name": "sgc", "layers": 2}, "train": {"batch_size": 5, "epochs": 2}},
        {"algorithm": {"name": "scaffold"}, "participation": {"ratio": 0.67}},
        {"algorithm": {"name": "global"}},
    ],
)
def test_training_sees_no_label(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Labels that are all replaced leave every bit of training, also where the split is by class."""
    graph = arrays()
    other = {**graph, "y": 1 - np.arange(NODES) // 5 % 2}
    runs = [run_plain(config(tmp_path / str(n), g, rounds=3, **changes)) for n, g in enumerate((graph, other))]
    models = [Run(path).models() for path in runs]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    lines = [[(line["loss"], line["cohort"]) for line in read_metrics(path)] for path in runs]
    assert lines[0] == lines[1]
    tables = [Run(path).predictions().sort_by("node") for path in runs]
    assert tables[0]["deployed_cluster"].equals(tables[1]["deployed_cluster"])
    scores = [read_summary(path)["scopes"]["deployed"]["final"]["test"]["nmi"] for path in runs]
    assert scores[0] != scores[1]


@pytest.mark.parametrize("method", ["local", "fedavg", "fedprox", "scaffold", "feddc", "fedopt"])
def test_communities_are_found(tmp_path: Path, method: str) -> None:
    train = {"optimizer": "adam", "lr": 0.02, "epochs": 10, "dropout": 0.0}
    model = {"name": "gcn", "hidden": 16}
    path = run_plain(config(tmp_path, arrays(), rounds=6, algorithm={"name": method}, train=train, model=model))
    scores = read_summary(path)["scopes"]["deployed"]["final"]["test"]
    assert scores["nmi"]["clients"] > 0.7
    assert scores["metric"] == "nmi"
    assert "nodes" not in scores
    table = Run(path).predictions().to_pandas()
    assert table["deployed_cluster"].isin([0, 1]).all()
    test = table[table["part"] == "test"]
    ari = [metrics.adjusted_rand_score(of["label"], of["deployed_cluster"]) for _, of in test.groupby("client")]
    assert scores["ari"]["clients"] == pytest.approx(np.mean(ari), abs=1e-6)


def test_graphs_are_clustered(tmp_path: Path) -> None:
    """Rings and stars, whose features tell nothing."""
    rng, count, size = np.random.default_rng(0), 60, 8
    y = np.arange(count) % 2
    edges = [(g * size + i, g * size + (0 if y[g] else (i + 1) % size)) for g in range(count) for i in range(size)]
    graph = np.repeat(np.arange(count), size)
    x = (1 + 0.1 * rng.standard_normal((count * size, 3))).astype(np.float32)
    np.savez(tmp_path / "graphs.npz", edge_index=np.array(edges).T, x=x, y=y, graph=graph)
    plain = small_run(
        tmp_path, task="graph", target="clustering", rounds=4, partition={"method": "random", "clients": 3},
        model={"name": "gin", "hidden": 16, "readout": "sum"}, train={"lr": 0.01, "epochs": 3, "batch_size": 8},
        data={"dataset": "files", "path": str(tmp_path / "graphs.npz")},
    )  # fmt: skip
    del plain["data"]["options"]
    path = run_plain(plain)
    assert read_summary(path)["scopes"]["global"]["final"]["test"]["cluster_accuracy"]["clients"] > 0.9
    assert all(np.isfinite(line["loss"]) for line in read_metrics(path))


@pytest.mark.parametrize(
    ("changes", "place", "says"),
    [
        ({"algorithm": {"name": "fedproto"}}, "algorithm.name", "fedproto reads labels or takes models apart"),
        ({"algorithm": {"name": "moon"}}, "algorithm.name", "take one of local, global, fedavg, fedprox"),
        ({"model": {"name": "sgc"}}, "model.layers", "sgc has no layer before its classifier"),
        ({"evaluation": {"metrics": "f1"}}, "evaluation.metrics", "take some of nmi, ari, cluster_accuracy"),
        ({"propagation": {"hops": 2, "rows": "labelled"}}, "propagation.rows", "items that clustering trains on"),
        ({"privacy": {"unit": "node", "noise": 1.0}}, "privacy.unit", "node clips gradients of classes"),
        ({"engine": {"trainer": "analytic"}}, "engine.trainer", "analytic is for classes"),
        ({"attack": "label_flip"}, "attack.kind", "target.kind"),
        ({"task": "edge"}, "target.kind", "task node or graph"),
    ],
)
def test_what_needs_labels_is_refused(tmp_path: Path, changes: dict[str, Any], place: str, says: str) -> None:
    with refused(place, says=says):
        run_plain(config(tmp_path, arrays(), **changes))


def test_masked_labels_and_models_without_messages_are_refused(tmp_path: Path) -> None:
    plain = config(tmp_path, arrays())
    with refused("data.sparsity.labels"):
        run_plain({**plain, "data": {**plain["data"], "sparsity": {"labels": 0.5}}})
    of_graphs = {"task": "graph", "target": "clustering", "model": {"name": "mlp"}}
    of_graphs |= {"data": {"dataset": "sbm-graphs"}, "partition": {"method": "random"}}
    with refused("model.name", says="mlp reads no altered graphs"):
        run_plain(small_run(tmp_path, **of_graphs))


def test_what_counts_right_classes_is_refused(tmp_path: Path) -> None:
    path = run_plain(config(tmp_path, arrays(), run={"checkpoint_every": 1}))
    with refused(path, "target", says="influence is of predicted classes, found target clustering"):
        influence(path)
    with refused("target", says="see shoal export"):
        open_graph(path, str(tmp_path / "graph.npz"), None)


def test_models_that_read_edges_cluster_nodes_and_no_graphs(tmp_path: Path) -> None:
    of_edges = arrays()
    of_edges["edge_attr"] = np.ones((of_edges["edge_index"].shape[1], 2), np.float32)
    path = run_plain(config(tmp_path, of_edges, model={"name": "gine", "hidden": 8}, rounds=1))
    assert np.isfinite(read_metrics(path)[-1]["loss"])
    count, size = 40, 3
    ends = np.arange(count * size).reshape(count, size)
    edges = np.stack([ends[:, :2].ravel(), ends[:, 1:].ravel()])
    graph = {"edge_index": edges, "x": np.ones((count * size, 2), np.float32), "y": np.arange(count) % 2}
    graph |= {"graph": np.repeat(np.arange(count), size), "edge_attr": np.ones((edges.shape[1], 1), np.float32)}
    np.savez(tmp_path / "graphs.npz", **graph)
    plain = small_run(
        tmp_path,
        task="graph",
        target="clustering",
        partition={"method": "random", "clients": 2},
        model={"name": "gat"},
        data={"dataset": "files", "path": str(tmp_path / "graphs.npz"), "split": "per_client"},
    )
    del plain["data"]["options"]
    with refused(says="data.edge_features: edges of altered graphs have no features; set it to drop"):
        run_plain(plain)
