"""What FedGKC promises beside its equations: cohorts of one, switches, clients that lack something, wrong options."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms.client import Client
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

GKC = {"algorithm.name": "fedgkc", "algorithm.copilot": {"name": "gcn", "hidden": 8}}
OFF = {**GKC, "algorithm.alpha": 1.0, "algorithm.beta": 0.0, "algorithm.self_distillation": False}
MODELS = [
    {"name": "gamlp", "hidden": 8},
    {"name": "gcn", "hidden": 8, "init": "own"},
    {"name": "gat", "hidden": 8, "heads": 2},
    {"name": "gin", "hidden": 8},
    {"name": "gcnii", "hidden": 8},
    {"name": "sgc"},
]
SEVERAL = {"model": MODELS, "heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8, "train.dropout": 0.3}
Run = Callable[..., Server]


def weights(server: Server, name: str = MODEL) -> list[torch.Tensor]:
    return [kept[f"{name}.w"] for _, kept in sorted(server.state.clients.items())]


@pytest.fixture
def alone(tmp_path: Any) -> dict[str, Any]:
    """Keys: client 2 is the whole cohort of the first two rounds, client 5, without a training row, of the third."""
    trace = np.zeros((3, 6), dtype=bool)
    trace[[0, 1, 2], [2, 2, 5]] = True
    np.save(tmp_path / "online.npy", trace)
    return {"participation.trace": str(tmp_path / "online.npy")}


@pytest.mark.parametrize("weighting", ["kama", "size", "uniform"])
def test_the_copilot_of_a_cohort_of_one_comes_back_exactly(
    start: Callable[..., Server], alone: dict[str, Any], weighting: str
) -> None:
    server = start({**GKC, **alone, "algorithm.weights": weighting})
    for client in (2, 2, 5):
        server.round()
        assert torch.equal(server.state.server["w"], server.state.clients[client]["copilot.w"])


@pytest.mark.parametrize("batch", [None, 4])
def test_labels_alone_are_local_to_the_bit(run: Run, batch: int | None) -> None:
    keys = {**SEVERAL, "train.batch_size": batch}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"}, rounds=3)
    found = run({**keys, **OFF}, rounds=3)
    for mine, other in zip(weights(found), weights(local), strict=True):
        assert torch.equal(mine, other)
    # Copilots were trained and averaged all the same.
    assert not torch.equal(found.state.server["w"], found.state.clients[0]["copilot.w"])
    nothing = run({**keys, **OFF, "algorithm.mutual": "none"}, rounds=3)
    for mine, other in zip(weights(nothing), weights(local), strict=True):
        assert torch.equal(mine, other)


def test_what_rounding_leaves_of_a_weight_is_no_weight(run: Run) -> None:
    # 1 - 0.8 - 0.2 is not 0 in floating point.
    keys = {**SEVERAL, **GKC, "algorithm.self_distillation": False, "algorithm.mutual": "scores"}
    found = run({**keys, "algorithm.alpha": 0.8, "algorithm.beta": 0.2}, rounds=2)
    untrained = found.job.initial(found._built[MODEL][5], MODEL, 5)
    assert torch.equal(weights(found)[5], untrained)


def test_a_client_without_training_rows_is_taught(run: Run) -> None:
    keys = {**SEVERAL, **GKC, "algorithm.self_distillation": False}
    found = run(keys, rounds=2)
    for name in (MODEL, "copilot"):
        initial = found.job.initial(found._built[name][-1], name, 5)
        assert not torch.equal(weights(found, name)[5], initial)
    by_labels = run({**SEVERAL, **OFF}, rounds=2)
    assert torch.equal(weights(by_labels)[5], by_labels.job.initial(by_labels._built[MODEL][5], MODEL, 5))


def test_a_resumed_run_goes_on_to_the_bit(start: Callable[..., Server], run: Run) -> None:
    keys = {**SEVERAL, **GKC, "participation.ratio": 0.5, "algorithm.ramp": 3}
    resumed = start(keys, state=run(keys, rounds=3).state)
    resumed.round()
    whole = run(keys, rounds=4)
    assert torch.equal(resumed.state.server["w"], whole.state.server["w"])
    for name in (MODEL, "copilot"):
        for mine, other in zip(weights(resumed, name), weights(whole, name), strict=True):
            assert torch.equal(mine, other)


@pytest.fixture
def papers(make_view: Callable[..., View]) -> View:
    """A hundred papers of four topics, 300 words, each paper with a few; it cites papers of its topic."""
    rng, nodes, words, topics = np.random.default_rng(0), 100, 300, 4
    y = rng.integers(topics, size=nodes)
    of_topic = rng.random((topics, words)) < 0.1
    x = rng.random((nodes, words)) < np.where(of_topic[y], 0.08, 0.02)
    source, target = rng.integers(nodes, size=(2, 6 * nodes))
    cites = ((y[source] == y[target]) | (rng.random(6 * nodes) < 0.1)) & (source != target)
    edges = np.stack([source, target], axis=1)[cites]
    return make_view(nodes, edges, y, np.arange(nodes // 5), topics, x.astype(np.float32))


def test_embeddings_stay_bounded(papers: View, make_client: Callable[..., Client]) -> None:
    """Raw distances let them grow for as long as a client trains; rows of length one have nothing to grow for."""
    spread = {}
    for mse in ("unit", "raw"):
        torch.manual_seed(0)
        method = load(describe("fedgkc", {"mutual": "none", "self_mse": mse}))
        client = make_client(papers, build("gcn", 300, 4, 0, 0.5, {"hidden": 16}))
        trainer = LocalTrainer({MODEL: client.model.flat}, TrainOptions(), method)
        for number in range(1, 61):
            client.random = client.model.random = partial(key, 0, number, 0)
            method.train(client, method.receive(client, {}), trainer, "train")
        (out,) = client.model.outputs()
        spread[mse] = float(out.embedding_NH.std())
    assert spread["unit"] < 2
    assert spread["raw"] > 10


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algorithm.copilot": {"name": "gcn", "hidden": 16}}, r"algorithm\.copilot: its embedding is 16 wide.* 8;"),
        ({"algorithm.copilot": {"name": "gpt"}}, "there is no 'gpt'"),
        (
            {"algorithm.copilot": {"name": "gcn", "pretrained": "gnn"}},
            r"models\(\)\['copilot'\]: pretrained is for the model of the config",
        ),
        ({"algorithm.copilot": {"hidden": 8}}, r"models\(\)\['copilot'\]: give a word and a mapping with a `name`"),
        ({"algorithm.copilot": 3}, r"algorithm\.copilot"),
        ({"algorithm.alpha": 0.9, "algorithm.beta": 0.2}, "alpha and beta .* at most 1"),
        ({"algorithm.alpha": -0.1}, "alpha and beta must not be negative"),
        ({"algorithm.beta": -0.1}, "alpha and beta must not be negative"),
        (
            {"algorithm.alpha": 0.0, "algorithm.mutual": "none", "algorithm.self_distillation": False},
            "alpha must be positive where there is neither mutual nor self distillation",
        ),
        ({"algorithm.lam": -0.1}, "lam and ramp must not be negative"),
        ({"algorithm.ramp": -1}, "lam and ramp must not be negative"),
        ({"algorithm.weak": [0.1, 1.0]}, "weak and strong must be two shares each"),
        ({"algorithm.strong": [-0.1, 0.5]}, "weak and strong must be two shares each"),
        ({"algorithm.strong": [0.1]}, r"algorithm\.strong"),
        ({"algorithm.kama_terms": []}, "kama_terms must name at least one term"),
        ({"algorithm.kama_terms": ["strength", "strength"]}, "kama_terms must name at least one term, and each once"),
        ({"algorithm.kama_terms": ["courage"]}, r"algorithm\.kama_terms"),
        ({"train.batch_size": 4}, r"train\.batch_size: models that teach each other"),
        ({"model": {"name": "gcn", "hidden": 8, "fanouts": [2, 2]}}, r"model\.fanouts: models that teach each other"),
        ({"propagation.rows": "labelled", "data.store": "labelled"}, r"propagation\.rows: labelled leaves a client"),
    ],
)
def test_wrong_options(run: Run, keys: dict[str, Any], message: str, tmp_path: Any) -> None:
    if "data.store" in keys:
        keys = {**keys, "data.store": str(tmp_path / "store")}
    with pytest.raises(ShoalError, match=message):
        run({**GKC, **keys}, rounds=1)


def test_without_self_distillation_labelled_rows_will_do(run: Run, tmp_path: Any) -> None:
    """What the line about them advises."""
    keys = {"propagation.rows": "labelled", "data.store": str(tmp_path / "store")}
    run({**GKC, **keys, "algorithm.self_distillation": False}, rounds=1)


def test_a_copilot_of_another_width_is_fine_where_no_embedding_is_compared(run: Run) -> None:
    run({**GKC, "algorithm.copilot": {"name": "sgc", "layers": 2, "hidden": 3}, "algorithm.beta": 0.0}, rounds=1)


def test_options_of_a_config() -> None:
    method = load(describe("fedgkc", {"weak": [0.2, 0.3], "kama_terms": ["clarity"]}))
    assert (method.weak, method.kama_terms) == ((0.2, 0.3), ("clarity",))
