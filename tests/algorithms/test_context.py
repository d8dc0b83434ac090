"""What the server's part knows: sizes of models, which client has which, and streams of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from shoal.algorithms.base import Algorithm, Client, Requests
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.context import Context, ModelInfo
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL, Ask, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.rounds.server import Server

SMALL, LARGE, COPILOT = (ModelInfo(name, {"a": (2, 3), "b": (4,), "slope": ()}, 4) for name in ("gcn", "gin", "sgc"))


def context(round_number: int = 1, **models: Sequence[ModelInfo]) -> Context:
    infos = [ClientInfo(i, 10, 5, 3, model) for i, model in enumerate((1, 0, 1))]
    return Context(
        clients=infos,
        scored=infos,
        classes=3,
        features=4,
        hops=2,
        train=TrainOptions(),
        models=models,
        initial=torch.zeros(1),
        build=lambda name, number: FlatModel(nn.Linear(2, 2)),
        device=torch.device("cpu"),
        round=round_number,
        rounds=5,
        seed=0,
        random=partial(key, 0, round_number, "server"),
    )


def test_parameters_are_counted_over_all_shapes() -> None:
    assert SMALL.parameters == 2 * 3 + 4 + 1
    module = build("gcnii", 5, 3, 0, 0.0, {"hidden": 4})
    info = ModelInfo("gcnii", {name: tuple(p.shape) for name, p in module.named_parameters()}, 8)
    assert info.parameters == sum(p.numel() for p in module.parameters())


def test_a_client_s_kind_is_its_number_in_the_config_s_list() -> None:
    ctx = context(**{MODEL: [SMALL, LARGE], "copilot": [COPILOT]})
    assert [ctx.model_of(i).name for i in range(3)] == ["gin", "gcn", "gin"]
    assert [ctx.model_of(i, "copilot") for i in range(3)] == [COPILOT] * 3


def test_streams_of_the_server_differ_by_purpose_and_round() -> None:
    draws = {
        (number, purpose): torch.rand(3, generator=context(number).rng(purpose)).tolist()
        for number in (1, 2)
        for purpose in ("noise", "graph")
    }
    assert len({tuple(draw) for draw in draws.values()}) == 4
    expected = torch.rand(3, generator=torch.Generator().manual_seed(key(0, 2, "server", "noise")))
    assert draws[2, "noise"] == expected.tolist()


def test_notes_of_two_rounds_are_two() -> None:
    first, second = context(1), context(2)
    first.notes["x"] = 1.0
    assert second.notes == {}


@dataclass(frozen=True)
class Twins(Algorithm):
    """Two models of the kinds that the config gives to a client."""

    client_models = "heterogeneous"

    def models(self) -> Mapping[str, Mapping[str, Any] | None]:
        return {MODEL: None, "twin": None}

    def setup(self, ctx: Context) -> Tree:
        sizes = [[ctx.model_of(i, name).parameters for name in (MODEL, "twin")] for i in range(len(ctx.clients))]
        return {"sizes": torch.tensor(sizes)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        yield Ask("train", {})


def test_a_second_model_of_the_config_is_of_the_client_s_kind(start: Callable[..., Server]) -> None:
    models = [{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 6}, {"name": "mlp", "hidden": 3}]
    keys = {"algorithm.name": f"{__file__}:Twins", "model": models, "heterogeneity.embedding": 8}
    server = start(keys)
    sizes = server.state.server["sizes"].tolist()
    assert [twin for _, twin in sizes] == [own for own, _ in sizes]
    assert len({own for own, _ in sizes}) == 3


@dataclass(frozen=True)
class Builder(Algorithm):
    """Notes the models that the server builds, and what clients hold before they train."""

    client_models = "heterogeneous"

    def setup(self, ctx: Context) -> Tree:
        return {f"kind{number}": ctx.build(MODEL, number).w.detach().clone() for number in (0, 1)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        yield Ask("train", {})

    def receive(self, client: Client, down: Tree) -> None:
        client.state["start"] = client.model.w.clone()


@pytest.mark.parametrize("number", [0, 1])
def test_the_server_s_model_is_the_one_that_clients_start_from(start: Callable[..., Server], number: int) -> None:
    models = [{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 3}]
    keys = {"algorithm.name": f"{__file__}:Builder", "model": models, "heterogeneity.embedding": 8}
    server = start(keys)
    server.round()
    assert torch.equal(server.state.server[f"kind{number}"], server.state.clients[number]["start"])
