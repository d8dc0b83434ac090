from collections.abc import Callable
from functools import partial

import pytest
import torch

from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel, random_of
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.storage.store.view import View

random = partial(key, 0, 1, 0)


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    return make_view(4, [], [0, 1, 0, 1], [0, 1], 2)


def module(hidden: int = 3) -> torch.nn.Module:
    return build("mlp", 4, 2, 0, 0.5, {"hidden": hidden})


def test_random_streams_differ_by_purpose(view: View, make_client: Callable[..., Client]) -> None:
    visits = [make_client(view, module(), number) for number in (1, 1, 2)]
    draws = {
        (visit, purpose): torch.rand(3, generator=visits[visit].rng(purpose)).tolist()
        for visit in range(3)
        for purpose in ("sketch", "negatives")
    }
    assert draws[0, "sketch"] == draws[1, "sketch"]
    assert len({tuple(draw) for draw in draws.values()}) == 4
    expected = torch.rand(3, generator=torch.Generator().manual_seed(key(0, 2, 0, "sketch")))
    assert draws[2, "sketch"] == expected.tolist()


def test_the_config_s_model_is_the_one_without_a_name(view: View) -> None:
    models = {name: ClientModel(FlatModel(module(size)), view, random) for name, size in (("a", 2), (MODEL, 3))}
    client = Client(ClientInfo(0, 4, 2, 2), view, models, {}, {}, random)
    assert client.model is models["model"]
    assert client.info.model == 0


def test_named_models_draw_from_streams_of_their_own() -> None:
    purposes = ("train", "neighbours")
    seeds = {(name, p): random_of(random, name)(p) for name in (MODEL, "copilot", "teacher") for p in purposes}
    assert len(set(seeds.values())) == 6
    # The model without a name draws as it does in a method of one model.
    assert [seeds[MODEL, p] for p in purposes] == [random(p) for p in purposes]
    assert seeds["copilot", "train"] == random("copilot/train")
