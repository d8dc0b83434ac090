"""Small methods of a user's file: split learning, gossip, several models, and writing into what was lent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.fixtures import CountsOf, ModuleOf, Start, Views
from support.plain_fedavg import flat
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Context, Mix, Received, Requests, Trainer, Tree, Upload
from shoal.algorithms.protocol import MODEL, Ask, Reduce
from shoal.storage.shards.view import View

MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}
SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.epochs": 2}


def method(name: str) -> dict[str, str]:
    return {"algorithm.name": f"{__file__}:{name}"}


def inputs(module: nn.Module, view: View, rows: Tensor) -> list[Tensor]:
    return [view.hop(k)[rows] for k in module.inputs]


# Split learning: two phases a step, clients with tensors of their own sizes, a server that holds a model


@dataclass(frozen=True)
class Split(Algorithm):
    """Clients hold the body, the server a head; activations of all rows go up and their gradients come down."""

    lr: float = 0.1
    steps: int = 3
    client_models = "personal"

    def setup(self, ctx: Context) -> Tree:
        return {"top": torch.eye(ctx.classes, ctx.model_of(0).shapes["head.linears.1.weight"][1])}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        able = [i for i in cohort if ctx.clients[i].train]
        for _ in range(self.steps):
            got = yield Ask("forward", {"z": Reduce.GATHER, "y": Reduce.GATHER}, train=False, to=able[::-1])
            assert got.ids == able
            assert got.lists["y"][0].dtype == torch.int64
            z = [part.requires_grad_() for part in got.lists["z"]]
            top = server["top"].clone().requires_grad_()
            F.cross_entropy(torch.cat(z) @ top.T, torch.cat(got.lists["y"])).backward()
            server["top"] = (top - self.lr * top.grad).detach()
            yield Ask("backward", {}, private={i: {"g": part.grad} for i, part in zip(able, z)}, to=able)
        nobody = yield Ask("forward", {"z": Reduce.STACK}, train=False, to=[])
        assert nobody.ids == []

    def activations(self, client: Client) -> Tensor:
        return client.model([hop[: rows_of(client)] for hop in client.model.gathered("train")]).embedding_NH

    def train(self, client: Client, received: Tree, trainer: Trainer, phase: str) -> float:
        with trainer.optimizer(client) as optimizer:
            optimizer.zero_grad(set_to_none=False)
            self.activations(client).backward(received["g"])
            optimizer.step()
        return float("nan")

    def upload(self, client: Client, received: Tree, phase: str) -> Upload:
        if phase == "backward":
            return Upload({})
        y = client.data.label[client.data.train][: rows_of(client)]
        return Upload({"z": self.activations(client).detach(), "y": y})


def rows_of(client: Client) -> int:
    """Rows that a client trains on, different for every client."""
    return 4 + client.info.client


def test_split_learning(run: Start, views: Views, module_of: ModuleOf, counts_of: CountsOf) -> None:
    server = run({**method("Split"), **MLP, **SGD, "evaluation.every": 2}, rounds=2)
    data = views(server)[:5]
    bodies = [module_of(server, server._initial) for _ in data]
    top = torch.eye(4, 8, requires_grad=True)
    for _ in range(2 * 3):
        rows = [view.train[: 4 + i] for i, view in enumerate(data)]
        z = torch.cat([body(inputs(body, view, r)).embedding_NH for body, view, r in zip(bodies, data, rows)])
        loss = F.cross_entropy(z @ top.T, torch.cat([view.label[r] for view, r in zip(data, rows)]))
        used = [top, *(p for body in bodies for p in body.parameters())]
        for p, g in zip(used, torch.autograd.grad(loss, used, allow_unused=True)):
            if g is not None:
                p.data -= 0.1 * g
    torch.testing.assert_close(server.state.server["top"], top.detach(), rtol=1e-4, atol=1e-5)
    for i, body in enumerate(bodies):
        torch.testing.assert_close(server.state.clients[i]["model.w"], flat(body), rtol=1e-4, atol=1e-5)
        for scope in ("trained", "deployed"):
            counts = counts_of(server, data[i], server.state.clients[i]["model.w"])
            np.testing.assert_array_equal(server.state.scores[scope][i], counts)


# Results of mixing for clients that do not take part


@dataclass(frozen=True)
class Gossip(Algorithm):
    """Every client of the federation is sent the mean of the cohort, scaled by its number."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MIX})
        n = len(ctx.clients)
        rows = torch.arange(1.0, n + 1)[:, None].expand(n, len(got.ids)) / len(got.ids)
        yield Mix("w", rows, dst=range(n))

    def receive(self, client: Client, down: Tree) -> None:
        if "w" in client.inbox:
            client.model.load(client.inbox["w"])

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.model.w})


def test_absent_clients_are_served_what_was_sent_to_them(start: Start, views: Views, counts_of: CountsOf) -> None:
    server = start({**method("Gossip"), **MLP, "participation.ratio": 0.2, "evaluation.every": 2})
    for number in range(1, 5):
        server.round()
        first = server.state.inboxes[0]["w"]
        for i, view in enumerate(views(server)):
            inbox = server.state.inboxes[i]["w"]
            torch.testing.assert_close(inbox, (i + 1) * first)
            if number % 2 == 0:
                np.testing.assert_array_equal(server.state.scores["deployed"][i], counts_of(server, view, inbox))


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


def test_a_second_model_of_the_config_is_of_the_client_s_kind(start: Start) -> None:
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
def test_the_server_s_model_is_the_one_that_clients_start_from(start: Start, number: int) -> None:
    models = [{"name": "mlp", "hidden": 8}, {"name": "mlp", "hidden": 3}]
    keys = {"algorithm.name": f"{__file__}:Builder", "model": models, "heterogeneity.embedding": 8}
    server = start(keys)
    server.round()
    assert torch.equal(server.state.server[f"kind{number}"], server.state.clients[number]["start"])


@dataclass(frozen=True)
class Writes(Gossip):
    """Writes into the inbox as it predicts; what is written elsewhere is a matter of tests/engine/hosts."""

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if "w" in client.inbox:
            client.inbox["w"].mul_(0.9)
        return super().predict(client, received, part)


def test_an_evaluation_writes_nothing_either(start: Start) -> None:
    server = start({**method("Writes"), **MLP})
    with refused(says=f"round 1, client 0: Writes ({__file__}) writes into the inbox 'w'"):
        server.round()
