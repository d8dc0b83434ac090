"""Methods with what differs in OpenFGL, to see whether that explains how far its numbers are from ours.

SCAFFOLD and FedDC divide there what Adam moved by the learning rate and the number of steps, as if it were a sum of
SGD's gradients: the quotient is about one in every parameter, whatever the gradients are. In FedProto and FedTGP a
class that a client has not is a prototype of zeros, and the embeddings that are to be near prototypes are dropped out.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Client, Context, Output, Received, Term, Trainer, Tree, Upload
from shoal.algorithms.losses.prototype_losses import of_classes
from shoal.algorithms.methods import fedavg, feddc, fedproto, fedtgp, scaffold
from shoal.algorithms.methods.shared.mean_gradient import steps_of
from shoal.algorithms.protocol import MODEL

# The peer's.
DROPOUT = 0.5


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

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        """As `SCAFFOLD` under SGD."""
        before, w = client.state.get(scaffold.VARIATE, torch.zeros_like(client.model.w)), client.model.flat.w
        correction = received["c"] - before
        loss = trainer.fit(client, received, term=lambda: correction @ w)
        moved = (received["w"] - client.model.w) / (steps_of(client, trainer.options) * trainer.options.lr)
        client.state[scaffold.VARIATE] = before - received["c"] + moved
        received["change"] = client.state[scaffold.VARIATE] - before
        return loss


@dataclass(frozen=True)
class PeerFedDC(feddc.FedDC):
    """As `FedDC` with `variate: steps`; the linear term lacks the mean update, and the drift lags a round."""

    weight: Literal["nodes", "train", "uniform"] = "nodes"

    def setup(self, ctx: Context) -> Tree:
        """As `FedDC`, which would refuse Adam."""
        return {**fedavg.FedAvg.setup(self, ctx), "g": torch.zeros_like(ctx.initial)}

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        """As `FedDC`, but the drift grows by the update of the round before."""
        received["scale"] = 1 / (trainer.options.lr * steps_of(client, trainer.options))
        loss = trainer.fit(client, received, term=self._term(client, received, 0.1))
        nothing = torch.zeros_like(client.model.w)
        drift = client.state.get(feddc.DRIFT, nothing) + client.state.get(feddc.UPDATE, nothing)
        client.state[feddc.DRIFT] = drift
        client.state[feddc.UPDATE] = client.model.w - received["w"]
        received["corrected"] = client.model.w + drift
        return loss

    def _term(self, client: Client, received: Received, alpha: float) -> Term | None:
        """As `FedDC`, without the mean update g."""
        w = client.model.flat.w
        target = received["w"] - client.state.get(feddc.DRIFT, 0)
        linear = received["scale"] * client.state.get(feddc.UPDATE, torch.zeros_like(target))
        return lambda: alpha / 2 * (w - target).square().sum() + linear @ w


class PeerAligned(fedproto.FedProto):
    """The clients' part: embeddings are read behind ReLU and, in training, behind dropout.

    Errors are summed over classes instead of averaged by rows. A dropped embedding is about as far from
    any prototype as it is long, so that all of them are drawn towards zero.
    """

    def loss(self, out: Output, y: Tensor, w: Tensor, received: tuple[Tensor, Tensor] | None) -> Tensor:
        """As `FedProto`, for one client."""
        plain = super().loss(out, y, w, None)
        if received is None:
            return plain
        z_NH = F.dropout(out.embedding_NH.relu(), DROPOUT)
        target_CH, present_C = received
        square_N = (z_NH - target_CH[y]).square().sum(1)
        return plain + self.lam / z_NH.shape[1] * (of_classes(y, present_C) * square_N).sum()

    def rows_of(self, client: Client) -> Tensor:
        """As `FedProto`."""
        return super().rows_of(client).relu()

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        """Every class of the client, of zeros if it has none, with the weight of all its nodes."""
        mean_CK, nodes = self.means_of(client)[0], client.info.nodes
        return Upload({"proto": mean_CK}, {"proto": torch.full((len(mean_CK), 1), float(nodes))})


@dataclass(frozen=True)
class PeerFedProto(PeerAligned):
    """As `FedProto`, with the peer's clients."""


@dataclass(frozen=True)
class PeerFedTGP(PeerAligned, fedtgp.FedTGP):
    """As `FedTGP`, with the peer's clients, no margin, as its division leaves it, and ten of the server's steps."""

    server_steps: int = 10
    margin_cap: float = 0.0

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        """Every class of the client, as samples of equal weight."""
        mean_CK, counts_C = self.means_of(client)
        return Upload({"proto": mean_CK, "counts": torch.ones_like(counts_C)})
