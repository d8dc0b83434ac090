"""Two small methods, each of a kind that the protocol must carry; read as a user's file."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.base import Algorithm, Ask, Client, Context, Given, Steps, Trainer, Tree, Upload
from algorithms.protocol import MODEL, How


@dataclass(frozen=True)
class Ragged(Algorithm):
    """Split learning: a body at every client, one head at the server, the rows that a client has, two steps a round."""

    lr: float = 0.5
    keeps_model: ClassVar[bool] = True

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        able = [i for i in cohort if ctx.clients[i].train]
        for _ in range(2):
            got = yield Ask("forward", {"z": How.LIST, "y": How.LIST}, train=False, to=able)
            z = [part.requires_grad_() for part in got.lists["z"]]
            head = server.get("head", torch.zeros(ctx.classes, z[0].shape[1])).requires_grad_()
            loss = F.cross_entropy(torch.cat(z) @ head.T, torch.cat(got.lists["y"]))
            loss.backward()
            server["head"] = (head - self.lr * head.grad).detach()
            yield Ask("backward", {}, private={i: {"g": part.grad} for i, part in zip(got.ids, z)}, to=able)
        ctx.notes["split loss"] = float(loss.detach())

    def embedding(self, client: Client) -> Tensor:
        return client.model(client.model.gathered("train")).embedding_NH

    def train(self, client: Client, given: Tree, trainer: Trainer, phase: str) -> float:
        client.model.module.eval()
        with trainer.optimizer(client) as optimizer:
            optimizer.zero_grad(set_to_none=False)
            self.embedding(client).backward(given["g"])
            optimizer.step()
        return float("nan")

    def upload(self, client: Client, given: Given, phase: str) -> Upload:
        if phase == "backward":
            return Upload({})
        client.model.module.eval()
        return Upload({"z": self.embedding(client).detach(), "y": client.data.train_label})


@dataclass(frozen=True)
class ServerModel(Algorithm):
    """The server trains a model of its own, on class means that clients send, and gives it to them to start from."""

    steps: int = 5

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        got = yield Ask("train", {"mean": How.KEEP, "present": How.KEEP}, shared={"w": server["w"]})
        hops_KNF = got["mean"][got["present"]].transpose(0, 1)
        label_N = got["present"].nonzero()[:, 1]
        model = ctx.build(MODEL, 0)
        model.load(server["w"])
        model.module.eval()
        optimizer = torch.optim.Adam([model.w], lr=ctx.train.lr)
        if kept := {name.removeprefix("adam."): t for name, t in server.items() if name.startswith("adam.")}:
            optimizer.state[model.w] = kept
        for _ in range(self.steps):
            optimizer.zero_grad(set_to_none=False)
            F.cross_entropy(model(list(hops_KNF)).logits_NC, label_N).backward()
            optimizer.step()
        server["w"] = model.w.detach().clone()
        server.update({f"adam.{name}": t for name, t in optimizer.state[model.w].items()})

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def upload(self, client: Client, given: Given, phase: str) -> Upload:
        one_hot_NC = F.one_hot(client.data.train_label, client.info.classes).float()
        count_C = one_hot_NC.sum(0)
        hops = [one_hot_NC.T @ hop / count_C.clamp_min(1)[:, None] for hop in client.model.gathered("train")]
        return Upload({"mean": torch.stack(hops, 1), "present": count_C > 0})
