from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from algorithms import client_model as module_under_test
from algorithms.backbones import build
from algorithms.client import Client, ClientInfo
from algorithms.client_model import ClientModel
from algorithms.flat_model import FlatModel
from algorithms.protocol import MODEL
from storage.view import View


@pytest.fixture
def client(views: Callable[..., list[View]]) -> Client:
    view = views()[0]
    torch.manual_seed(0)
    module = build("gamlp", 5, 4, 2, 0.5, {"hidden": 8})
    model = ClientModel(FlatModel(module), view, hash)
    return Client(ClientInfo(0, view.nodes, len(view.train), 4), view, {MODEL: model}, {}, {}, hash)


def test_logits_are_those_of_the_module_without_dropout(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.model.module.train()
    whole = client.model.logits()
    client.model.module.eval()
    with torch.no_grad():
        expected = client.model.module([client.data.hop(k) for k in range(3)]).logits_NC
    assert torch.equal(whole, expected)
    monkeypatch.setattr(module_under_test, "ROWS_AT_A_TIME", 7)
    client.model.changed()
    torch.testing.assert_close(client.model.logits(), expected)


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_logits_of_a_part_are_rows_of_all(client: Client, part: str) -> None:
    alone = client.model.logits_of(part)
    torch.testing.assert_close(alone, client.model.logits()[getattr(client.data, part)])
    torch.testing.assert_close(client.model.logits_of(part), alone)


def test_logits_follow_the_parameters(client: Client) -> None:
    before = client.model.logits()
    client.model.load(client.model.w * 0)
    assert torch.equal(client.model.logits(), torch.zeros_like(before))
    with torch.no_grad():
        client.model.w.add_(0.1)
    client.model.changed()
    assert not torch.equal(client.model.logits(), torch.zeros_like(before))


def test_half_precision_hops_are_widened(make_view: Callable[..., View], make_client: Callable[..., Client]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float16)
    client = make_client(make_view(6, [], [0] * 6, [1, 4], 2, x), build("mlp", 4, 2, 0, 0.0, {}))
    (rows,) = client.model.gathered("train")
    assert torch.equal(rows, torch.from_numpy(x[[1, 4]]).float())
    assert client.model.logits().dtype == torch.float32


def test_random_streams_differ_by_purpose(make_view: Callable[..., View], make_client: Callable[..., Client]) -> None:
    visits = [make_client(make_view(2, [], [0, 0], [0], 2), nn.Linear(2, 2), number) for number in (1, 1, 2)]
    draws = {
        (visit, purpose): torch.rand(3, generator=visits[visit].rng(purpose)).tolist()
        for visit in range(3)
        for purpose in ("sketch", "negatives")
    }
    assert draws[0, "sketch"] == draws[1, "sketch"]
    assert len({tuple(draw) for draw in draws.values()}) == 4
