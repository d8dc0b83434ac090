"""Rounds in which nodes are hidden against rounds written out, and the bound against all graphs of six nodes."""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from support.errors import refused
from support.small_runs import small_run

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.decoupled.fixed_hops import SGC
from shoal.algorithms.rng import key
from shoal.algorithms.training.clipped_rows import ClippedRows
from shoal.engine.config.config import Config, parse_config
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.stages.privacy.node_privacy import epsilon_of_node, moved_by, noise_of_node, require_small_delta
from shoal.past.ledger import OF_ROWS, ledger
from shoal.storage.graph.propagation import hops as hops_of
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.view import Cache

Start = Callable[..., Server]
LR, CLIP, NODES = 0.5, 0.3, 6
PLAIN = {"model.name": "sgc", "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 2}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "propagation.max_degree": 3, "propagation.r": 0.0}
HIDDEN = {"privacy.unit": "node", "privacy.noise": 2.0, "privacy.clip": CLIP}
PAIRS = list(combinations(range(NODES), 2))


@lru_cache
def graphs_of(most: int) -> list[np.ndarray]:
    """All graphs of six nodes of which none has more than `most` edges, as adjacency matrices."""
    found = []
    for edges in product((0, 1), repeat=len(PAIRS)):
        adjacency = np.zeros((NODES, NODES))
        adjacency[tuple(np.array(PAIRS).T)] = edges
        adjacency += adjacency.T
        if adjacency.sum(0).max() <= most:
            found.append(adjacency)
    return found


def last_hop(adjacency: np.ndarray, x: np.ndarray, hops: int, r: float, most: int) -> np.ndarray:
    indptr = np.append(0, adjacency.sum(1).cumsum()).astype(np.int64)
    indices = np.nonzero(adjacency)[1].astype(np.int32)
    return np.asarray(hops_of(indptr, indices, x, PropagationOptions(hops, r, max_degree=most))[-1])


@pytest.mark.parametrize(
    ("most", "hops", "r", "tight"),
    [(2, 1, 0.0, True), (2, 2, 0.0, False), (1, 2, 0.0, True), (2, 1, 0.5, False), (1, 1, 0.5, True)],
)
def test_no_node_of_any_graph_of_six_moves_more_rows(most: int, hops: int, r: float, tight: bool) -> None:
    """The first node replaced, features and edges: nodes are numbered in all ways among the graphs."""
    rng = np.random.default_rng(0)
    x, other = (rng.standard_normal((NODES, 2)).astype(np.float32) for _ in range(2))
    other[1:] = x[1:]
    by_rest: dict[bytes, list[np.ndarray]] = {}
    for adjacency in graphs_of(most):
        here = [last_hop(adjacency, of, hops, r, most) for of in (x, other)]
        by_rest.setdefault(adjacency[1:, 1:].tobytes(), []).append(np.stack(here))
    worst = 0
    for of_rest in by_rest.values():
        before, after = np.stack(of_rest)[:, 0], np.stack(of_rest)[:, 1]
        moved = (before[:, None] != after[None]).any(3).sum(2)
        worst = max(worst, int(moved.max()))
    assert 2 * worst <= moved_by(most, hops, r)
    assert not tight or 2 * worst == moved_by(most, hops, r)
    # One step further where degrees divide what a node sends.
    assert r == 0 or most == 1 or 2 * worst > moved_by(most, hops, 0.0)


def test_released_sums_of_all_graphs_of_six_stay_within_the_bound() -> None:
    """Clipped sums before and after one node is replaced with its label, on each graph of at most one edge a node."""
    rng = np.random.default_rng(1)
    model = FlatModel(SGC(2, 3, 1, 0.0))
    form, x = ClippedRows(model, CLIP, 0.0), 10 * rng.standard_normal((NODES, 2)).astype(np.float32)
    label, worst = torch.tensor([0, 1, 2, 0, 1, 2]), 0.0

    def clipped_sum(adjacency: np.ndarray, of: np.ndarray, label: torch.Tensor) -> np.ndarray:
        form.gradient([torch.from_numpy(last_hop(adjacency, of, 1, 0.0, 1))], label)
        assert model.w.grad is not None
        return model.w.grad.numpy().astype(np.float64) * NODES

    for node in range(NODES):
        other, another = x.copy(), label.clone()
        other[node], another[node] = -x[node], (label[node] + 1) % 3
        by_rest: dict[bytes, list[list[np.ndarray]]] = {}
        for adjacency in graphs_of(1):
            rest = np.delete(np.delete(adjacency, node, 0), node, 1).tobytes()
            sums = [clipped_sum(adjacency, x, label), clipped_sum(adjacency, other, another)]
            by_rest.setdefault(rest, []).append(sums)
        for of_rest in by_rest.values():
            for one, two in product(of_rest, of_rest):
                worst = max(worst, float(np.linalg.norm(one[0] - two[1])))
    assert 2 * CLIP < worst <= moved_by(1, 1, 0.0) * CLIP * (1 + 1e-6)


def written_out(server: Server, number: int, client: int, w: np.ndarray, noise: float) -> tuple[np.ndarray, int, int]:
    """Two steps of softmax regression on the last hop with clipped rows; size, and how many rows were clipped."""
    job = server.job
    view = job.view(job.open_store(), client, Cache(0))
    x, y, classes = view.rows(2, view.train).double().numpy(), view.label[view.train].numpy(), int(view.classes)
    rng = torch.Generator().manual_seed(key(job.seed, number, client, "train"))
    clipped = 0
    for _ in range(2 * bool(len(y))):
        weight, bias = w[:-classes].reshape(classes, -1), w[-classes:]
        score = np.exp(x @ weight.T + bias)
        apart = score / score.sum(1, keepdims=True) - np.eye(classes)[y]
        rows = np.concatenate([np.einsum("nc,nf->ncf", apart, x).reshape(len(y), -1), apart], 1)
        length = np.linalg.norm(rows, axis=1)
        clipped += int((length > CLIP).sum())
        total = (rows * np.minimum(1, CLIP / length)[:, None]).sum(0)
        if noise:
            drawn = [torch.randn(shape, generator=rng).reshape(-1) for shape in (weight.shape, bias.shape)]
            total = total + noise * CLIP * torch.cat(drawn).double().numpy()
        w = w - LR * total / len(y)
    return w, view.nodes if len(y) else 0, clipped


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_rounds_of_fedavg_with_clipped_rows_and_noise(start: Start, noise: float) -> None:
    server = start({**PLAIN, **HIDDEN, "privacy.noise": noise, "propagation.hops": 2, "participation.count": 4})
    w, clipped = server.state.server["w"].numpy().astype(np.float64), 0
    for number in (1, 2, 3):
        total, sizes = np.zeros(len(w)), 0
        for client in server.cohort(number):
            after, size, of_client = written_out(server, number, client, w, noise)
            total, sizes, clipped = total + size * after, sizes + size, clipped + of_client
        w = total / sizes
        server.round()
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)
    assert clipped


