"""Losses with a margin and contrastive ones against loops in NumPy, finite differences and by hand."""

import math

import numpy as np
import pytest
import torch

from shoal.algorithms.losses.prototype_losses import (
    class_margin,
    contrast,
    cosine_margin,
    distances,
    margin_cross_entropy,
)

ALL = torch.tensor([True, True])


def drawn(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))


def in_float64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.stack([((x - y) ** 2).sum() ** 0.5 for y in b.double()]) for x in a.double()])


@pytest.mark.parametrize("norm", [0.0, 1e2, 1e4])
@pytest.mark.parametrize(("queries", "entries"), [(6, 4), (40, 30)])
def test_distances_and_their_gradients_far_from_the_origin(norm: float, queries: int, entries: int) -> None:
    # All points within about 3 of each other, around one of the given norm.
    centre = norm * torch.full((5,), 5**-0.5)
    a, b = drawn(queries) + centre, drawn(entries, 1) + centre
    weight = torch.randn(queries, entries, generator=torch.Generator().manual_seed(2))
    inputs = a.requires_grad_(), b.requires_grad_()
    expected, found = in_float64(*inputs), distances(*inputs)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    gradients = [torch.autograd.grad((weight * d).sum(), inputs) for d in (expected, found)]
    for right, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-5, atol=1e-5)


def test_distances_of_points_that_coincide() -> None:
    a = drawn(6).requires_grad_()
    found = distances(a, a.detach())
    assert torch.equal(found.detach().diagonal(), torch.zeros(6))
    found.diagonal().sum().backward()
    assert torch.equal(a.grad, torch.zeros(6, 5))


def test_the_margin_is_the_distance_of_class_means() -> None:
    # Means 0, 3, 10 on a line, class 3 has no prototype: the nearest neighbours are 3, 3 and 7 away.
    proto = torch.tensor([[-1.0], [1.0], [3.0], [10.0]])
    classes = torch.tensor([0, 0, 1, 2])
    assert class_margin(proto, classes, 4, cap=100) == pytest.approx(7)
    assert class_margin(proto, classes, 4, cap=0.5) == 0.5
    assert class_margin(proto[:3], classes[:3], 4, cap=100) == pytest.approx(3)
    assert class_margin(proto[:2], classes[:2], 4, cap=100) == 0


def test_the_margin_of_cosines() -> None:
    # Directions at 0, 60 and 180 degrees: the nearest are 1/2, 1/2 and 3/2 away.
    proto = torch.tensor([[2.0, 0.0], [0.5, 0.75**0.5], [-3.0, 0.0]])
    assert cosine_margin(proto, torch.arange(3), 3, cap=100) == pytest.approx(1.5)
    assert cosine_margin(proto[:1], torch.arange(1), 3, cap=100) == 0


def test_cross_entropy_on_distances_by_hand() -> None:
    anchor = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    query, own = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    for margin in (0.0, 0.5):
        expected = math.log(1 + math.exp(-2 + 1 + margin))
        found = float(margin_cross_entropy(query, own, anchor, ALL, margin))
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_margin_makes_the_task_harder() -> None:
    query, own = drawn(20), torch.arange(20) % 4
    anchor, known = drawn(4, 2), torch.ones(4, dtype=torch.bool)
    losses = [float(margin_cross_entropy(query, own, anchor, known, m)) for m in (0.0, 0.3, 1.0)]
    assert losses == sorted(losses)
    assert losses[0] < losses[2]
    losses = [float(contrast(anchor, torch.arange(4), query, own, 0.5, m)) for m in (0.0, 0.3, 1.0)]
    assert losses == sorted(losses)
    assert losses[0] < losses[2]


def in_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


@pytest.mark.parametrize("kind", ["distance", "cosine"])
def test_margins_of_a_loop(kind: str) -> None:
    """The means are of the prototypes as they are; only then do they get length one."""
    proto, of = drawn(9), torch.tensor([0, 0, 0, 2, 2, 3, 4, 4, 4])
    means = [in_numpy(proto[of == c]).mean(0) for c in (0, 2, 3, 4)]
    if kind == "distance":
        apart = [[np.linalg.norm(a - b) for b in means] for a in means]
    else:
        apart = [[1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in means] for a in means]
    expected = max(min(apart[i][j] for j in range(4) if j != i) for i in range(4))
    margin = class_margin if kind == "distance" else cosine_margin
    assert margin(proto, of, 6, 100.0) == pytest.approx(expected, rel=1e-5)
    assert margin(proto, of, 6, expected / 2) == expected / 2


