"""FedProto: clients share class prototypes instead of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.algorithms.base import (
    Ask,
    Client,
    Context,
    MappedLoss,
    Output,
    Requests,
    RowTerm,
    Tree,
    pure,
)
from shoal.algorithms.losses.prototype_losses import mean_square, squares_of_rows
from shoal.algorithms.losses.prototypes import unpack
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.class_prototypes import (
    ClassRows,
    SendsMeans,
    known_rows,
    take_rows,
)
from shoal.algorithms.protocol import Reduce
from shoal.storage.options.types import NotNegative


@dataclass(frozen=True)
class Aligned(MappedLoss):
    """Cross-entropy + lam / H * mean over a client's training rows of |z_v - p_{y_v}|^2 (FedProto).

    That is the mean squared error, as in the paper's code; the paper has lam = 1, 0.1 on its hardest data. Rows of a
    class without a prototype have no such term; `receive` gives the prototypes, `[C, H]`, and which those are, `[C]`.
    """

    reads_embedding = True

    lam: NotNegative = 1.0

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: tuple[Tensor, Tensor] | None) -> Tensor:
        plain = super().loss(out, y, w, received)
        if not self.lam or received is None:
            return plain
        return plain + mean_square(out.embedding_NH, y, *received, weight=self.lam)

    def row_terms(self, client: Client, received: tuple[Tensor, Tensor] | None) -> Sequence[RowTerm]:
        if not self.lam or received is None:
            return ()
        return (RowTerm(self.lam / received[0].shape[1], squares_of_rows, received),)


@dataclass(frozen=True)
class AveragedRows(SendsMeans, FedAvg):
    """FedAvg, and also prototypes p_c = sum_i n_ic p_ic / sum_i n_ic over the cohort, as FedProto has them.

    Down: w, the known p_c, and a bit for every class; in the first round w alone. Up: w_i, n_i, the p_ic of the C_i
    classes that the client trains on and all counts, P + 1 + C_i H + C scalars.
    """

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        shared = {"w": server["w"], **known_rows(server), **self.further_downloads(ctx)}
        got = yield Ask("train", {"w": Reduce.MEAN, "proto": Reduce.MEAN}, shared=shared)
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        take_rows(server, got)

    def further_downloads(self, ctx: Context) -> Tree:
        """Lists the entries of a round's downloads besides w and the prototypes."""
        return {}

    def read(self, down: Tree, classes: int) -> tuple[Tensor, Tensor] | None:
        """Returns the known prototypes, `[C, H]`, and which those are, `[C]`; None while there are none."""
        return unpack(down, classes)


@dataclass(frozen=True)
class FedProto(SendsMeans, Aligned, ClassRows):
    """FedProto (Tan et al., AAAI 2022): prototypes p_c = sum_i n_ic p_ic / sum_i n_ic over the cohort.

    A client keeps its own model, of any architecture whose embedding has the common width H; for its loss see
    `Aligned`. Embeddings of the upload are those of evaluation mode. The classifier predicts.

    For the messages see `ClassRows`. The paper's further factor 1 / (number of clients with c), which shrinks
    prototypes, is left out. lam = 0 trains as Local.
    """

    sends_model = False

    def read(self, down: Tree, classes: int) -> tuple[Tensor, Tensor] | None:
        return unpack(down, classes)


@dataclass(frozen=True)
class FedProtoAveraged(Aligned, AveragedRows):
    """FedAvg with FedProto's prototypes and loss (`Aligned`), as FGGP has it with lam = 0.01; lam = 0: FedAvg."""
