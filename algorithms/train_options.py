"""What a config says of local training."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainOptions:
    """The section `train` of a config.

    Attributes:
        epochs: Passes over the training rows in a round.
        optimizer: `adam` or `sgd`.
        lr: Learning rate.
        weight_decay: L2 in the gradient, on all parameters.
        momentum: Of SGD.
        batch_size: Training rows a step; None: all rows in one step.
        opt_state: `keep` the optimizer's moments between rounds (as the papers' code does), or `reset` them.
    """

    epochs: int = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 0.01
    weight_decay: float = 5e-4
    momentum: float = 0.0
    batch_size: int | None = None
    opt_state: Literal["keep", "reset"] = "keep"
