"""Targets that are no classes: what is read of them, what is refused, and their scale."""

from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused

from shoal.storage.errors import ShoalError
from shoal.storage.graph.targets import Scale, clean_targets, moments_of, present, scale_of

NAN = np.nan


def cleaned(y: Any, target: Any = "regression") -> np.ndarray:
    return clean_targets(y, target, len(y), "graph (y)", "there are others")


def test_numbers_of_one_target_or_several() -> None:
    np.testing.assert_array_equal(cleaned([1, 2, NAN]), np.array([[1], [2], [NAN]], np.float32))
    assert cleaned(np.ones((4, 3), np.int8)).shape == (4, 3)
    np.testing.assert_array_equal(cleaned(np.array([None, 2.5], dtype=object)), np.array([[NAN], [2.5]], np.float32))
    np.testing.assert_array_equal(present(cleaned([[NAN, 1.0], [NAN, NAN], [3.0, NAN]])), [0, -1, 0])


def test_labels_are_zero_one_or_missing() -> None:
    y = np.array([[True, False], [False, True]])
    np.testing.assert_array_equal(cleaned(y, "multilabel"), y.astype(np.float32))
    np.testing.assert_array_equal(
        cleaned([[1, -1], [NAN, 0]], "multilabel"), np.array([[1, NAN], [NAN, 0]], np.float32)
    )


@pytest.mark.parametrize(
    ("y", "target", "message"),
    [
        ([1.0, np.inf], "regression", "row 1 is inf; expected a finite number, or NaN where there is none"),
        ([[0.0, 1e300]], "regression", "row 0, target 1, is 1e+300; expected a finite number"),
        ([[NAN, 1.0], [NAN, 2.0]], "regression", "no item has target 0; take its column out"),
        ([NAN, NAN], "regression", "no item has a target; there is nothing to learn"),
        ([[0, 1], [0, 2]], "multilabel", "row 1, target 1, is 2; a label is 0 or 1"),
        ([0.5], "multilabel", "row 0 is 0.5; a label is 0 or 1"),
        (["a", "b"], "regression", "expected numbers [items] or [items, targets], got <U1 [2]"),
        (np.array(["a", 1], dtype=object), "regression", "expected numbers, got objects"),
        (np.empty((3, 0)), "regression", "expected numbers [items] or [items, targets], got float64 [3, 0]"),
        (np.zeros((2, 10_001)), "regression", "expected at most 10,000 targets, got 10,001"),
    ],
)
def test_wrong_targets(y: Any, target: Any, message: str) -> None:
    with refused("graph (y)", says=message):
        cleaned(y, target)
    with pytest.raises(ShoalError, match="shape"):
        clean_targets([1.0], "regression", 2, "y", "x has 2 rows")


def test_scale_is_that_of_what_is_given() -> None:
    rng = np.random.default_rng(0)
    y_NT = (1e5 + 30 * rng.standard_normal((200, 2))).astype(np.float32)
    y_NT[::5, 1] = NAN
    parts = np.array_split(y_NT, 7)
    scale = Scale.of(np.sum([moments_of(part) for part in parts], axis=0))
    np.testing.assert_allclose(scale.mean_T, np.nanmean(y_NT.astype(np.float64), 0), rtol=1e-9)
    np.testing.assert_allclose(scale.spread_T, np.nanstd(y_NT.astype(np.float64), 0), rtol=1e-5)
    seen = scale.standardized(torch.from_numpy(y_NT))
    np.testing.assert_allclose(np.nanstd(seen.numpy(), 0), [1, 1], rtol=1e-3)
    np.testing.assert_allclose(scale.in_units(seen).numpy(), y_NT, rtol=1e-6)


def test_equal_numbers_have_spread_one() -> None:
    y_NT = np.full((5, 1), 0.1, np.float32)
    assert Scale.of(moments_of(y_NT)).spread_T.tolist() == [1.0]


def test_clients_may_have_their_own_scale() -> None:
    """But where they have no training item, or no targets of their own."""
    federation = Scale(np.zeros(1), np.ones(1))
    y_NT = np.array([[1.0], [3.0], [9.0]], np.float32)
    assert scale_of(federation, y_NT, [0, 1]) is federation
    assert scale_of(None, y_NT, [0, 1]) is None
    own = federation._replace(own=True)
    mine = scale_of(own, y_NT, [0, 1])
    assert mine is not None
    assert (mine.mean_T.tolist(), mine.spread_T.tolist()) == ([2.0], [1.0])
    # A target without a number there, or of equal ones, is seen as that of all.
    several = Scale(np.array([5.0, 7.0, 9.0]), np.array([2.0, 3.0, 4.0]), own=True)
    mine = scale_of(several, np.array([[1.0, NAN, 2.0], [3.0, NAN, 2.0]], np.float32), [0, 1])
    assert mine is not None
    assert (mine.mean_T.tolist(), mine.spread_T.tolist()) == ([2.0, 7.0, 2.0], [1.0, 3.0, 4.0])
    assert scale_of(own, y_NT, []) is own
    assert scale_of(own, None, [0]) is own
