"""FedGTA's mixing by hand, and its options."""

from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.algorithms.methods.fedgta.fedgta import FedGTA, mixing_rows


def random_rows(rows: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)).mul(3).softmax(1)


# Mixing


def test_mixing_rows_eps_above_one_is_identity() -> None:
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
        ({"sketch_every": 0}, "sketch_every"),
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