def test_cosines_of_one_direction_are_no_margin() -> None:
    """Rounding may give them more than one."""
    direction = drawn(1).expand(3, 5) * torch.tensor([[1.0], [3.0], [7.0]])
    margin = cosine_margin(direction, torch.arange(3), 3, 1.0)
    assert 0 <= margin < 1e-6


@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_cross_entropy_on_distances_of_a_loop(margin: float) -> None:
    query, own, anchor = drawn(7), torch.tensor([0, 2, 2, 3, 0, 3, 3]), drawn(5, 2)
    known = torch.tensor([True, False, True, True, True])
    values = []
    for q, c in zip(in_numpy(query), own.tolist()):
        logit = {
            d: -np.linalg.norm(q - a) - margin * (c == d) for d, a in enumerate(in_numpy(anchor)) if bool(known[d])
        }
        values.append(np.log(sum(np.exp(value) for value in logit.values())) - logit[c])
    found = margin_cross_entropy(query, own, anchor, known, margin)
    assert float(found) == pytest.approx(np.mean(values), rel=1e-5)
    inputs = [t.double().requires_grad_() for t in (query, anchor)]
    assert torch.autograd.gradcheck(lambda q, a: margin_cross_entropy(q, own, a, known, margin), inputs)


def test_an_unknown_anchor_takes_no_part() -> None:
    query, own = drawn(3), torch.tensor([0, 0, 2])
    anchor = drawn(4, 2).requires_grad_()
    known = torch.tensor([True, False, True, True])
    loss = margin_cross_entropy(query, own, anchor, known, 0.2)
    loss.backward()
    assert torch.equal(anchor.grad[1], torch.zeros(5))
    moved = anchor.detach().clone()
    moved[1] = 100
    assert torch.equal(margin_cross_entropy(query, own, moved, known, 0.2), loss.detach())


@pytest.mark.parametrize(("temperature", "margin"), [(0.3, 0.1), (1.5, 0.0), (0.7, 0.6)])
def test_contrast_equals_a_naive_loop(temperature: float, margin: float) -> None:
    """The last query has no positive; the bank's last two entries are no query's own."""
    query, bank = drawn(4), drawn(9, 1)
    of_query, of_bank = torch.tensor([0, 1, 2, 5]), torch.tensor([0, 0, 1, 1, 2, 2, 2, 3, 3])
    values = []
    for q, c in zip(in_numpy(query)[:3], of_query.tolist()):
        cosine = [(q @ b / np.linalg.norm(q) / np.linalg.norm(b), d) for b, d in zip(in_numpy(bank), of_bank.tolist())]
        positive = sum(np.exp((s - margin) / temperature) for s, d in cosine if d == c)
        negative = sum(np.exp(s / temperature) for s, d in cosine if d != c)
        values.append(-np.log(positive / (positive + negative)))
    found = contrast(query, of_query, bank, of_bank, temperature, margin)
    assert float(found) == pytest.approx(np.mean(values), rel=1e-5)
    inputs = [t.double().requires_grad_() for t in (query, bank)]
    assert torch.autograd.gradcheck(lambda q, b: contrast(q, of_query, b, of_bank, temperature, margin), inputs)


def test_a_query_without_a_positive_or_a_negative_takes_no_part() -> None:
    query, bank = drawn(2), drawn(3, 1)
    assert float(contrast(query, torch.tensor([0, 1]), bank, torch.tensor([0, 0, 0]), 0.5)) == 0
    alone = contrast(query[:1], torch.tensor([0]), bank, torch.tensor([0, 0, 2]), 0.5, margin=0.0)
    assert torch.equal(contrast(query, torch.tensor([0, 1]), bank, torch.tensor([0, 0, 2]), 0.5), alone)


def test_nothing_to_contrast() -> None:
    query = drawn(2).requires_grad_()
    loss = contrast(query, torch.tensor([0, 0]), drawn(3), torch.tensor([0, 0, 0]), 1.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.equal(query.grad, torch.zeros(2, 5))
    assert float(contrast(drawn(2), torch.tensor([0, 1]), drawn(1)[:0], torch.tensor([]), 1.0)) == 0
