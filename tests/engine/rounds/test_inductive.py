"""With `data.inductive` methods see training nodes alone, and are scored on all nodes of a client."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.fixtures import Keys, Start
from support.methods import LABELLING, MENDED
from support.plain_fedavg import row_counts
from support.small_cells import require_same_tree, tensors_of
from torch import Tensor, nn

from shoal.engine.rounds.server import Server
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

CLIENTS, NODES, CLASSES, TRAINING = 6, 30, 4, 10
WITHOUT_TRAIN = 5


@pytest.fixture(scope="session")
def arrays(graphs: Mapping[str, Path]) -> dict[str, np.ndarray]:
    return {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray]) -> dict[str, Keys]:
    """Keys of the small federation, and of one whose nodes are others but for those that train, and their edges."""
    folder = tmp_path_factory.mktemp("inductive")
    rng = np.random.default_rng(3)
    trains = arrays["split"] == TRAIN
    hidden = np.flatnonzero(~trains)
    x, y = arrays["x"].copy(), arrays["y"].copy()
    x[hidden] = 3 * rng.standard_normal((len(hidden), x.shape[1]))
    y[hidden] = rng.permutation(y[hidden])
    among = trains[arrays["edge_index"]].all(0)
    others = np.stack([rng.choice(hidden, 500), rng.integers(len(x), size=500)])
    edges = np.concatenate([others, arrays["edge_index"][:, among]], axis=1)
    for name, changed in {"plain": {}, "others": {"x": x, "y": y, "edge_index": edges}}.items():
        (folder / name).mkdir()
        for file, array in {**arrays, **changed}.items():
            np.save(folder / name / f"{file}.npy", array)
    own = {name: {"data.path": str(folder / name), "data.store": str(folder / f"{name}-store")} for name in
           ("plain", "others")}  # fmt: skip
    return {name: {**keys, "data.inductive": True, "train.epochs": 2} for name, keys in own.items()}


def rounds(server: Server, count: int = 3) -> list[float]:
    """Runs some rounds, and gives their losses."""
    return [server.round()["loss"] for _ in range(count)]


METHODS: dict[str, Keys] = {
    **{name: {} for name in ("fedavg sgc", "fedavg gamlp", "fedavg gcn", "fedpg gcn", "fedproto sage")},
    **{f"{name} gcn": {} for name in ("global", "scaffold", "feddc", "moon", "fgssl", "fedpub")},
    **{f"{name} sage": {"algorithm.generator_rounds": 1} for name in MENDED},
    "fedavg gamlp stacked": {"engine.trainer": "batched"},
    "fedavg sage": {"participation.ratio": 0.5},
    "fedgta gamlp": {"participation.ratio": 0.67},
    "moon gcn of all": {"algorithm.rows": "all"},
    "fedgkc gcn": {"algorithm.copilot": {"name": "gcn", "hidden": 8}, "heterogeneity.embedding": 8},
    "fedprox gcn": {"algorithm.mu": 0.1},
    "gcfl_plus gcn": {"algorithm.warmup": 1},
    "adafgl gcn": {"algorithm.shared_rounds": 1},
}
for name, own in METHODS.items():
    algorithm, model = name.split()[:2]
    METHODS[name] = {"algorithm.name": algorithm, "model.name": model, **own}


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("name", METHODS)
def test_other_nodes_leave_no_trace_in_training(start: Start, places: dict[str, Keys], name: str) -> None:
    plain, others = (start({**METHODS[name], **places[which]}) for which in ("plain", "others"))
    losses = rounds(plain)
    assert rounds(others) == losses
    require_same_tree(tensors_of(others, scores=False), tensors_of(plain, scores=False))
    deployed = [plain.state.scores["deployed"], others.state.scores["deployed"]]
    assert any(not np.array_equal(counts, deployed[1][i]) for i, counts in deployed[0].items())
    # They would leave one, if they were seen.
    assert rounds(start({**METHODS[name], **places["others"], "data.inductive": False})) != losses


class PlainClient:
    """A client as plain torch has it: the published edges among its training nodes, and among all its nodes."""

    def __init__(self, number: int, arrays: dict[str, np.ndarray], kind: str) -> None:
        mine = arrays["assignment"] == number
        self.kind, self.split, self.y = kind, arrays["split"][mine], torch.from_numpy(arrays["y"][mine])
        self.x = torch.from_numpy(arrays["x"][mine])
        self.trains = torch.from_numpy(self.split == TRAIN)
        self.edges = np.zeros((len(self.y), len(self.y)), dtype=bool)
        number_of = np.cumsum(mine) - 1
        for a, b in arrays["edge_index"].T:
            if mine[a] and mine[b] and a != b:
                self.edges[number_of[a], number_of[b]] = self.edges[number_of[b], number_of[a]] = True

    def logits(self, p: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Of the graph that some rows induce."""
        adjacency = torch.from_numpy(self.edges)[rows][:, rows].float() + torch.eye(int(rows.sum()))
        root = adjacency.sum(1).rsqrt()
        s, z = root[:, None] * adjacency * root, self.x[rows]
        if self.kind == "sgc":
            z = s @ (s @ z)
        else:
            z = F.relu(s @ (z @ p["convs.0.lin.weight"].T) + p["convs.0.bias"])
            z = s @ (z @ p["convs.1.lin.weight"].T) + p["convs.1.bias"]
        return z @ p["head.linears.0.weight"].T + p["head.linears.0.bias"]

    def train(self, module: nn.Module) -> Tensor:
        p = {name: t.detach().clone().requires_grad_() for name, t in module.named_parameters()}
        for _ in range(2 if self.trains.any() else 0):
            loss = F.cross_entropy(self.logits(p, self.trains), self.y[self.trains])
            for t, g in zip(p.values(), torch.autograd.grad(loss, list(p.values()))):
                t.data -= 0.3 * g
        return nn.utils.parameters_to_vector(p.values()).detach()

    def counts(self, module: nn.Module) -> np.ndarray:
        everybody = torch.ones(len(self.y), dtype=torch.bool)
        predicted = self.logits(dict(module.named_parameters()), everybody).argmax(1)
        rows: Any = SimpleNamespace(val=np.flatnonzero(self.split == VAL), test=np.flatnonzero(self.split == TEST))
        rows.label = self.y
        return row_counts(rows, predicted.tolist(), CLASSES)


