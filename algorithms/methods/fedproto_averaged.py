"""FedProto with averaged parameters."""

from dataclasses import dataclass

from algorithms.methods.aligned import Aligned
from algorithms.methods.averaged_rows import AveragedRows


@dataclass(frozen=True)
class FedProtoAveraged(Aligned, AveragedRows):
    """The FedProto that FGGP compares with: one model, averaged as by FedAvg, beside FedProto's prototypes and loss.

    A client trains on cross-entropy + lam / H * mean over its training rows of |z_v - p_{y_v}|^2; see
    `methods.aligned`. FGGP's code weighs it by 0.01. lam = 0 trains as FedAvg.

    Attributes:
        lam: Weight of the alignment.
    """