@pytest.mark.parametrize("model", ["sgc", "mlp", "s2gc", "gbp", "sign", "gamlp"])
def test_no_clip_and_no_noise_are_the_plain_run_to_rounding(start: Start, model: str) -> None:
    """With dropout and weight decay: sums of rows are in another order."""
    keys = {"model.name": model, "train.dropout": 0.5, "train.optimizer": "sgd", "engine.trainer": "autograd"}
    keys |= {} if model == "mlp" else {"propagation.max_degree": 2}
    plain = start(keys)
    hidden = start({**keys, "privacy.unit": "node", "privacy.noise": 0.0, "privacy.clip": None})
    for _ in range(3):
        plain.round()
        hidden.round()
    assert torch.allclose(plain.state.server["w"], hidden.state.server["w"], rtol=0, atol=2e-6)


def test_noise_has_the_deviation_that_is_accounted() -> None:
    model = FlatModel(SGC(400, 250, 0, 0.0))
    form = ClippedRows(model, 0.5, 3.0)
    torch.manual_seed(0)
    form.gradient([torch.zeros(4, 400)], torch.tensor([0, 1, 2, 3]))
    assert model.w.grad is not None
    noise = model.w.grad[: 400 * 250]
    assert abs(float(noise.std()) / (3.0 * 0.5 / 4) - 1) < 5 / math.sqrt(2 * len(noise))
    assert abs(float(noise.mean())) < 5 * 3.0 * 0.5 / 4 / math.sqrt(len(noise))