@pytest.mark.parametrize("kind", ["sgc", "gcn"])
def test_rounds_written_out(start: Start, places: Any, arrays: Any, module_of: Any, kind: str) -> None:
    keys = {"model.name": kind, "train.optimizer": "sgd", "train.lr": 0.3, "train.weight_decay": 0.0}
    keys |= {"model.head": "linear"} if kind == "gcn" else {}
    server = start({**places["plain"], **keys, "train.dropout": 0.0})
    # Methods see training nodes, and accuracy is weighted by all nodes of a client.
    assert [info.nodes for info in server.infos] == [TRAINING] * WITHOUT_TRAIN + [0]
    assert server._evaluator._items_N.tolist() == [NODES] * CLIENTS
    clients = [PlainClient(i, arrays, kind) for i in range(CLIENTS)]
    w = server._initial
    for _ in range(3):
        server.round()
        trained = [client.train(module_of(server, w)) for client in clients]
        # Each by the nodes that it trains on: ten, and none at the last.
        w = torch.stack(trained[:WITHOUT_TRAIN]).mean(0)
        torch.testing.assert_close(server.state.server["w"], w, rtol=1e-4, atol=1e-5)
        for i, client in enumerate(clients):
            for scope, parameters in (("global", server.state.server["w"]), ("trained", trained[i])):
                now = client.counts(module_of(server, parameters))
                np.testing.assert_array_equal(server.state.scores[scope][i], now, err_msg=f"{scope} {i}")


def test_what_all_nodes_need_is_refused_before_the_first_round(start: Start, places: dict[str, Keys]) -> None:
    adafgl = {"algorithm.name": "adafgl", "algorithm.shared_rounds": 1, "model.name": "sgc", "rounds": 2}
    with refused("algorithm.most_nodes", says="client 0 has 30 nodes"):
        start({**places["plain"], **adafgl, "algorithm.most_nodes": NODES - 1})
    server = start({**places["plain"], **adafgl, "algorithm.most_nodes": NODES})
    rounds(server, 2)
    assert server.state.scores["trained"][0][:, 0].sum() == 20


@pytest.mark.parametrize("name", LABELLING)
def test_a_method_that_labels_other_nodes_is_refused(start: Start, places: dict[str, Keys], name: str) -> None:
    keys = {**places["plain"], "algorithm.name": name, "model.name": "gcn"}
    with refused("algorithm.pseudo"):
        start(keys)
    start({**keys, "algorithm.pseudo": 0.0})
    start({**keys, "data.inductive": False})


@pytest.mark.parametrize("name", ["fedavg sgc", "fedgta gamlp", "fedgkc gcn", "fedproto sage"])
def test_a_client_without_training_changes_nothing(start: Start, places: Any, tmp_path: Path, name: str) -> None:
    np.save(
        tmp_path / "online.npy", np.stack([np.ones(CLIENTS), np.arange(CLIENTS) == WITHOUT_TRAIN, np.ones(CLIENTS)])
    )
    keys = {**METHODS[name], **places["plain"], "participation.trace": str(tmp_path / "online.npy")}
    server = start({**keys, "participation.ratio": 1.0})
    server.round()
    before = dict(server.state.server)
    line = server.round()
    assert (line["cohort"], line["loss"]) == ([WITHOUT_TRAIN], None)
    assert all(torch.equal(server.state.server[key], t) for key, t in before.items() if key != "warm")
    assert server.round()["loss"] is not None
    assert server.state.scores["deployed"][WITHOUT_TRAIN][:, 0].sum() == 20


@pytest.mark.parametrize("more", [{"data.layout": "sparse"}, {"propagation.rows": "labelled"}, {"propagation.hops": 0}])
def test_every_form_of_a_store(start: Start, places: Any, arrays: Any, tmp_path: Path, more: Keys) -> None:
    own = {"data.store": str(tmp_path / "store"), "model.name": "sgc" if "propagation.rows" in more else "gcn"}
    if "data.layout" in more:
        np.savez(tmp_path / "graph.npz", **arrays)
        own["data.path"] = str(tmp_path / "graph.npz")
    server = start({**places["plain"], **own, **more})
    expected = start({**places["plain"], "model.name": own["model.name"]})
    losses = rounds(server), rounds(expected)
    # Sparse features are summed in another order; every training node has a label.
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_domains_are_scored_whole(start: Start, three_domains: Any, tmp_path: Path) -> None:
    own = {"data.store": str(tmp_path / "store"), "data.inductive": True}
    server = start({**three_domains.keys, **own, "algorithm.name": "fedavg"})
    rounds(server, 2)
    scored = server.state.scores["domains"]
    for number, graph in enumerate(three_domains.graphs):
        asked = [int((graph.split == part).sum()) for part in (VAL, TEST)]
        assert scored[5 + number][:2, 0].sum(1).tolist() == asked
    assert [info.nodes for info in server.infos] == [info.train for info in server.infos]
