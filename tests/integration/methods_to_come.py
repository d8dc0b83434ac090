"""A small method of a kind that the protocol must carry; read as a user's file."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Requests, Tree, Upload
from shoal.algorithms.protocol import MODEL, Reduce


@dataclass(frozen=True)
class ServerModel(Algorithm):
    """The server trains a model of its own, on class means that clients send, and gives it to them to start from."""

    steps: int = 5

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"mean": Reduce.STACK, "present": Reduce.STACK}, shared={"w": server["w"]})
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

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        one_hot_NC = F.one_hot(client.data.train_label, client.info.classes).float()
        count_C = one_hot_NC.sum(0)
        hops = [one_hot_NC.T @ hop / count_C.clamp_min(1)[:, None] for hop in client.model.gathered("train")]
        return Upload({"mean": torch.stack(hops, 1), "present": count_C > 0})
