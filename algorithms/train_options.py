"""How a client trains in a round."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from storage.option_types import CLOSED, Number, Positive


@dataclass(frozen=True, config=CLOSED)
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
        dropout: Probability that a hidden activation of a backbone is dropped.

    Raises:
        ValueError: A value is out of its bounds.
    """

    epochs: Positive = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: Annotated[Number, Field(gt=0)] = 0.01
    weight_decay: Annotated[Number, Field(ge=0)] = 5e-4
    momentum: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    batch_size: Positive | None = None
    opt_state: Literal["keep", "reset"] = "keep"
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.5
