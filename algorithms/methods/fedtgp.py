"""FedTGP: universal prototypes that the server trains to stay apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shoal.algorithms.base import Ask, Context, Requests, Tree
from shoal.algorithms.losses.prototype_generator import PrototypeGenerator, train_generator
from shoal.algorithms.losses.prototype_losses import MarginCrossEntropy, class_margin
from shoal.algorithms.methods.fedproto import FedProto
from shoal.algorithms.methods.shared.class_prototypes import known_rows
from shoal.algorithms.protocol import Reduce
from shoal.storage.options.types import AboveZero, NotNegative, Positive


@dataclass(frozen=True)
class FedTGP(FedProto):
    """FedTGP (Zhang et al., AAAI 2024): FedProto whose server learns the prototypes it sends.

    Anchors, one for each class, are the outputs of a network over a table; the server trains both on the uploads of
    the cohort with a cross-entropy on distances whose margin is min(max_c min_c' |Q_c - Q_c'|, margin_cap), Q_c the
    mean upload of class c. Uploads are single samples: the counts say which classes exist, not how much they weigh.
    The clients' part and the messages are those of FedProto.

    Attributes:
        server_steps: Full-batch steps on the server in a round; the paper's code has 100 to 1000 epochs.
        server_lr, server_weight_decay: Of the server's AdamW, whose moments are kept between rounds.
        margin_cap: tau of the paper, 100 in its code.
    """

    stacks_means = "counts"
    server_steps: Positive = 100
    server_lr: AboveZero = 0.01
    server_weight_decay: float = 5e-4
    margin_cap: NotNegative = 100.0

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"proto": Reduce.STACK, "counts": Reduce.STACK}, shared=known_rows(server))
        present_BC = got["counts"] > 0
        server.setdefault("known", torch.zeros_like(present_BC[0]))
        server["known"] |= present_BC.any(0)
        if not bool(present_BC.any()):
            return
        query_QH, class_Q = got["proto"][present_BC], present_BC.nonzero()[:, 1]
        margin = class_margin(query_QH, class_Q, ctx.classes, self.margin_cap)
        generator = PrototypeGenerator(ctx.classes, query_QH.shape[1], normalized=False)
        loss = MarginCrossEntropy(query_QH, class_Q, server["known"], margin)
        steps = self.server_steps, self.server_lr, self.server_weight_decay
        trained = train_generator(server, generator, loss, *steps, ctx.random("generator"))
        server["proto"], ctx.notes["server loss"] = trained
        ctx.notes["margin"] = margin
