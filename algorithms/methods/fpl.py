"""FPL: FedAvg whose clients contrast with clusters of all clients' prototypes and approach their means."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.base import (
    Ask,
    Client,
    Context,
    Output,
    Requests,
    RowTerm,
    Tree,
    pure,
)
from shoal.algorithms.losses.finch import class_clusters
from shoal.algorithms.losses.prototype_losses import contrast, contrast_of_rows, mean_square, squares_of_rows
from shoal.algorithms.losses.prototypes import from_bits
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.class_prototypes import SendsMeans
from shoal.algorithms.protocol import Reduce
from shoal.storage.options.types import AboveZero, NotNegative, Positive


class Bank(NamedTuple):
    """The download of a client: centres of clusters, their classes, and the mean centre of classes with one."""

    centre_BH: Tensor
    class_B: Tensor
    mean_CH: Tensor
    known_C: Tensor


@dataclass(frozen=True)
class FPL(SendsMeans, FedAvg):
    """FPL (Huang et al., CVPR 2023): FedAvg with the loss cross-entropy + cluster contrast + pull towards the mean.

    The server clusters the prototypes p_ic of every class by `losses.finch`; the centres m of all classes are the bank,
    and u_c is the mean of the class's centres: a cluster of one client weighs as much as one of many. A class that
    no client of the cohort has keeps its centres. In the first round there is no bank.

    The contrast, of weight `cpcl`, is the mean over training rows of -log(S+ / (S+ + S-)), S the sum of
    exp(cos(z_v, m) / tau) over the centres of the row's class and of all others; the pull, of weight `upcr`, the mean
    squared error between z_v and u_{y_v}, on rows whose class has one. Without both it trains as FedAvg.

    Down: w, the B centres, and their classes as int32, P + B H + B scalars. Up: w_i, n_i, the p_ic of the C_i classes
    that the client trains on, means of embeddings in evaluation mode, P + 1 + C_i H scalars, and a bit for every class.

    Attributes:
        cpcl, upcr: Weights of the contrast and of the pull; 1 in the paper.
        tau: Temperature of the contrast; 0.02 in the paper.
        cluster_from: A class with fewer prototypes keeps them all; 1 clusters always, as in the paper; see `finch`.
    """

    reads_embedding = True
    stacks_means = "present"

    cpcl: NotNegative = 1.0
    upcr: NotNegative = 1.0
    tau: AboveZero = 0.02
    cluster_from: Positive = 4

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        up = {"w": Reduce.MEAN, "proto": Reduce.STACK, "present": Reduce.STACK}
        got = yield Ask("train", up, shared=dict(server))
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        present_NC = from_bits(got["present"], ctx.classes)
        if not bool(present_NC.any()):
            return
        centre_BH, class_B = class_clusters(
            got["proto"][present_NC], present_NC.nonzero()[:, 1], ctx.classes, self.cluster_from
        )
        if "bank" in server:
            old = ~torch.isin(server["bank.class"], class_B)
            centre_BH = torch.cat([server["bank"][old], centre_BH])
            class_B = torch.cat([server["bank.class"][old].long(), class_B])
        class_B, order = class_B.sort(stable=True)
        server["bank"], server["bank.class"] = centre_BH[order], class_B.int()
        ctx.notes["clusters"] = float(len(class_B))

    def read(self, down: Tree, classes: int) -> Bank | None:
        if "bank" not in down:
            return None
        centre_BH, class_B = down["bank"], down["bank.class"].long()
        # All have a class; to look whether one has none would be a wait for a GPU.
        count_C = centre_BH.new_zeros(classes).index_add_(0, class_B, centre_BH.new_ones(len(class_B)))
        sums_CH = centre_BH.new_zeros(classes, centre_BH.shape[1]).index_add_(0, class_B, centre_BH)
        return Bank(centre_BH, class_B, sums_CH / count_C.clamp_min(1)[:, None], count_C > 0)

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Bank | None) -> Tensor:
        total = super().loss(out, y, w, received)
        if received is None:
            return total
        z_NH = out.embedding_NH
        if self.cpcl:
            total = total + self.cpcl * contrast(z_NH, y, received.centre_BH, received.class_B, self.tau)
        if self.upcr:
            total = total + mean_square(z_NH, y, received.mean_CH, received.known_C, self.upcr)
        return total

    def row_terms(self, client: Client, received: Bank | None) -> Sequence[RowTerm]:
        if received is None:
            return ()
        bank = received.centre_BH, received.class_B, self.tau
        means, width = (received.mean_CH, received.known_C), received.mean_CH.shape[1]
        terms = RowTerm(self.cpcl, contrast_of_rows, bank), RowTerm(self.upcr / width, squares_of_rows, means)
        return [term for term in terms if term.weight]
