"""What the protocol must carry, each proved by a small method and the same computation written out without it:
prototypes, control variates, a second model, private layers, split learning. The methods are loaded as a user's file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.base import Algorithm, Client, Context, Mix, Output, Steps, Tree, Upload
from algorithms.protocol import Ask, How
from engine.rounds.server import Server
from storage.view import View

Run = Callable[..., Server]
Views = Callable[..., list[View]]
ModuleOf = Callable[..., nn.Module]
CountsOf = Callable[..., np.ndarray]

MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}
SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.epochs": 2}


def method(name: str) -> dict[str, str]:
    return {"algorithm.name": f"{__file__}:{name}"}


def flat(module: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def inputs(module: nn.Module, view: View, rows: Tensor) -> list[Tensor]:
    return [view.hop(k)[rows] for k in module.inputs]


# Prototypes: a sum with a weight of its own for every class


@dataclass(frozen=True)
class Prototypes(Algorithm):
    """Clients keep their models and send the mean embedding of every class they train on."""

    keeps_model: ClassVar[bool] = True

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        got = yield Ask("train", {"proto": How.SUM})
        server.update(proto=got["proto"], counts=got.weights["proto"])

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        embedding = client.output(client.gathered("train")).embedding_NH
        one_hot = F.one_hot(client.data.label[client.data.train], client.info.classes).float()
        counts_C1 = one_hot.sum(0)[:, None]
        # A class without rows divides by zero; its weight is zero.
        return Upload({"proto": one_hot.T @ embedding / counts_C1}, {"proto": counts_C1})


@pytest.mark.parametrize("cell_size", [1, 4])
def test_prototypes(run: Run, views: Views, module_of: ModuleOf, cell_size: int) -> None:
    server = run({**method("Prototypes"), **MLP, "engine.cell_size": cell_size}, rounds=2)
    embeddings: list[list[np.ndarray]] = [[] for _ in range(4)]
    for i, view in enumerate(views(server)):
        module = module_of(server, server.state.clients[i]["w"]).eval()
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

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        got = yield Ask("train", {"w": How.SUM, "dc": How.SUM}, shared={"w": server["w"], "c": server["c"]})
        server["w"] = got["w"]
        server["c"] = server["c"] + got["dc"] * len(got.ids) / len(ctx.clients)

    def serve(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def begin(self, client: Client, down: Tree) -> None:
        super().begin(client, down)
        if "c" in down:
            down["correction"] = down["c"] - client.state.get("c", torch.zeros_like(client.w))

    def loss(self, out: Output, y: Tensor, w: Tensor, down: Tree) -> Tensor:
        return super().loss(out, y, w, down) + w @ down["correction"]

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        if not client.info.train:
            return Upload({"w": client.w, "dc": torch.zeros_like(client.w)}, {"w": 0.0})
        dc = (down["w"] - client.w) / (self.steps * self.lr) - down["c"]
        client.state["c"] = client.state.get("c", torch.zeros_like(dc)) + dc
        return Upload({"w": client.w, "dc": dc})


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


# A second model, trained by a loop of the method's own


@dataclass(frozen=True)
class Mutual(Algorithm):
    """A shared model that is averaged, and a private one that learns from labels and from it, and that predicts."""

    lr: float = 0.1

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        got = yield Ask("train", {"w": How.SUM}, shared={"w": server["w"]}, fit=False, scored=True)
        server["w"] = got["w"]

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        if not client.info.train:
            return Upload({"w": client.w}, {"w": 0.0})
        hops, y = client.gathered("train"), client.data.label[client.data.train]
        self._step(client, F.cross_entropy(client.model(hops).logits_NC, y))
        w = client.w.clone()
        teacher = client.output(hops).logits_NC.softmax(1)
        client.load(client.state.get("private", torch.full_like(w, 0.1)))
        logits = client.model(hops).logits_NC
        self._step(client, F.cross_entropy(logits, y) + F.cross_entropy(logits, teacher))
        # The host's own memory: the engine takes the snapshot.
        client.state["private"] = client.w
        return Upload({"w": w})

    def _step(self, client: Client, loss: Tensor) -> None:
        (gradient,) = torch.autograd.grad(loss, [client.model.w], allow_unused=True)
        assert gradient is None, "the module's parameters are leaves of their own"
        assert client.model.w.grad is not None
        client.model.w.grad.zero_()
        loss.backward()
        with torch.no_grad():
            client.model.w -= self.lr * client.model.w.grad
        client.trained()

    def predict(self, client: Client, part: str) -> Tensor:
        if "private" in client.state:
            client.load(client.state["private"])
        return super().predict(client, part)


def test_a_second_model(start: Run, views: Views, module_of: ModuleOf, counts_of: CountsOf) -> None:
    server = start({**method("Mutual"), **MLP, "rounds": 4, "evaluation.every": 2, "engine.cell_size": 3})
    data = views(server)
    w = server._initial.clone()
    private = [torch.full_like(w, 0.1) for _ in data]

    def step(module: nn.Module, loss: Tensor) -> None:
        for p, g in zip(module.parameters(), torch.autograd.grad(loss, list(module.parameters()))):
            p.data -= 0.1 * g

    for number in range(1, 5):
        server.round()
        models = []
        for i, view in enumerate(data[:5]):
            y, module, own = view.label[view.train], module_of(server, w), module_of(server, private[i])
            step(module, F.cross_entropy(module(inputs(module, view, view.train)).logits_NC, y))
            teacher = module(inputs(module, view, view.train)).logits_NC.softmax(1).detach()
            logits = own(inputs(own, view, view.train)).logits_NC
            step(own, F.cross_entropy(logits, y) + F.cross_entropy(logits, teacher))
            models.append(flat(module))
            private[i] = flat(own)
            torch.testing.assert_close(server.state.clients[i]["private"], private[i], rtol=1e-4, atol=1e-5)
        w = torch.stack(models).mean(0)
        torch.testing.assert_close(server.state.server["w"], w, rtol=1e-4, atol=1e-5)
        if number % 2 == 0:
            for i in range(5):
                now = counts_of(server, data[i], server.state.clients[i]["private"])
                for scope in ("trained", "served"):
                    np.testing.assert_array_equal(server.state.scores[scope][i], now)


# Private layers: what is served is the download, merged with what the client keeps


@dataclass(frozen=True)
class PrivateHead(Algorithm):
    """FedPer (Arivazhagan et al., 2019): the last layer, C * H + C parameters, stays with the client."""

    head: int = 4 * 8 + 4

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        got = yield Ask("train", {"w": How.SUM}, shared={"w": server["w"]})
        server["w"] = got["w"]

    def serve(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def begin(self, client: Client, down: Tree) -> None:
        w = down.get("w", client.w).clone()
        if "head" in client.state:
            w[-self.head :] = client.state["head"]
        client.load(w)

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        client.state["head"] = client.w[-self.head :]
        return Upload({"w": client.w})


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


# Split learning: two phases a step, some clients only, a tensor of its own for each


@dataclass(frozen=True)
class Split(Algorithm):
    """Clients hold the body, the server the last layer; activations go up and gradients come down, step by step."""

    lr: float = 0.1
    steps: int = 3
    rows: int = 10
    keeps_model: ClassVar[bool] = True

    def setup(self, ctx: Context) -> Tree:
        return {"top": torch.eye(4, 8)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        able = [i for i in cohort if ctx.clients[i].train]
        for _ in range(self.steps):
            ask = Ask("forward", {"z": How.KEEP, "y": How.KEEP}, fit=False, to=able[::-1])
            got = yield ask
            assert got.ids == able
            assert got["y"].dtype == torch.int64
            z, top = got["z"].requires_grad_(), server["top"].clone().requires_grad_()
            loss = F.cross_entropy((z @ top.T).flatten(0, 1), got["y"].flatten())
            loss.backward()
            gradients = {i: {"g": z.grad[k]} for k, i in enumerate(able)}  # type: ignore[index]
            server["top"] = (top - self.lr * top.grad).detach()
            yield Ask("backward", {}, private=gradients, fit=False, to=able, scored=True)
        nobody = yield Ask("forward", {"z": How.KEEP}, fit=False, to=[])
        assert nobody.ids == []

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        z = client.model([hop[: self.rows] for hop in client.gathered("train")]).embedding_NH
        if phase == "forward":
            return Upload({"z": z.detach(), "y": client.data.label[client.data.train][: self.rows]})
        assert client.model.w.grad is not None
        client.model.w.grad.zero_()
        z.backward(down["g"])
        with torch.no_grad():
            client.model.w -= self.lr * client.model.w.grad
        client.trained()
        return Upload({})


def test_split_learning(run: Run, views: Views, module_of: ModuleOf, counts_of: CountsOf) -> None:
    server = run({**method("Split"), **MLP, "evaluation.every": 2}, rounds=2)
    data = views(server)[:5]
    bodies = [module_of(server, server._initial) for _ in data]
    top = torch.eye(4, 8, requires_grad=True)
    for _ in range(2 * 3):
        z = torch.cat([body(inputs(body, view, view.train)).embedding_NH for body, view in zip(bodies, data)])
        loss = F.cross_entropy(z @ top.T, torch.cat([view.label[view.train] for view in data]))
        used = [top, *(p for body in bodies for p in body.parameters())]
        for p, g in zip(used, torch.autograd.grad(loss, used, allow_unused=True)):
            if g is not None:
                p.data -= 0.1 * g
    torch.testing.assert_close(server.state.server["top"], top.detach(), rtol=1e-4, atol=1e-5)
    for i, body in enumerate(bodies):
        torch.testing.assert_close(server.state.clients[i]["w"], flat(body), rtol=1e-4, atol=1e-5)
        for scope in ("trained", "served"):
            counts = counts_of(server, data[i], server.state.clients[i]["w"])
            np.testing.assert_array_equal(server.state.scores[scope][i], counts)


# Results of mixing for clients that do not take part


@dataclass(frozen=True)
class Gossip(Algorithm):
    """Every client of the federation is sent the mean of the cohort, scaled by its number."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        got = yield Ask("train", {"w": How.MIX})
        n = len(ctx.clients)
        rows = torch.arange(1.0, n + 1)[:, None].expand(n, len(got.ids)) / len(got.ids)
        yield Mix("w", rows, dst=range(n))

    def begin(self, client: Client, down: Tree) -> None:
        if "w" in client.inbox:
            client.load(client.inbox["w"])

    def upload(self, client: Client, down: Tree, phase: str) -> Upload:
        return Upload({"w": client.w})


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
