"""SCAFFOLD and FedDC with what differs in OpenFGL, to see whether that explains how far its numbers are from ours.

Both divide what Adam moved by the learning rate and the number of steps, as if it were a sum of SGD's gradients: the
quotient is about one in every parameter, whatever the gradients are.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from algorithms.base import Client, Context, Given, Term, Trainer, Tree
from algorithms.methods import fedavg, feddc, scaffold
from algorithms.methods.mean_gradient import steps_of
from algorithms.protocol import MODEL


@dataclass(frozen=True)
class PeerSCAFFOLD(scaffold.SCAFFOLD):
    """As `SCAFFOLD` with `variate: steps`, whatever the optimizer, and models weighted by all nodes.

    It begins as the peer does, with a last layer that is not larger by the square root of 2, on which FedAvg and our
    SCAFFOLD do not depend on Cora.
    """

    weight: Literal["nodes", "train", "uniform"] = "nodes"

    def setup(self, ctx: Context) -> Tree:
        """As `SCAFFOLD`, which would refuse Adam."""
        initial = ctx.initial.clone()
        initial[ctx.build(MODEL, 0).classifier] /= math.sqrt(2)
        return {"w": initial, "c": torch.zeros_like(initial)}

    def train(self, client: Client, given: Given, trainer: Trainer, phase: str) -> float:
        """As `SCAFFOLD` under SGD."""
        loss = trainer.fit(client, given)
        before = client.state.get(scaffold.VARIATE, torch.zeros_like(client.model.w))
        moved = (given["w"] - client.model.w) / (steps_of(client, trainer.options) * trainer.options.lr)
        client.state[scaffold.VARIATE] = before - given["c"] + moved
        given["change"] = client.state[scaffold.VARIATE] - before
        return loss


@dataclass(frozen=True)
class PeerFedDC(feddc.FedDC):
    """As `FedDC` with `variate: steps`; the linear term lacks the mean update, and the drift lags a round."""

    weight: Literal["nodes", "train", "uniform"] = "nodes"

    def setup(self, ctx: Context) -> Tree:
        """As `FedDC`, which would refuse Adam."""
        return {**fedavg.FedAvg.setup(self, ctx), "g": torch.zeros_like(ctx.initial)}

    def train(self, client: Client, given: Given, trainer: Trainer, phase: str) -> float:
        """As `FedDC`, but the drift grows by the update of the round before."""
        given["scale"] = 1 / (trainer.options.lr * steps_of(client, trainer.options))
        loss = trainer.fit(client, given)
        nothing = torch.zeros_like(client.model.w)
        drift = client.state.get(feddc.DRIFT, nothing) + client.state.get(feddc.UPDATE, nothing)
        client.state[feddc.DRIFT] = drift
        client.state[feddc.UPDATE] = client.model.w - given["w"]
        given["corrected"] = client.model.w + drift
        return loss

    def regularizer(self, client: Client, given: Given) -> Term | None:
        """As `FedDC`, without the mean update g."""
        w, alpha = client.model.flat.w, self.alpha
        target = given["w"] - client.state.get(feddc.DRIFT, 0)
        linear = given["scale"] * client.state.get(feddc.UPDATE, torch.zeros_like(target))
        return lambda: alpha / 2 * (w - target).square().sum() + linear @ w
