"""A client's model where items are graphs: every way to ask it gives the same answer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.fixtures import Make, Views

from shoal.algorithms import client as module_under_test
from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key

every_model = pytest.mark.parametrize("name", ["gcn", "gamlp"])


@pytest.fixture
def client_of(start: Make, views: Views, graph_task: dict[str, Any]) -> Callable[[str], Client]:
    view = views(start(graph_task))[0]

    def client_of(name: str) -> Client:
        torch.manual_seed(0)
        own = FlatModel(build(name, 5, 4, 2, 0.5, {"hidden": 8}, task="graph"))
        random = partial(key, 0, 1, 0)
        info = ClientInfo(0, view.nodes, len(view.train), 4, graphs=view.items)
        return Client(info, view, {MODEL: ClientModel(own, view, random)}, {}, {}, random)

    return client_of


@every_model
def test_all_and_parts(client_of: Callable[[str], Client], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(name)
    model, data = client.model, client.data
    parts = {part: model.logits_of(part) for part in ("train", "val", "test")}
    assert sum(map(len, parts.values())) == 14
    whole = model.logits()
    assert whole.shape == (14, 4)
    assert not model.module.training
    for part, logits in parts.items():
        torch.testing.assert_close(logits, whole[getattr(data, part)])
        assert torch.equal(model.logits_of(part), whole[getattr(data, part)])
        out = model.output(model.gathered(part))
        torch.testing.assert_close(out.logits_NC, logits)
        assert out.embedding_NH.shape == (len(logits), 8)
    torch.testing.assert_close(model.output(model.gathered("all")).logits_NC, whole)
    monkeypatch.setattr(module_under_test, "ROWS_AT_A_TIME", 9)
    outputs = list(model.outputs())
    assert len(outputs) > 4 if name == "gamlp" else len(outputs) == 1
    torch.testing.assert_close(torch.cat([out.logits_NC for out in outputs]), whole)
    torch.testing.assert_close(torch.cat([out.embedding_NH for out in outputs]), model.output(model.gathered("all"))[1])


@every_model
def test_forward_has_gradients(client_of: Callable[[str], Client], name: str) -> None:
    client = client_of(name)
    chosen = client.data.train[[2, 0]]
    whole = client.model.logits()
    forward = client.model.forward(chosen)
    out = forward()
    torch.testing.assert_close(out.logits_NC, whole[chosen])
    out.logits_NC.sum().backward()
    assert bool(client.model.flat.w.grad.any())


@every_model
def test_a_lone_node_is_a_graph_for_itself(client_of: Callable[[str], Client], name: str) -> None:
    model = client_of(name).model
    x = torch.randn(3, 5)
    out = model.output(model.standalone(x))
    assert out.logits_NC.shape == (3, 4)
    alone = torch.cat([model.output(model.standalone(row[None])).logits_NC for row in x])
    torch.testing.assert_close(out.logits_NC, alone)
