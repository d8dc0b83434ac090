"""FedDC with what differs in OpenFGL, to see whether that explains the distance of its numbers from ours."""

from dataclasses import dataclass
from typing import Literal

import torch

from algorithms.base import Client, Given, Term, Trainer
from algorithms.methods import feddc
from algorithms.methods.mean_gradient import Form, steps_of


@dataclass(frozen=True)
class PeerFedDC(feddc.FedDC):
    """The linear term lacks the mean update, the drift lags a round, and Adam's update is divided as SGD's is."""

    weight: Literal["nodes", "train", "uniform"] = "nodes"
    variate: Form = "steps"

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
