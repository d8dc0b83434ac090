"""FedPG of clients of small graphs: its controls to the bit, and clients and classes that lack something."""

from typing import Any

import pytest
import torch
from support.fixtures import Start
from support.same_bits import assert_same_scores, assert_same_trees
from support.small_graphs import CLASSES, ONE_GRAPH, WITHOUT_TRAIN

from shoal.engine.rounds.state import FederationState

PG = {"algorithm.name": "fedpg", "algorithm.similar": 2, "model.hidden": 8, "train.dropout": 0.5}
ATTENTIVE = {"algorithm.attention": "node", "algorithm.alignment": "prototype", "algorithm.noise": 0.1}
every_model = pytest.mark.parametrize("model", ["gin", "gamlp"])


@every_model
def test_without_alignment_it_is_local_to_the_last_bit(run: Start, graph_task: dict[str, Any], model: str) -> None:
    keys = {**graph_task, **PG, "model.name": model, "train.batch_size": 3, "participation.ratio": 0.7}
    local = run({**{k: v for k, v in keys.items() if k != "algorithm.similar"}, "algorithm.name": "local"})
    alone = run({**keys, "algorithm.mu": 0})
    assert_same_trees(local.state.clients, alone.state.clients)
    assert_same_scores(local, alone, "trained", "served")
    aligned = run(keys)
    assert not torch.equal(aligned.state.clients[0]["model.w"], local.state.clients[0]["model.w"])


def test_what_clients_lack(run: Start, graph_task: dict[str, Any]) -> None:
    """One graph has no neighbour, no training graph no prototype; nobody trains on classes 2 and 3."""
    held = run({**graph_task, **PG}, rounds=2).state.server
    assert held["present"][ONE_GRAPH].any(1).tolist() == [True, False, False]
    assert held["counts"][ONE_GRAPH].sum() == 1
    assert not held["present"][WITHOUT_TRAIN].any()
    assert not held["counts"][WITHOUT_TRAIN].any()
    assert held["known"].tolist() == [[True, True, False, False]] * 3
    assert torch.equal(held["proto"][~held["present"]], torch.zeros(int((~held["present"]).sum()), 8))


@pytest.mark.parametrize("options", [{}, ATTENTIVE])
def test_cells_and_a_resumed_run_change_nothing(
    start: Start, graph_task: dict[str, Any], options: dict[str, Any]
) -> None:
    keys = {**graph_task, **PG, **options, "participation.ratio": 0.7}
    undisturbed, first = start(keys), start({**keys, "engine.cell_size": 1})
    for _ in range(2):
        first.round()
    state = FederationState.from_tensors(*first.state.to_tensors())
    second = start({**keys, "engine.cell_size": 4}, state=state)
    for _ in range(3):
        second.round()
    for _ in range(5):
        undisturbed.round()
    assert_same_trees({0: undisturbed.state.to_tensors()[0]}, {0: second.state.to_tensors()[0]})


def test_graph_task_with_heterogeneous_models_runs(run: Start, graph_task: dict[str, Any]) -> None:
    models = [{"name": "gin", "hidden": 8}, {"name": "gamlp", "hidden": 12}, {"name": "sage", "hidden": 8}]
    keys = {name: value for name, value in {**graph_task, **PG}.items() if not name.startswith("model.")}
    server = run({**keys, "model": models, "heterogeneity.rule": "round-robin"}, rounds=3)
    assert server.state.server["proto"].shape == (6, 3, CLASSES, 8)
    assert all(bool(torch.isfinite(t).all()) for kept in server.state.clients.values() for t in kept.values())
