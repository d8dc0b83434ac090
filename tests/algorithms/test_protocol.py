"""What the protocol must carry, each proved by a small method and the same computation written out without it:
prototypes, control variates, private layers, split learning. The methods are loaded as a user's file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.plain_fedavg import flat
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Context, Mix, Output, Received, Requests, Trainer, Tree, Upload
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

Run = Callable[..., Server]
Views = Callable[..., list[View]]
ModuleOf = Callable[..., nn.Module]
CountsOf = Callable[..., np.ndarray]

MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}
SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.epochs": 2}


def method(name: str) -> dict[str, str]:
    return {"algorithm.name": f"{__file__}:{name}"}


def inputs(module: nn.Module, view: View, rows: Tensor) -> list[Tensor]:
    return [view.hop(k)[rows] for k in module.inputs]


# Words


# Prototypes: a sum with a weight of its own for every class


@dataclass(frozen=True)
class Prototypes(Algorithm):
    """Clients keep their models and send the mean embedding of every class they train on."""

    client_models = "personal"

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"proto": Reduce.MEAN})
        server.update(proto=got["proto"], counts=got.weights["proto"])

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        embedding = client.model.output(client.model.gathered("train")).embedding_NH
        one_hot = F.one_hot(client.data.label[client.data.train], client.info.classes).float()
        counts_C1 = one_hot.sum(0)[:, None]
        # A class without rows divides by zero; its weight is zero.
        return Upload({"proto": one_hot.T @ embedding / counts_C1}, {"proto": counts_C1})


@pytest.mark.parametrize("cell_size", [1, 4])
def test_prototypes(run: Run, views: Views, module_of: ModuleOf, cell_size: int) -> None:
    server = run({**method("Prototypes"), **MLP, "engine.cell_size": cell_size}, rounds=2)
    embeddings: list[list[np.ndarray]] = [[] for _ in range(4)]
    for i, view in enumerate(views(server)):
        module = module_of(server, server.state.clients[i]["model.w"]).eval()
        for row in view.train.tolist():
            out = module(inputs(module, view, torch.tensor([row])))
            embeddings[int(view.label[row])].append(out.embedding_NH[0].detach().double().numpy())
    assert server.state.server["counts"].flatten().tolist() == [len(rows) for rows in embeddings]
    for c in range(3):
        np.testing.assert_allclose(server.state.server["proto"][c], np.mean(embeddings[c], 0), rtol=1e-4, atol=1e-6)
    assert not embeddings[3]
    assert torch.equal(server.state.server["proto"][3], torch.zeros(8))


# Control variates: a linear term of the loss, and an entry of the clients' state


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al., ICML 2020), option II, as the linear term <c - c_i, w> of the loss."""

    lr: float = 0.1
    steps: int = 2

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial, "c": torch.zeros_like(ctx.initial)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN, "dc": Reduce.MEAN}, shared={"w": server["w"], "c": server["c"]})
        server["w"] = got["w"]
        server["c"] = server["c"] + got["dc"] * len(got.ids) / len(ctx.clients)

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def receive(self, client: Client, down: Tree) -> Tree:
        super().receive(client, down)
        if "c" not in down:
            return down
        return {**down, "correction": down["c"] - client.state.get("c", torch.zeros_like(client.model.w))}

    def loss(self, out: Output, y: Tensor, w: Tensor, received: Tree) -> Tensor:
        return super().loss(out, y, w, received) + w @ received["correction"]

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if not client.info.train:
            return Upload({"w": client.model.w, "dc": torch.zeros_like(client.model.w)}, {"w": 0.0})
        dc = (received["w"] - client.model.w) / (self.steps * self.lr) - received["c"]
        client.state["c"] = client.state.get("c", torch.zeros_like(dc)) + dc
        return Upload({"w": client.model.w, "dc": dc})


def test_control_variates(run: Run, views: Views, module_of: ModuleOf) -> None:
    server = run({**method("Scaffold"), **MLP, **SGD, "participation.ratio": 0.5}, rounds=5)
    data = views(server)
    w, c = server._initial.clone(), torch.zeros_like(server._initial)
    own = [torch.zeros_like(w) for _ in data]
    for number in range(1, 6):
        models, changes = [], []
        for i in server.cohort(number):
            view = data[i]
            if not len(view.train):
                continue
            module = module_of(server, w)
            for _ in range(2):
                module.zero_grad()
                F.cross_entropy(module(inputs(module, view, view.train)).logits_NC, view.label[view.train]).backward()
                gradient = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
                moved = flat(module) - 0.1 * (gradient - own[i] + c)
                nn.utils.vector_to_parameters(moved, module.parameters())
            change = (w - flat(module)) / (2 * 0.1) - c
            own[i] = own[i] + change
            models.append(flat(module))
            changes.append(change)
        w = torch.stack(models).mean(0)
        c = c + torch.stack(changes).sum(0) / len(data)
    torch.testing.assert_close(server.state.server["w"], w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(server.state.server["c"], c, rtol=1e-4, atol=1e-5)
    for i in range(5):
        if i in server.state.clients:
            torch.testing.assert_close(server.state.clients[i].get("c", own[i]), own[i], rtol=1e-4, atol=1e-5)


# Private layers: what is served is the download, merged with what the client keeps


@dataclass(frozen=True)
class PrivateHead(Algorithm):
    """FedPer (Arivazhagan et al., 2019): the last layer, C * H + C parameters, stays with the client."""

    head: int = 4 * 8 + 4

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]})
        server["w"] = got["w"]

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def receive(self, client: Client, down: Tree) -> None:
        w = down.get("w", client.model.w).clone()
        if "head" in client.state:
            w[-self.head :] = client.state["head"]
        client.model.load(w)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        client.state["head"] = client.model.w[-self.head :]
        return Upload({"w": client.model.w})


@pytest.mark.parametrize("every", [1, 3])
def test_private_layers(start: Run, views: Views, counts_of: CountsOf, every: int) -> None:
    keys = {**method("PrivateHead"), **MLP, "participation.ratio": 0.5, "evaluation.every": every, "rounds": 6}
    server = start({**keys, "engine.cell_size": 2})
    served = [server._initial] * 6
    for number in range(1, 7):
        server.round()
        for i in server.cohort(number):
            served[i] = server.state.server["w"].clone()
        heads = {tuple(tree["head"].tolist()) for tree in server.state.clients.values()}
        assert len(heads) == len(server.state.clients)
        if number % every:
            continue
        for i, view in enumerate(views(server)):
            w = served[i].clone()
            if i in server.state.clients:
                w[-36:] = server.state.clients[i]["head"]
            np.testing.assert_array_equal(server.state.scores["served"][i], counts_of(server, view, w))
            np.testing.assert_array_equal(
                server.state.scores["global"][i], counts_of(server, view, server.state.server["w"])
            )


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


def test_split_learning(run: Run, views: Views, module_of: ModuleOf, counts_of: CountsOf) -> None:
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
        for scope in ("trained", "served"):
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


def test_absent_clients_are_served_what_was_sent_to_them(start: Run, views: Views, counts_of: CountsOf) -> None:
    server = start({**method("Gossip"), **MLP, "participation.ratio": 0.2, "evaluation.every": 2})
    for number in range(1, 5):
        server.round()
        first = server.state.inboxes[0]["w"]
        for i, view in enumerate(views(server)):
            inbox = server.state.inboxes[i]["w"]
            torch.testing.assert_close(inbox, (i + 1) * first)
            if number % 2 == 0:
                np.testing.assert_array_equal(server.state.scores["served"][i], counts_of(server, view, inbox))
