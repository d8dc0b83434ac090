"""FedProto: clients share class prototypes instead of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from algorithms.base import Algorithm, Ask, Client, Context, Given, Output, Steps, Tree, Upload
from algorithms.losses.alignment import row_alignment
from algorithms.losses.prototypes import class_means, pack, row_bytes, unpack
from algorithms.protocol import How


@dataclass(frozen=True)
class FedProto(Algorithm):
    """FedProto (Tan et al., AAAI 2022): prototypes p_c = sum_i n_ic p_ic / sum_i n_ic over the cohort.

    A client keeps its own model, of any architecture whose embedding has the common width H, and trains it on
    cross-entropy + lam / H * mean over its training rows of |z_v - p_{y_v}|^2: the mean squared error, as in the
    paper's code, so that lam means the same at every width. Classes without a prototype have no such term. Embeddings
    of the upload are those of evaluation mode. The classifier predicts.

    Up: the p_ic of the C_i classes the client trains on and all counts, C_i H + C scalars. Down: the known p_c and a
    bit for every class. A class that nobody in the cohort has keeps its prototype; the paper's further factor
    1 / (number of clients with c), which shrinks them, is left out. lam = 0 trains as Local.

    Attributes:
        lam: Weight of the alignment; 1 in the paper, 0.1 on its hardest data.
    """

    lam: float = 1.0
    keeps_model: ClassVar[bool] = True
    mixed_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.lam < 0:
            raise ValueError("lam must not be negative")

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        shared = pack(server["proto"], server["known"]) if "proto" in server else {}
        got = yield Ask("train", {"proto": How.SUM}, shared=shared)
        fresh = got.weights["proto"][:, 0] > 0
        server.setdefault("proto", torch.zeros_like(got["proto"]))
        server.setdefault("known", torch.zeros_like(fresh))
        server["proto"][fresh] = got["proto"][fresh]
        server["known"] |= fresh

    def begin(self, client: Client, down: Tree) -> tuple[Tensor, Tensor] | None:
        return unpack(down, client.info.classes)

    def loss(self, out: Output, y: Tensor, w: Tensor, given: tuple[Tensor, Tensor] | None) -> Tensor:
        plain = super().loss(out, y, w, given)
        if not self.lam or given is None:
            return plain
        z, (target_CH, known_C) = out.embedding_NH, given
        return plain + self.lam / z.shape[1] * row_alignment(z, y, target_CH, known_C)

    def upload(self, client: Client, given: Given, phase: str) -> Upload:
        proto_CH, counts_C = own_prototypes(client)
        # The counts tell which rows follow.
        sent = row_bytes(counts_C > 0, proto_CH.shape[1]) + 4 * len(counts_C)
        return Upload({"proto": proto_CH}, {"proto": counts_C[:, None]}, {"proto": sent})


def own_prototypes(client: Client) -> tuple[Tensor, Tensor]:
    """Mean embeddings of the training rows of every class in evaluation mode, `[C, H]`, and their counts, `[C]`."""
    embedding_NH = client.model.output(client.model.gathered("train")).embedding_NH
    return class_means(embedding_NH, client.data.label[client.data.train], client.info.classes)
