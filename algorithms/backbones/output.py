"""What every backbone returns."""

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """Scores and representation of N nodes.

    Attributes:
        logits_NC: Unnormalised class scores `[N, C]`.
        embedding_NH: Input of the last linear layer before its dropout `[N, H]`, for methods with prototypes.
    """

    logits_NC: Tensor
    embedding_NH: Tensor
