from typing import Any

import pytest
from pydantic import ValidationError

from shoal.algorithms.train_options import TrainOptions


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
