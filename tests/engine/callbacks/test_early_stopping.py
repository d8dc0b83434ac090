"""Early stopping against a plain search for the round in which it ends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.callbacks.callback import Running
from shoal.engine.callbacks.early_stopping import EarlyStopping
from shoal.storage.errors import ShoalError


def first_end(values: Sequence[float | None], patience: int, mode: str, min_delta: float) -> int | None:
    """Round, from 1, in which so many known values in a row were no better than the best before them."""
    sign = 1 if mode == "max" else -1
    known = [(number, sign * value) for number, value in enumerate(values, 1) if value is not None]
    for place, (number, _) in enumerate(known):
        best, last = None, -1
        for i, (_, value) in enumerate(known[: place + 1]):
            if best is None or value - best > min_delta:
                best, last = value, i
        if place - last >= patience:
            return number
    return None


def line(number: int, value: float | None) -> dict[str, Any]:
    return {"round": number, "loss": value, "scopes": {"served": {"val": {"nodes": 0.5}}}}


@given(
    values=st.lists(st.none() | st.integers(-4, 4).map(lambda n: n / 4), max_size=12),
    patience=st.integers(1, 3),
    mode=st.sampled_from(["max", "min"]),
    min_delta=st.sampled_from([0.0, 0.25, 0.5]),
    cut=st.integers(0, 12),
)
def test_ends_where_it_should_after_any_resume(
    values: list[float | None], patience: int, mode: Any, min_delta: float, cut: int
) -> None:
    lines = [line(number, value) for number, value in enumerate(values, 1)]
    cut = min(cut, len(lines))
    stopping = EarlyStopping("loss", patience, mode, min_delta)
    # One that remembers other rounds, which were lost.
    stopping.start(Running(Path(), {}, {}, 99, _lines=lambda: [line(1, 9.0), line(2, -9.0)]))
    running = Running(Path(), {}, {}, 99, _lines=lambda: lines[:cut])
    stopping.start(running)
    ended = [cut] if running.stopped else []
    for each in lines[cut:]:
        running.stopped = None
        stopping.after_round(running, each)
        ended += [each["round"]] if running.stopped else []
    expected = first_end(values, patience, mode, min_delta)
    assert (ended[0] if ended else None) == (expected if expected is None else max(expected, cut))


def test_early_stopping_reports_its_reason() -> None:
    stopping, running = EarlyStopping("loss", 2, "min"), Running(Path(), {}, {}, 9)
    stopping.start(running)
    for number, value in enumerate((0.5, 0.25, 0.75, 0.25), 1):
        stopping.after_round(running, line(number, value))
    assert running.stopped == "loss was not better than 0.25 2 times in a row"


def test_a_number_that_there_is_not() -> None:
    stopping, running = EarlyStopping("served.val.node"), Running(Path(), {}, {}, 9)
    stopping.start(running)
    stopping.after_round(running, line(1, 0.5))
    with pytest.raises(ShoalError) as error:
        stopping.after_evaluation(running, line(1, 0.5))
    assert str(error.value) == (
        "callbacks: early_stopping.figure: no round has the number 'served.val.node'; there are round, loss, "
        "served.val.nodes; did you mean 'served.val.nodes'?"
    )
