"""How a client trains in a round."""

from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from algorithms.rate_schedule import possible, rate
from storage.option_types import CLOSED, Named, Number, Positive

LOOKED_AHEAD = 100_000


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
        schedule: How the learning rate changes from round to round: a scheduler of torch with its options, as
            `{name: CosineAnnealingLR, T_max: 100}`, which takes a step a round; None: `lr` in all rounds.

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
    schedule: Annotated[Named | None, AfterValidator(possible)] = None

    def in_round(self, number: int) -> Self:
        """The options of a round, from 1, with its rate as `lr`.

        Raises:
            ShoalError: The schedule gives the round no rate.
        """
        if self.schedule is None:
            return self
        return replace(self, lr=rate(self.schedule, self.lr, number), schedule=None)

    def require_rates(self, rounds: int) -> None:
        """Refuses a schedule that leaves a round of a run without a rate; of very long runs, one of the first rounds.

        Raises:
            ShoalError: It does.
        """
        if self.schedule is not None:
            for number in range(1, min(rounds, LOOKED_AHEAD) + 1):
                rate(self.schedule, self.lr, number)
