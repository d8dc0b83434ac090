"""The formulas of FedGTA by hand and against naive loops, and its options."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from algorithms.methods.fedgta import FedGTA, confidence, mixing_rows, moments
from engine.rounds.server import Server

Run = Callable[..., Server]
DEGREE = torch.tensor([1.0, 2.0, 4.0, 3.0])
near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def random_rows(rows: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(1)


# Confidence


@pytest.mark.parametrize("classes", [2, 3, 7, 40])
def test_confidence_of_certain_and_of_uniform_rows(classes: int) -> None:
    certain = torch.eye(classes)[torch.tensor([0, 1, 1, 0])]
    uniform = torch.full((4, classes), 1 / classes)
    total = float(DEGREE.sum())
    assert confidence(certain, DEGREE, "paper") == pytest.approx(total * classes / math.e, rel=1e-6)
    assert confidence(uniform, DEGREE, "paper") == pytest.approx(
        total * (classes / math.e - math.log(classes)), rel=1e-5, abs=1e-5
    )
    assert confidence(certain, DEGREE, "normalized") == pytest.approx(total)
    assert confidence(uniform, DEGREE, "normalized") == pytest.approx(0, abs=1e-5)
    assert confidence(uniform, DEGREE, "uniform") == 1


def test_confidence_of_a_single_class() -> None:
    assert confidence(torch.ones(4, 1), DEGREE, "normalized") == pytest.approx(10)
    assert confidence(torch.ones(4, 1), DEGREE, "paper") == pytest.approx(10 / math.e)


def test_confidence_by_hand() -> None:
    y = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    entropy = 0.5 * math.log(2) + 0.5 * math.log(4)
    assert confidence(y, torch.tensor([2.0, 3.0]), "paper") == pytest.approx(
        2 * (3 / math.e - entropy) + 3 * (3 / math.e), rel=1e-6
    )


def test_confidence_of_rows_that_do_not_sum_to_one_by_hand() -> None:
    # y log y is smallest at 1/e: the first row adds nothing, a hub's row more than a certain one.
    y = torch.tensor([[1 / math.e, 1 / math.e], [2.0, 1.0]])
    assert confidence(y[:1], torch.tensor([4.0]), "paper") == pytest.approx(0, abs=1e-6)
    hub = 2 / math.e + 2 * math.log(2)
    assert confidence(y, torch.tensor([4.0, 3.0]), "paper") == pytest.approx(3 * hub, rel=1e-6)
    assert hub > 2 / math.e


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 50, width=32), min_size=1, max_size=8))
def test_confidence_of_any_row_is_not_negative(row: list[float]) -> None:
    assert confidence(torch.tensor([row]), torch.tensor([1.0]), "paper") >= -1e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 50), st.integers(0, 2**31))
def test_confidence_is_not_negative_and_ignores_the_order_of_nodes(classes: int, nodes: int, seed: int) -> None:
    y = random_rows(nodes, classes, seed)
    degree = torch.randint(1, 100, (nodes,), generator=torch.Generator().manual_seed(seed)).float()
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed))
    h = confidence(y, degree, "paper")
    assert h >= 0
    assert confidence(y[order], degree[order], "paper") == pytest.approx(h, rel=1e-6)


# Moments


def test_moments_of_three_nodes_by_hand() -> None:
    y = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    raw = [[1 / 2, 1 / 2], [1.25 / 3, 1.25 / 3], [1.125 / 3, 1.125 / 3]]
    central = [[0.0, 0.0], [0.5 / 3, 0.5 / 3], [0.0, 0.0]]
    torch.testing.assert_close(moments(y, 3, "raw"), torch.tensor(raw))
    torch.testing.assert_close(moments(y, 3, "central"), torch.tensor(central))
    torch.testing.assert_close(moments(y, 3, "hybrid"), torch.tensor(raw + central))


@pytest.mark.parametrize("nodes", [1023, 1024, 1025, 2500])
def test_moments_of_many_nodes(nodes: int) -> None:
    y = random_rows(nodes, 3)
    rows = y.double().numpy()
    expected = [np.mean((rows - origin) ** q, axis=0) for origin in (0, rows.mean(0)) for q in (1, 2, 3)]
    np.testing.assert_allclose(moments(y, 3, "hybrid"), expected, rtol=1e-4, atol=1e-7)


def test_odd_central_moments_of_a_skewed_class() -> None:
    # Mean 1/4: deviations -1/4, -1/4, -1/4, 3/4.
    y = torch.tensor([[0.0], [0.0], [0.0], [1.0]])
    expected = [[0.0], [3 / 16], [(27 - 3) / 256], [(81 + 3) / 1024]]
    torch.testing.assert_close(moments(y, 4, "central"), torch.tensor(expected))


@pytest.mark.parametrize("kind", ["raw", "central", "hybrid"])
def test_moments_ignore_the_order_of_nodes(kind: str) -> None:
    y, order = random_rows(30, 4), torch.randperm(30, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(moments(y[order], 5, kind), moments(y, 5, kind), rtol=1e-5, atol=1e-7)


def test_the_first_central_moment_vanishes() -> None:
    assert moments(random_rows(50, 5), 1, "central").abs().max() < 1e-7


# Mixing


def test_nobody_is_like_anybody_above_one() -> None:
    same = torch.ones(4, 3)
    assert torch.equal(mixing_rows(same, torch.rand(4) + 1, 1.01), torch.eye(4))


def test_all_admitted_with_equal_confidence_is_the_mean() -> None:
    torch.testing.assert_close(mixing_rows(torch.randn(5, 3), torch.full((5,), 7.0), -1), torch.full((5, 5), 0.2))


def test_groups_of_equal_sketches_form_blocks() -> None:
    m = torch.tensor([[1.0, 0, 0], [0, 1, 0], [2, 0, 0], [0, 0, 1]])
    expected = [[0.25, 0, 0.75, 0], [0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0, 1]]
    torch.testing.assert_close(mixing_rows(m, torch.tensor([1.0, 5, 3, 2]), 0.5), torch.tensor(expected))


def test_a_cosine_equal_to_the_threshold_admits() -> None:
    m, h = torch.tensor([[1.0, 0], [2, 0], [0, 1]]), torch.tensor([1.0, 3, 1])
    assert torch.equal(mixing_rows(m, h, 1.0), torch.tensor([[0.25, 0.75, 0], [0.25, 0.75, 0], [0, 0, 1]]))


def test_no_cosine_leaves_its_range_by_rounding() -> None:
    vectors = random_rows(200, 40)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    above = vectors[[int((unit @ unit.T).diagonal().argmax())]]
    same, opposite = torch.cat([above, above]), torch.cat([above, -above])
    assert torch.equal(mixing_rows(same, torch.ones(2), 1.0000001), torch.eye(2))
    assert torch.equal(mixing_rows(opposite, torch.ones(2), -1.0), torch.full((2, 2), 0.5))


def test_an_empty_sketch_and_no_confidence_still_give_rows() -> None:
    rows = mixing_rows(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([1e-12, 1e-12]), 0.5)
    assert torch.equal(rows, torch.eye(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lp_steps": 0}, "lp_steps"),
        ({"orders": 0}, "orders"),
        ({"lp_seed_weight": 1.5}, "lp_seed_weight"),
        ({"lp_seed_weight": -0.5}, "lp_seed_weight"),
        ({"rows": "raw", "confidence": "normalized"}, "set rows: stochastic"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FedGTA(**options)


@pytest.mark.parametrize("seed_weight", [0, 1])
def test_the_limits_of_options_are_allowed(seed_weight: float) -> None:
    method = FedGTA(lp_steps=1, orders=1, lp_seed_weight=seed_weight)
    assert (method.lp_steps, method.orders, method.lp_seed_weight) == (1, 1, seed_weight)