def test_epsilon_is_that_of_the_gaussian_mechanism(make_config: Callable[..., Config]) -> None:
    """Exact: Balle and Wang, ICML 2018, theorem 8; the library's, by Renyi divergence, is at most a fifth above."""
    config = make_config(
        privacy__unit="node", privacy__noise=300.0, model__name="sgc", propagation__max_degree=3, train__epochs=2
    )
    # Two hops and one more, for what a node sends is divided by its degree: 3, 6 and 12 nodes around it.
    apart, delta = (2 + 4 * (3 + 6 + 12)) / 300 * math.sqrt(2 * 20), 1e-5

    def gap(epsilon: float) -> float:
        upper = norm.cdf(apart / 2 - epsilon / apart) - math.exp(epsilon) * norm.cdf(-apart / 2 - epsilon / apart)
        return float(upper) - delta

    exact = brentq(gap, 1e-6, 200)
    assert exact <= epsilon_of_node(config, 20) <= 1.2 * exact
    asked = make_config(
        privacy__unit="node", privacy__epsilon=2.0, model__name="sgc", propagation__max_degree=3, train__epochs=2
    )
    assert 1.98 < epsilon_of_node(asked, asked.rounds) <= 2.0
    assert noise_of_node(make_config(privacy__unit="node", privacy__noise=7.0, model__name="mlp")) == 7.0


def test_what_has_no_bound_is_refused_before_data_is_read(make_config: Callable[..., Config]) -> None:
    def plan(without: str = "", **keys: Any) -> RunPlan:
        usual = {"privacy__unit": "node", "privacy__noise": 1.0, "model__name": "sgc", "propagation__max_degree": 3}
        return RunPlan.of(make_config(**{name: value for name, value in (usual | keys).items() if name != without}))

    degree = "propagation__max_degree"
    for place, says, without, keys in (
        ("privacy.noise", "give either", "privacy__noise", {}),
        ("privacy.clip", "found null", "", {"privacy__clip": None}),
        ("model", "take one of mlp, gamlp", degree, {"model__name": "gcn"}),
        ("algorithm.name", "fedgta trains, or sends", "", {"algorithm__name": "fedgta"}),
        ("algorithm.name", "fedprox trains, or sends", "", {"algorithm__name": "fedprox"}),
        ("train.batch_size", "take null", "", {"train__batch_size": 8}),
        ("engine.trainer", "take auto", "", {"engine__trainer": "batched"}),
        ("participation.selection", "take random", "", {"participation__selection": "loss", "participation__count": 2}),
        ("propagation.max_degree", "set a small number", degree, {}),
    ):
        with refused(place, says=says):
            plan(without, **keys)
    plan()


def test_a_delta_that_means_nothing_is_refused(start: Start, make_config: Callable[..., Config]) -> None:
    """All clients have 30 nodes; of a block model of 400 nodes five have 80 in the mean."""
    for delta in (0.5, 1 / 30):
        with refused("privacy.delta", says=f"{delta:g} lets client 0 publish one of its 30 nodes; take less than 1/30"):
            start({**PLAIN, **HIDDEN, "privacy.delta": delta})
    start({**PLAIN, **HIDDEN, "privacy.delta": 0.99 / 30})
    keys: dict[str, Any] = {"privacy__unit": "node", "privacy__noise": 9.0, "model__name": "mlp"}
    keys["engine__backend"] = "local"
    with refused("privacy.delta", says="one of its 80 nodes"):
        expected(RunPlan.of(make_config(**keys, privacy__delta=1 / 80)))
    expected(RunPlan.of(make_config(**keys, privacy__delta=1 / 81)))
    sizes = [3, 50, 7]
    with refused("privacy.delta", says="client 1 publish one of its 50 nodes"):
        require_small_delta(make_config(**keys, privacy__delta=0.02), sizes)
    of_clients = {"privacy__unit": "client", "privacy__noise": 9.0}
    require_small_delta(make_config(**of_clients, privacy__delta=0.1), sizes)


def test_bound_is_shown_with_its_unit(make_config: Callable[..., Config]) -> None:
    keys: dict[str, Any] = {"privacy__unit": "node", "privacy__noise": 90.0, "model__name": "sgc"}
    config = make_config(engine__backend="local", propagation__max_degree=3, **keys)
    shown = expected(RunPlan.of(config)).rows["privacy"]
    assert shown == (
        f"epsilon {epsilon_of_node(config, config.rounds):.3g} of one node of a client (features, label and edges "
        "replaced, among graphs of degree 3), delta 1e-05; noise 90, clip 1.0"
    )


def test_ledger_counts_steps_of_nodes(tmp_path: Path) -> None:
    keys = {"participation": {"ratio": 0.5}, "rounds": 3, "privacy": {"unit": "node", "noise": 90.0}}
    keys |= {"propagation": {"hops": 1, "max_degree": 2}}
    config = parse_config(small_run(tmp_path, **keys), "a small run")
    found = ledger(run(config))
    assert [says for _, says in found.sent] == [OF_ROWS]
    assert found.epsilons == {number: epsilon_of_node(config, number) for number in (1, 2, 3)}
    assert found.tables()["epsilon"].heads[1] == "epsilon of a node"
