"""Whole rounds of models with a prompt over clients of small graphs."""

from typing import Any

import torch
from support.fixtures import Start, Views
from support.small_graphs import CLASSES, FEATURES, OF_CLIENT, WITHOUT_TRAIN

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.items.client_graphs import ClientGraphs

VPG = {"name": "transformer", "hidden": 8, "prompt": {"name": "vpg", "candidates": 2, "nodes": 0.7}}


def test_a_round_is_gradient_descent_by_autograd(start: Start, views: Views, graph_task: dict[str, Any]) -> None:
    """Prompt, GNN and classifier of every client take one step together, and FedAvg averages all three."""
    keys = {key: value for key, value in graph_task.items() if key != "model.name"}
    step = {"train.optimizer": "sgd", "train.lr": 0.5, "train.epochs": 1, "train.dropout": 0.0}
    server = start({**keys, **step, "train.weight_decay": 0.0, "model": VPG, "rounds": 1})
    w = server.state.server["w"].clone()
    mean, count = torch.zeros_like(w), sum(OF_CLIENT) - OF_CLIENT[WITHOUT_TRAIN]
    options = {key: value for key, value in VPG.items() if key != "name"}
    for number, view in enumerate(views(server)):
        if number == WITHOUT_TRAIN:
            continue
        flat = FlatModel(build("transformer", FEATURES, CLASSES, 0, 0.0, options, task="graph"))
        flat.load(w)
        graphs = ClientGraphs(view, view.graph_ptr, flat.inputs, flat.coupled, flat.prompted)
        logits = flat(graphs.some(view.train)).logits_NC
        torch.nn.functional.cross_entropy(logits, view.label[view.train]).backward()
        mean += OF_CLIENT[number] / count * (flat.w.detach() - 0.5 * flat.w.grad)
    server.round()
    trained = server.state.server["w"]
    torch.testing.assert_close(trained, mean, rtol=1e-4, atol=1e-5)
    prompt = 3 * FEATURES
    assert (trained[:FEATURES] != w[:FEATURES]).all()
    assert not torch.equal(trained[FEATURES:prompt], w[FEATURES:prompt])
