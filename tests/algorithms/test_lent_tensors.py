"""Downloads and inboxes are lent: a method that writes into one is stopped with its name and the entry."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from support.errors import refused
from support.fixtures import Start
from torch import Tensor

from shoal.algorithms.base import Algorithm, Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.protocol import Ask, Reduce

MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}


def method(name: str) -> dict[str, str]:
    return {"algorithm.name": f"{__file__}:{name}"}


@dataclass(frozen=True)
class Writes(Algorithm):
    """Writes into what it was lent, in one of its hooks, by torch or behind its back."""

    where: str = "begin"
    how: str = "mul_"

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MIX}, shared={"w": server["w"]}, private={3: {"own": torch.ones(2)}})
        yield Mix("w", torch.eye(len(got.ids)), dst=got.ids)

    def write(self, where: str, tensor: Tensor) -> None:
        if where != self.where:
            return
        if self.how == "mul_":
            tensor.mul_(0.9)
        elif self.how == "data":
            tensor.data.mul_(0.9)
        else:
            tensor.numpy()[0] += 1.0

    def receive(self, client: Client, down: Tree) -> Tree:
        super().receive(client, down)
        if "w" in down:
            self.write("begin", down["w"])
        if "own" in down:
            self.write("private", down["own"])
        if "w" in client.inbox:
            self.write("inbox", client.inbox["w"])
        return down

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        self.write("upload", received["w"])
        return Upload({"w": client.model.w})

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if "w" in client.inbox:
            self.write("predict", client.inbox["w"])
        return super().predict(client, received, part)


@pytest.mark.parametrize("how", ["mul_", "data", "numpy"])
@pytest.mark.parametrize(
    ("where", "entry"),
    [("begin", "download 'w'"), ("private", "download 'own'"), ("inbox", "inbox 'w'"), ("upload", "download 'w'")],
)
def test_method_writing_read_only_data_is_stopped(start: Start, where: str, entry: str, how: str) -> None:
    skipping = {"engine.on_client_error": "skip", "evaluation.every": 6}
    server = start({**method("Writes"), **MLP, **skipping, "algorithm.where": where, "algorithm.how": how})
    number = 2 if where == "inbox" else 1
    client = 3 if where == "private" else 0
    if number == 2:
        server.round()
    before = server.state.server["w"].clone()
    with refused(says=f"round {number}, client {client}: Writes writes into the {entry}, which is"):
        server.round()
    assert server.state.round == number - 1
    assert torch.equal(server.state.server["w"], before)


def test_an_evaluation_writes_nothing_either(start: Start) -> None:
    server = start({**method("Writes"), **MLP, "algorithm.where": "predict"})
    with refused(says="round 1, client 0: Writes writes into the inbox 'w'"):
        server.round()
