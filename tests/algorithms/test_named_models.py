"""A client with two named models, beside the same computation written out."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from support.plain_fedavg import flat
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Client, Context, Output, Requests, Trainer, Tree, Upload
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

Run = Callable[..., Server]
Views = Callable[..., list[View]]
ModuleOf = Callable[..., nn.Module]
CountsOf = Callable[..., np.ndarray]

MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}


def method(name: str) -> dict[str, str]:
    return {"algorithm.name": f"{__file__}:{name}"}


def inputs(module: nn.Module, view: View, rows: Tensor) -> list[Tensor]:
    return [view.hop(k)[rows] for k in module.inputs]


@dataclass(frozen=True)
class Mutual(Algorithm):
    """A copilot that is averaged, and a model of each client's own that learns from labels and from it, and predicts.

    The copilot takes a step of the trainer's optimizer on labels alone, then the own one on labels and its scores.
    """

    client_models = "personal"

    def models(self) -> dict[str, Any]:
        return {"model": None, "copilot": {"name": "sgc", "layers": 2, "hidden": 6}}

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.build("copilot", 0).w.detach().clone()}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        assert ctx.model_of(0, "copilot").parameters == len(server["w"])
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"copilot": server["w"]})
        server["w"] = got["w"]

    def receive(self, client: Client, down: Tree) -> Tree:
        if "copilot" in down:
            client.models["copilot"].load(down["copilot"])
        return down

    def train(self, client: Client, received: Tree, trainer: Trainer, phase: str) -> float:
        copilot = client.models["copilot"]
        trainer.fit(client, received, "copilot", self.loss)
        if not client.info.train:
            return float("nan")
        teacher = copilot.output(copilot.gathered("train")).logits_NC.softmax(1)
        return trainer.fit(client, teacher, loss=self.taught)

    def taught(self, out: Output, y: Tensor, w: Tensor, teacher: Tensor) -> Tensor:
        return F.cross_entropy(out.logits_NC, y) + F.cross_entropy(out.logits_NC, teacher)

    def upload(self, client: Client, received: Tree, phase: str) -> Upload:
        return Upload({"w": client.models["copilot"].w}, {"w": float(client.info.train)})


def test_a_second_model(start: Run, views: Views, module_of: ModuleOf, counts_of: CountsOf) -> None:
    """Two named models, each with its optimizer's moments; absent clients keep both, the copilot is overwritten."""
    keys = {**method("Mutual"), **MLP, "train.epochs": 2, "train.lr": 0.05, "train.weight_decay": 0.0}
    server = start({**keys, "rounds": 5, "evaluation.every": 2, "engine.cell_size": 3, "participation.ratio": 0.67})
    data = views(server)
    w = server.state.server["w"].clone()
    adam = functools.partial(torch.optim.Adam, lr=0.05)
    own = [module_of(server, server._initial) for _ in data]
    copilots = [build("sgc", 5, 4, 2, 0.0, {"layers": 2, "hidden": 6}) for _ in data]
    optimizers = [(adam(a.parameters()), adam(b.parameters())) for a, b in zip(own, copilots)]

    def fit(module: nn.Module, optimizer: torch.optim.Optimizer, view: View, teacher: Tensor | None) -> None:
        for _ in range(2):
            optimizer.zero_grad()
            logits = module(inputs(module, view, view.train)).logits_NC
            loss = F.cross_entropy(logits, view.label[view.train])
            (loss if teacher is None else loss + F.cross_entropy(logits, teacher)).backward()
            optimizer.step()

    for number in range(1, 6):
        server.round()
        models, sizes = [], []
        for i in server.cohort(number):
            view = data[i]
            nn.utils.vector_to_parameters(w.clone(), copilots[i].parameters())
            if len(view.train):
                fit(copilots[i], optimizers[i][1], view, None)
                teacher = copilots[i](inputs(copilots[i], view, view.train)).logits_NC.softmax(1).detach()
                fit(own[i], optimizers[i][0], view, teacher)
            models.append(flat(copilots[i]))
            sizes.append(len(view.train))
            kept = server.state.clients[i]
            torch.testing.assert_close(kept["model.w"], flat(own[i]), rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(kept["copilot.w"], flat(copilots[i]), rtol=1e-3, atol=1e-5)
            moments = {name for name in kept if ".opt." in name}
            assert len(moments) == (6 if len(view.train) else 0)
        w = torch.stack([m * s for m, s in zip(models, sizes)]).sum(0) / sum(sizes)
        torch.testing.assert_close(server.state.server["w"], w, rtol=1e-3, atol=1e-5)
        if number % 2 == 0:
            for i, kept in server.state.clients.items():
                now = counts_of(server, data[i], kept["model.w"])
                for scope in ("trained", "served"):
                    np.testing.assert_array_equal(server.state.scores[scope][i], now)
