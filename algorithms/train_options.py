"""Options of a client's training in a round."""

import json
import math
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import CLOSED, Named, Number, Positive
from shoal.storage.suggestions import did_you_mean_name

# These schedules take numbers as options, and change nothing but the rate.
SCHEDULES = (
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LinearLR",
    "MultiStepLR",
    "PolynomialLR",
    "StepLR",
)
# An option of every one of them, by which torch itself goes on from somewhere.
OF_TORCH = "last_epoch"
CANNOT = (TypeError, ValueError, ArithmeticError, AttributeError)


class Rates:
    """The rates of all rounds, found one after another as they are asked for."""

    def __init__(self, schedule: Named, lr: float) -> None:
        """Begins with the first round; a ValueError for an unknown name, or an option that is unknown or impossible."""
        if schedule.name not in SCHEDULES:
            hint, names = did_you_mean_name(schedule.name, SCHEDULES), ", ".join(SCHEDULES)
            raise ValueError(f"{hint}{schedule.name} is no schedule; known here: {names}")
        if wrong := [key for key, value in schedule.options.items() if key == OF_TORCH or not _is_number(value)]:
            raise ValueError(f"{wrong[0]} is no option of {schedule.name}, or not a number, or a list of some")
        # The import takes seconds, and a config without a schedule is read without it.
        import torch

        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=lr)
        try:
            self._scheduler = getattr(torch.optim.lr_scheduler, schedule.name)(self._optimizer, **schedule.options)
            # torch warns of a scheduler that is stepped before its optimizer.
            self._optimizer.step()
            self._found = self._scheduler.get_last_lr()
            self.of_round(2)
        except CANNOT as error:
            raise ValueError(f"{schedule.name}: {' '.join(str(error).split())}") from None

    def of_round(self, number: int) -> float:
        """Returns the rate of a round, from 1."""
        while len(self._found) < number:
            self._scheduler.step()
            self._found += self._scheduler.get_last_lr()
        return float(self._found[number - 1])


def possible(schedule: Named | None) -> Named | None:
    """Returns the schedule; raises a ValueError if torch does not take it."""
    if schedule is not None:
        Rates(schedule, 1.0)
    return schedule


def rate(schedule: Named, lr: float, number: int) -> float:
    """Returns the rate of a round, from 1; raises a ShoalError where it is not positive and finite."""
    lr_of_round = _rates(schedule.name, json.dumps(schedule.options), lr).of_round(number)
    if not (math.isfinite(lr_of_round) and lr_of_round > 0):
        raise ShoalError(
            "train.schedule",
            f"{schedule.name} gives round {number} the rate {lr_of_round:g}, with which nothing is learnt; "
            "change its options, or run fewer rounds",
        )
    return lr_of_round


@lru_cache(maxsize=16)
def _rates(name: str, options: str, lr: float) -> Rates:
    """Makes the rates; options are JSON, because a key of the cache has to be hashable."""
    return Rates(Named(name=name, **json.loads(options)), lr)


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_number(item) and not isinstance(item, list | tuple) for item in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


LOOKED_AHEAD = 100_000


@dataclass(frozen=True, config=CLOSED)
class TrainOptions:
    """The section `train` of a config; a ValueError where a value is out of its bounds.

    Attributes:
        epochs: Passes over the training rows in a round.
        optimizer: `adam` or `sgd`.
        lr: Learning rate.
        weight_decay: L2 in the gradient, on all parameters.
        momentum: Momentum of SGD.
        batch_size: Training rows a step; null: all rows in one step.
        opt_state: `keep` the optimizer's moments between rounds (as the papers' code does), or `reset` them.
        dropout: Probability that a hidden activation of a backbone is dropped.
        schedule: How the learning rate changes from round to round: a scheduler of torch with its options, as
            `{name: CosineAnnealingLR, T_max: 100}`, which takes a step a round; null: `lr` in all rounds.
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
        """Returns the options of a round, from 1, with its rate as `lr`; see `rate`."""
        if self.schedule is None:
            return self
        return replace(self, lr=rate(self.schedule, self.lr, number), schedule=None)

    def require_rates(self, rounds: int) -> None:
        """Raises a ShoalError where the schedule gives a round no rate; of very long runs, one of the first rounds."""
        if self.schedule is not None:
            for number in range(1, min(rounds, LOOKED_AHEAD) + 1):
                rate(self.schedule, self.lr, number)
