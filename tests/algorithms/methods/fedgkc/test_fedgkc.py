"""FedGKC in whole rounds against the small version, and what it promises beside its equations."""

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fixtures import Start, Views
from support.small_fedgkc import PlainClient, mixed
from support.written_rounds import cohorts_of, require_mean_loss
from torch import nn

from shoal.algorithms.methods.fedgkc import FedGKC
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.engine.rounds.server import Server

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


def weights(server: Server, name: str = MODEL) -> list[torch.Tensor]:
    return [kept[f"{name}.w"] for _, kept in sorted(server.state.clients.items())]


@pytest.fixture
def alone(tmp_path: Any) -> dict[str, Any]:
    """Keys: client 2 is the whole cohort of the first two rounds, client 5, without a training row, of the third."""
    return cohorts_of(tmp_path, [[2], [2], [5]])


@pytest.mark.parametrize("weighting", ["kama", "size", "uniform"])
def test_the_copilot_of_a_cohort_of_one_comes_back_exactly(start: Start, alone: dict[str, Any], weighting: str) -> None:
    server = start({**GKC, **alone, "algorithm.weights": weighting})
    for client in (2, 2, 5):
        server.round()
        assert torch.equal(server.state.server["w"], server.state.clients[client]["copilot.w"])


def test_labels_alone_are_local_to_the_bit(run: Start) -> None:
    keys = {**SEVERAL, "train.batch_size": 4}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"}, rounds=2)
    found = run({**keys, **OFF}, rounds=2)
    assert all(map(torch.equal, weights(found), weights(local)))
    # Copilots were trained and averaged all the same.
    assert not torch.equal(found.state.server["w"], found.state.clients[0]["copilot.w"])
    nothing = run({**keys, **OFF, "algorithm.mutual": "none"}, rounds=2)
    assert all(map(torch.equal, weights(nothing), weights(local)))


def test_what_rounding_leaves_of_a_weight_is_no_weight(run: Start) -> None:
    # 1 - 0.8 - 0.2 is not 0 in floating point.
    keys = {**SEVERAL, **GKC, "algorithm.self_distillation": False, "algorithm.mutual": "scores"}
    found = run({**keys, "algorithm.alpha": 0.8, "algorithm.beta": 0.2}, rounds=2)
    untrained = found.job.initial(found._built[MODEL][5], MODEL, 5)
    assert torch.equal(weights(found)[5], untrained)


CLASSES, FEATURES, HOPS = 4, 5, 2
DEFAULTS = asdict(FedGKC())
SGC = {"name": "sgc", "layers": 2, "hidden": 8}
# Every option is somewhere another one than by default.
OPTIONS: dict[str, dict[str, Any]] = {
    "by default": {},
    "as written": {**FedGKC.forms["paper"], "lam": 1.0, "alpha": 0.3, "beta": 0.5, "copilot": SGC},
    "a detached teacher": {"self_mse": "raw", "weak": (0.3, 0.2), "clarity": "margin_mean"},
    "some terms": {"kama_terms": ("strength", "smoothness"), "lam": 0.5, "ramp": 3, "strong": (0.6, 0.7)},
    "clamped": {"kama_terms": ("smoothness",), "self_distillation": False, "copilot": SGC},
    "scores alone": {"mutual": "scores", "weights": "size", "self_distillation": False, "lam": 0.0},
    "read after its step": {"copilot_read": "after", "alpha": 0.2, "weights": "uniform", "self_distillation": False},
    "neighbours alone": {"alpha": 0.4, "beta": 0.6, "weights": "uniform"},
    "no copilot": {"mutual": "none", "alpha": 0.7},
}
WHOLE_MODELS = [{"name": "gamlp", "hidden": 8}, {"name": "gin", "hidden": 8}, {"name": "sgc", "layers": 2, "hidden": 8}]


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize(("name", "state"), [*((name, "keep") for name in OPTIONS), ("by default", "reset")])
def test_rounds(name: str, state: str, start: Start, views: Views, unequal: dict[str, Any]) -> None:
    """Clients of three kinds and of unequal sizes come and go; one, once alone, has no training node."""
    options = SimpleNamespace(**{**DEFAULTS, "copilot": {"name": "gcn", "hidden": 8}, **OPTIONS[name]})
    server = start(
        {**unequal, "algorithm": {"name": "fedgkc", **vars(options)}, "model": WHOLE_MODELS, "train.opt_state": state}
    )

    def module(choice: dict[str, Any], w: torch.Tensor) -> nn.Module:
        more = {key: value for key, value in choice.items() if key != "name"}
        made = build(choice["name"], FEATURES, CLASSES, HOPS, 0.5, more)
        nn.utils.vector_to_parameters(w.clone(), made.parameters())
        return made

    job, kinds = server.job, server._built
    shared = job.initial(kinds["copilot"][0], "copilot", 0) if "copilot" in kinds else None
    clients, of_clients = [], views(server)
    for i, view in enumerate(of_clients):
        own = module(WHOLE_MODELS[i % 3], job.initial(kinds["model"][i % 3], "model", i))
        copilot = nn.Linear(1, 1) if shared is None else module(options.copilot, shared)
        clients.append(PlainClient(i, view, own, copilot, options, state == "reset"))
    seen: set[int] = set()
    negative = False
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        here = [clients[i] for i in cohort]
        ramp = min(number / options.ramp, 1) if options.ramp else 1.0
        losses = {i: clients[i].visit(number, shared, ramp) for i in cohort}
        seen |= {*cohort}
        for i, kept in server.state.clients.items():
            torch.testing.assert_close(kept["model.w"], clients[i].own.w, rtol=1e-4, atol=1e-6)
            assert ("copilot.w" in kept) == (shared is not None)
            if shared is not None:
                torch.testing.assert_close(kept["copilot.w"], clients[i].copilot.w, rtol=1e-4, atol=1e-6)
        if any(clients[i].train for i in cohort):
            require_mean_loss(line, losses, of_clients)
        if shared is None:
            assert (server.state.server, line["bytes_up"], line["bytes_down"]) == ({}, 0, 0)
            continue
        known = [client.knows() for client in here]
        counted = [max(knows, 1e-3) if options.floor else knows for knows in known]
        negative |= min(counted) < 0 < max(counted)
        shared = mixed(here, counted, options.weights)
        torch.testing.assert_close(server.state.server["w"], shared, rtol=1e-4, atol=1e-6)
        if options.weights == "kama":
            assert line["notes"]["knowledge"] == pytest.approx(sum(known) / len(here), rel=1e-4, abs=1e-6)
            assert line["notes"]["clamped"] == pytest.approx(sum(k < 1e-3 for k in known) / len(here))
        p = len(shared)
        up = 4 * p + (12 if options.weights == "kama" else 8)
        assert line["bytes_up"] == len(cohort) * up
        assert line["bytes_down"] == len(cohort) * 4 * (p + bool(options.ramp))
    assert len(seen) == 6
    # Without the floor some copilot has a negative part of its weight.
    assert negative != options.floor or shared is None
