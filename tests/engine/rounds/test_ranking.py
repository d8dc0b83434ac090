"""Areas under ROC curves against pairs compared one by one, average precision by its definition, and scikit-learn."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from shoal.engine.rounds.scoring import average_precisions, mean_auc, twice_wins

INF = float("inf")


def pairs_one_by_one(key_N: list[float], label: list[int], c: int) -> int:
    """Pairs of a row of the class and one of another: 2 for each in which the first has the larger key, 1 for a tie."""
    rows = range(len(label))
    return sum(
        2 * (key_N[i] > key_N[j]) + (key_N[i] == key_N[j])
        for i, j in itertools.product(rows, rows)
        if label[i] == c and label[j] != c
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 1)), max_size=25))
def test_two_classes_are_ranked_by_the_difference_of_their_scores(rows: list[tuple[int, int, int]]) -> None:
    # Few whole numbers: there are many ties.
    scores = torch.tensor([row[:2] for row in rows], dtype=torch.float32).reshape(-1, 2)
    label = [row[2] for row in rows]
    difference = [float(a - b) for a, b, _ in rows]
    expected = [pairs_one_by_one([sign * d for d in difference], label, c) for c, sign in ((0, 1), (1, -1))]
    found = twice_wins(scores, torch.tensor(label, dtype=torch.int64))
    assert found.dtype == np.int64
    assert found.tolist() == expected
    # Each pair is won by one of the two classes for both, so that they agree.
    assert found[0] == found[1]
    support = np.bincount(np.array(label, dtype=np.int64), minlength=2)
    if support.all():
        assert mean_auc(support, found) == pytest.approx(roc_auc_score(np.array(label) == 0, difference))
    else:
        assert mean_auc(support, found) is None


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 60), st.integers(3, 6), st.booleans())
def test_several_classes_against_scikit_learn(seed: int, rows: int, classes: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    # Of whole rows that occur several times, ties are ties in every class.
    score = rng.normal(size=(rows, classes)).astype(np.float32)[
        rng.integers(rows // 4 + 1 if tied else rows, size=rows)
    ]
    label = rng.integers(classes - 1, size=rows)
    found = twice_wins(torch.from_numpy(score), torch.from_numpy(label))
    power = np.exp(score.astype(np.float64))
    probability = power / power.sum(1, keepdims=True)
    support = np.bincount(label, minlength=classes)
    scored = [c for c in range(classes) if 0 < support[c] < rows]
    for c in range(classes):
        assert found[c] == (pairs_one_by_one(probability[:, c].tolist(), label.tolist(), c) if c in scored else 0)
    # The last class does not occur, and counts in no mean.
    areas = [roc_auc_score(label == c, probability[:, c]) for c in scored]
    mean = mean_auc(support, found)
    assert mean == (pytest.approx(np.mean(areas)) if scored else None)


def test_nothing_is_lost_where_a_probability_is_rounded_to_one() -> None:
    scores = torch.tensor([[50.0, 0.0], [60.0, 0.0], [0.0, 50.0], [0.0, 60.0]])
    label = torch.tensor([1, 0, 0, 1])
    assert torch.softmax(scores.double(), 1)[:2, 0].tolist() == [1.0, 1.0]
    # Of four pairs three are won; of those at 60 and 50 the probabilities are the same number.
    assert twice_wins(scores, label).tolist() == [6, 6]
    assert twice_wins(scores, torch.tensor([0, 0, 1, 1])).tolist() == [8, 8]
    assert twice_wins(scores[[1, 0]], label[:2].flip(0)).tolist() == [2, 2]


def test_classes_that_are_ruled_out() -> None:
    # A class without a chance comes last, one without a rival first.
    scores = torch.tensor([[1.0, -INF, 0.0], [-INF, 2.0, -INF], [0.5, 0.5, 0.5], [3.0, -INF, -INF]])
    probability = torch.softmax(scores.double(), 1)
    for label in itertools.product(range(3), repeat=4):
        found = twice_wins(scores, torch.tensor(label))
        assert found.tolist() == [pairs_one_by_one(probability[:, c].tolist(), list(label), c) for c in range(3)]


def test_other_types_and_nobody() -> None:
    half = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float16)
    assert twice_wins(half, torch.tensor([1, 0])).tolist() == [2, 2]
    assert twice_wins(half.requires_grad_(), torch.tensor([0, 1])).tolist() == [0, 0]
    assert twice_wins(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)).tolist() == [0, 0, 0]
    # Each class at its own rows alone: one area of 1, one of 1/2.
    assert mean_auc(np.array([2, 3]), np.array([12, 6])) == pytest.approx((1 + 0.5) / 2)
    assert not math.isnan(mean_auc(np.array([2, 3]), np.array([0, 0])) or 0.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 1)), max_size=25))
def test_average_precision_of_two_classes_is_that_of_scikit_learn(rows: list[tuple[int, int, int]]) -> None:
    scores = torch.tensor([row[:2] for row in rows], dtype=torch.float32).reshape(-1, 2)
    label = np.array([row[2] for row in rows], dtype=np.int64)
    difference = np.array([b - a for a, b, _ in rows])
    found = average_precisions(scores, torch.from_numpy(label))
    assert found.dtype == np.float64
    if 0 < label.sum() < len(label):
        expected = [average_precision_score(label == c, sign * difference) for c, sign in ((0, -1), (1, 1))]
        assert found.tolist() == pytest.approx(expected, abs=1e-12)
    else:
        assert found.tolist() == [0, 0]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 300), st.booleans())
def test_average_precision_has_the_same_bits_in_any_order(seed: int, rows: int, tied: bool) -> None:
    rng = np.random.default_rng(seed)
    score = rng.normal(size=(rows, 3)).astype(np.float32)[rng.integers(rows // 4 + 1 if tied else rows, size=rows)]
    label = rng.integers(3, size=rows)
    order = rng.permutation(rows)
    found, other = (
        average_precisions(torch.from_numpy(score[of]), torch.from_numpy(label[of])) for of in (np.arange(rows), order)
    )
    assert found.tobytes() == other.tobytes()
    power = np.exp(score.astype(np.float64))
    for c in np.flatnonzero(found):
        expected = average_precision_score(label == c, (power / power.sum(1, keepdims=True))[:, c])
        assert found[c] == pytest.approx(expected, abs=1e-12)


def test_average_precision_by_hand() -> None:
    # From the highest margin of class 1 down: hit; then a tie of a hit and a miss; miss; hit.
    scores = torch.tensor([[0.0, 9.0], [0.0, 5.0], [1.0, 6.0], [3.0, 1.0], [4.0, 0.0]])
    label = torch.tensor([1, 1, 0, 0, 1])
    assert average_precisions(scores, label)[1] == pytest.approx((1 / 1 + 2 / 3 + 3 / 5) / 3)
    # A class without a chance comes last, also behind what ties with nothing.
    ruled_out = torch.tensor([[1.0, -INF], [-INF, 2.0], [3.0, -INF]])
    assert average_precisions(ruled_out, torch.tensor([1, 0, 0])).tolist() == pytest.approx(
        [(1 / 2 + 2 / 3) / 2, 1 / 3]
    )
    assert average_precisions(torch.empty(0, 2), torch.empty(0, dtype=torch.int64)).tolist() == [0, 0]
