"""Bounds of the options of training, and rates of rounds against their formulas."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError
from support.errors import refused

from shoal.algorithms.train_options import SCHEDULES, TrainOptions

LR = 0.2
# Options, and the rate of round r from the documentation of torch.
FORMULAS: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "ConstantLR": ({"factor": 0.5, "total_iters": 3}, lambda r: LR * (0.5 if r <= 3 else 1)),
    "CosineAnnealingLR": (
        {"T_max": 8, "eta_min": 0.01},
        lambda r: 0.01 + (LR - 0.01) * (1 + math.cos(math.pi * (r - 1) / 8)) / 2,
    ),
    "CosineAnnealingWarmRestarts": (
        {"T_0": 3, "eta_min": 0.01},
        lambda r: 0.01 + (LR - 0.01) * (1 + math.cos(math.pi * ((r - 1) % 3) / 3)) / 2,
    ),
    "ExponentialLR": ({"gamma": 0.9}, lambda r: LR * 0.9 ** (r - 1)),
    "LinearLR": (
        {"start_factor": 0.1, "end_factor": 1.0, "total_iters": 5},
        lambda r: LR * (0.1 + 0.9 * min(r - 1, 5) / 5),
    ),
    "MultiStepLR": ({"milestones": [2, 5], "gamma": 0.1}, lambda r: LR * 0.1 ** ((r - 1 >= 2) + (r - 1 >= 5))),
    "PolynomialLR": ({"total_iters": 20, "power": 2.0}, lambda r: LR * (1 - (r - 1) / 20) ** 2),
    "StepLR": ({"step_size": 3, "gamma": 0.5}, lambda r: LR * 0.5 ** ((r - 1) // 3)),
}


def scheduled(name: str, **options: Any) -> TrainOptions:
    return TrainOptions(lr=LR, schedule={"name": name, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates(name: str) -> None:
    options, formula = FORMULAS[name]
    train = scheduled(name, **options)
    # In any order, as hosts that are started anew ask.
    for number in (7, 2, 9, 1, 3, 8):
        found = train.in_round(number)
        assert found.lr == pytest.approx(formula(number), rel=1e-12)
        assert found.schedule is None
        assert found.epochs == train.epochs
    once = [train.in_round(number).lr for number in range(1, 10)]
    assert once == [scheduled(name, **options).in_round(number).lr for number in range(1, 10)]
    train.require_rates(9)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"name": "Cosine"}, "Cosine is no schedule; known here: ConstantLR, "),
        ({"name": "StepLr", "step_size": 1}, r"did you mean 'StepLR'\?"),
        ({"name": "ReduceLROnPlateau"}, "ReduceLROnPlateau is no schedule"),
        ({"name": "StepLR"}, "StepLR: .*step_size"),
        ({"name": "StepLR", "step_size": 0}, "StepLR: "),
        ({"name": "StepLR", "step_size": True}, "step_size is no option of StepLR, or not a number"),
        ({"name": "StepLR", "step_size": 2, "last_epoch": 4}, "last_epoch is no option of StepLR"),
        ({"name": "StepLR", "step_size": 2, "gamma": math.inf}, "gamma is no option of StepLR, or not a number"),
        ({"name": "MultiStepLR", "milestones": [[1]]}, "milestones is no option of MultiStepLR, or not a number"),
        ({"name": "LinearLR", "start_factor": 2.0}, "LinearLR: "),
    ],
)
def test_what_torch_does_not_take(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        TrainOptions(schedule=options)  # type: ignore[arg-type]


def test_a_round_without_a_rate() -> None:
    train = scheduled("CosineAnnealingLR", T_max=4)
    train.require_rates(4)
    with refused("train.schedule", says="round 5 the rate 0"):
        train.require_rates(9)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("epochs", [1, 50], [0, -1, 1.5]),
        ("optimizer", ["adam", "sgd"], ["adamw", "Adam"]),
        ("lr", [1e-20, 3.0], [0.0, -0.1, float("inf"), float("nan")]),
        ("weight_decay", [0.0, 2.0], [-1e-9, float("inf"), float("nan")]),
        ("momentum", [0.0, 0.999], [-0.1, 1.0]),
        ("batch_size", [None, 1], [0]),
        ("opt_state", ["keep", "reset"], ["drop"]),
        ("dropout", [0.0, 0.999], [-0.1, 1.0]),
    ],
)
def test_bounds(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(TrainOptions(**{name: value}), name) == value
    for value in bad:
        with pytest.raises(ValidationError, match=name):
            TrainOptions(**{name: value})


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="epoch"):
        TrainOptions(epoch=3)  # type: ignore[call-arg]
