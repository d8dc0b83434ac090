"""FedProc: embeddings are contrasted with the global prototypes first, and classified later."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.base import Client, Context, Output, Tree, pure
from shoal.algorithms.losses.prototype_losses import contrast
from shoal.algorithms.methods.fedproto import AveragedRows
from shoal.storage.options.types import AboveZero, Share


class Contrasted(NamedTuple):
    """The message to a client once two classes have a prototype: these, their classes, int64, and a_t."""

    proto_BH: Tensor
    class_B: Tensor
    share: float


@dataclass(frozen=True)
class FedProc(AveragedRows):
    """FedProc (Mu et al., 2023): FedAvg with the loss a_t contrast + (1 - a_t) cross-entropy.

    The contrast is the mean over training rows of -log(exp(s_{y_v}) / sum_c exp(s_c)) with
    s_c = cos(z_v, p_c) / temperature, over the known prototypes, on rows whose class has one. In round t of T, from 1,
    a_t = alpha (1 - (t - 1) / T). Without two prototypes, as in round 1, the loss is the cross-entropy, as it is for a
    batch none of whose classes has a prototype. alpha = 0 trains as FedAvg. Messages are those of `AveragedRows`, and
    a_t on the way down.

    Attributes:
        alpha: a_1; 1 in the paper.
        schedule: `falling`, or `constant`: a_t = alpha in every round.
        temperature: Of the contrast; 1 in FGGP's code.
    """

    reads_embedding = True

    alpha: Share = 1.0
    schedule: Literal["falling", "constant"] = "falling"
    temperature: AboveZero = 1.0

    def further_downloads(self, ctx: Context) -> Tree:
        rest = 1 - (ctx.round - 1) / ctx.rounds if self.schedule == "falling" else 1.0
        return {"share": torch.tensor(self.alpha * rest, dtype=torch.float32)}

    def receive(self, client: Client, down: Tree) -> Contrasted | None:
        received = super().receive(client, down)
        if received is None or int(received[1].sum()) < 2 or not self.alpha:
            return None
        proto_CH, known_C = received
        return Contrasted(proto_CH[known_C], known_C.nonzero()[:, 0], float(down["share"]))

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Contrasted | None) -> Tensor:
        plain = super().loss(out, y, w, received)
        if received is None or not bool(torch.isin(y, received.class_B).any()):
            return plain
        apart = contrast(out.embedding_NH, y, received.proto_BH, received.class_B, self.temperature)
        return received.share * apart + (1 - received.share) * plain
