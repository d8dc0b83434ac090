"""FedProto: clients share class prototypes instead of parameters."""

from dataclasses import dataclass

from torch import Tensor

from shoal.algorithms.base import Client
from shoal.algorithms.methods.fedavg_with_prototypes import AveragedRows
from shoal.algorithms.methods.shared.class_prototypes import ClassRows, training_embeddings
from shoal.algorithms.methods.shared.prototype_alignment import Aligned


@dataclass(frozen=True)
class FedProto(Aligned, ClassRows):
    """FedProto (Tan et al., AAAI 2022): prototypes p_c = sum_i n_ic p_ic / sum_i n_ic over the cohort.

    A client keeps its own model, of any architecture whose embedding has the common width H, and trains it on
    cross-entropy + lam / H * mean over its training rows of |z_v - p_{y_v}|^2; see `methods.aligned`. Embeddings of the
    upload are those of evaluation mode. The classifier predicts.

    Up: the p_ic of the C_i classes the client trains on and all counts, C_i H + C scalars. Down: the known p_c and a
    bit for every class. A class that nobody in the cohort has keeps its prototype; the paper's further factor
    1 / (number of clients with c), which shrinks them, is left out. lam = 0 trains as Local.

    Attributes:
        lam: Weight of the alignment; 1 in the paper, 0.1 on its hardest data.
    """

    def rows_of(self, client: Client) -> Tensor:
        return training_embeddings(client)


@dataclass(frozen=True)
class FedProtoAveraged(Aligned, AveragedRows):
    """The FedProto that FGGP compares with: one model, averaged as by FedAvg, beside FedProto's prototypes and loss.

    A client trains on cross-entropy + lam / H * mean over its training rows of |z_v - p_{y_v}|^2; see
    `methods.aligned`. FGGP's code weighs it by 0.01. lam = 0 trains as FedAvg.

    Attributes:
        lam: Weight of the alignment.
    """
