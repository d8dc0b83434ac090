"""What the server's part knows: sizes of models, which client has which, and streams of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from shoal.algorithms.base import Algorithm, Client, Requests
from shoal.algorithms.context import Context
from shoal.algorithms.protocol import MODEL, Ask, Tree
from shoal.engine.rounds.server import Server


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
