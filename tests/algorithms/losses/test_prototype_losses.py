"""Losses of prototypes and of two views against loops in NumPy and finite differences, and by hand where they end."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.losses import prototype_losses
from shoal.algorithms.losses.prototype_losses import (
    MarginCrossEntropy,
    SumAlignment,
    SumOfLevels,
    contrast,
    contrast_by_class,
    contrast_of_rows,
    differentiate,
    mean_square,
    nt_xent,
    of_classes,
    prototype_alignment,
)
from shoal.algorithms.models.compiled.projected_losses import BLOCK
from shoal.storage.graph.sparse_matrix import SparseMatrix


def drawn(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))


def in_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.double().numpy()


def in_float64(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.stack([((x - y) ** 2).sum() ** 0.5 for y in b.double()]) for x in a.double()])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("count", "offset"), [(60, 0.0), (2 * BLOCK + 60, 0.0), (2 * BLOCK + 60, 3.0)])
def test_cross_entropy_on_distances_keeps_the_digits_of_near_pairs(
    count: int, offset: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries at their anchors, and 1e-6 to 1e-2 away, by differences in float64; all far from the origin, too."""
    generator = torch.Generator().manual_seed(3)
    anchor = offset + torch.randn(6, 32, generator=generator)
    own = torch.arange(count) % 6
    away = 10.0 ** (-2 - torch.arange(count) % 5)[:, None] * torch.randn(count, 32, generator=generator)
    away[:6] = 0
    query, known = anchor[own] + away, torch.arange(6) != 4
    query, own = query[known[own]], own[known[own]]
    exact, moved = query.double(), anchor.double().requires_grad_()
    square = (exact[:, None] - moved).square().sum(2)
    distance = torch.where(square == 0, 0, torch.where(square == 0, 1, square).sqrt())
    logits = -(distance + 0.3 * torch.nn.functional.one_hot(own, 6))
    expected = torch.nn.functional.cross_entropy(logits.masked_fill(~known, -torch.inf), own)
    expected.backward()
    monkeypatch.setattr(prototype_losses, "is_compiled", lambda *tensors: compiled)
    leaf = anchor.clone().requires_grad_()
    found = MarginCrossEntropy(query, own, known, 0.3)(leaf)
    found.backward()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-7)
    torch.testing.assert_close(leaf.grad.double(), moved.grad, rtol=1e-5, atol=1e-7)


def test_a_query_of_an_unknown_class_is_refused() -> None:
    loss = MarginCrossEntropy(drawn(2), torch.tensor([0, 1]), torch.tensor([True, False, True]), 0.1)
    with pytest.raises(IndexError, match="known"):
        loss(drawn(3, 1))


@pytest.mark.parametrize(("temperature", "margin"), [(0.3, 0.1), (1.5, 0.0), (0.7, 0.6)])
def test_contrast_equals_a_naive_loop(temperature: float, margin: float) -> None:
    """The last query has no positive; the bank's last two entries are no query's own."""
    query, bank = drawn(4), drawn(9, 1)
    of_query, of_bank = torch.tensor([0, 1, 2, 5]), torch.tensor([0, 0, 1, 1, 2, 2, 2, 3, 3])
    values = []
    for q, c in zip(in_numpy(query)[:3], of_query.tolist()):
        cosines = [(cosine(q, b), d) for b, d in zip(in_numpy(bank), of_bank.tolist())]
        positive = sum(np.exp((s - margin) / temperature) for s, d in cosines if d == c)
        negative = sum(np.exp(s / temperature) for s, d in cosines if d != c)
        values.append(-np.log(positive / (positive + negative)))
    found = contrast(query, of_query, bank, of_bank, temperature, margin)
    assert float(found) == pytest.approx(np.mean(values), rel=1e-5)
    inputs = [t.double().requires_grad_() for t in (query, bank)]
    assert torch.autograd.gradcheck(lambda q, b: contrast(q, of_query, b, of_bank, temperature, margin), inputs)


def test_rows_without_part_have_no_gradient() -> None:
    """Of a class that the bank lacks, and padding, whose embedding is zero."""
    query, bank, of_bank = torch.cat([drawn(2), torch.zeros(1, 5)]), drawn(3, seed=1), torch.tensor([0, 0, 2])
    query.requires_grad_()
    value_Q, part_Q = contrast_of_rows(query, torch.tensor([0, 5, -100]), bank, of_bank, 0.02)
    assert part_Q.tolist() == [True, False, False]
    alone = contrast(query[:1].detach(), torch.tensor([0]), bank, of_bank, 0.02)
    torch.testing.assert_close(value_Q.detach(), torch.tensor([float(alone), 0.0, 0.0]))
    value_Q.sum().backward()
    assert query.grad is not None
    assert query.grad[0].any()
    assert not query.grad[1:].any()


def test_nothing_to_contrast() -> None:
    """A query without a positive or a negative takes no part; without any query it is zero, with a gradient."""
    query, bank = drawn(2).requires_grad_(), drawn(3, 1)
    loss = contrast(query, torch.tensor([0, 0]), bank, torch.tensor([0, 0, 0]), 1.0)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.equal(query.grad, torch.zeros(2, 5))
    assert float(contrast(drawn(2), torch.tensor([0, 1]), drawn(1)[:0], torch.tensor([]), 1.0)) == 0
    alone = contrast(query[:1], torch.tensor([0]), bank, torch.tensor([0, 0, 2]), 0.5)
    assert torch.equal(contrast(query, torch.tensor([0, 1]), bank, torch.tensor([0, 0, 2]), 0.5), alone)


def views_by_loops(z: np.ndarray, other: np.ndarray, tau: float) -> float:
    e = np.exp([[cosine(a, b) / tau for b in other] for a in z])
    return float(np.mean([-np.log(e[n, n] / (e[n].sum() - e[n, n])) for n in range(len(z))]))


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_two_views_against_two_loops(tau: float) -> None:
    z, other = np.random.default_rng(0).standard_normal((2, 7, 4))
    both = [torch.from_numpy(view).requires_grad_() for view in (z, other)]
    assert float(nt_xent(*both, tau).detach()) == pytest.approx(views_by_loops(z, other, tau), rel=1e-12)
    assert torch.autograd.gradcheck(lambda a, b: nt_xent(a, b, tau), both)


def test_an_embedding_that_is_no_number_is_not_hidden() -> None:
    z = torch.tensor([[torch.inf, 1.0], [1.0, 2.0]])
    assert nt_xent(z, z.flip(0), 0.5).isnan()


@pytest.mark.parametrize("tau", [0.1, 1.0])
def test_two_views_by_class_against_loops(tau: float) -> None:
    z, other = np.random.default_rng(0).standard_normal((2, 7, 4))
    y, other_y = np.array([0, 0, 1, 2, 2, 2, 1]), np.array([1, 2, 0, 0, 2, 1, 1])
    losses = []
    for a, own in zip(z, y):
        e = np.exp([cosine(a, b) / tau for b in other])
        losses.append(np.mean([-np.log(n / (n + e[other_y != own].sum())) for n in e[other_y == own]]))
    query, rest = torch.from_numpy(z).requires_grad_(), (torch.from_numpy(other), torch.from_numpy(other_y))
    found = contrast_by_class(query, torch.from_numpy(y), *rest, tau)
    assert float(found.detach()) == pytest.approx(np.mean(losses), rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: contrast_by_class(z, torch.from_numpy(y), *rest, tau), query)


def test_by_class_of_one_class_or_of_zeros_neither_a_value_nor_a_gradient_is_lost() -> None:
    z, y = drawn(4), torch.tensor([0, 1, 1, 2])
    assert float(contrast_by_class(z, torch.zeros(4).long(), z, torch.zeros(4).long(), 0.5)) == 0
    flat = torch.zeros(4, 3, requires_grad=True)
    contrast_by_class(flat, y, torch.zeros(4, 3), y, 0.5).backward()
    assert flat.grad is not None
    assert not flat.grad.any()


def test_alignment_and_its_gradients_of_a_loop() -> None:
    """Many rows, classes of different sizes, one without a target and one without rows, by the sums of the formulas."""
    random = np.random.default_rng(3)
    z, target, present = random.standard_normal((9, 4)), random.standard_normal((5, 4)), np.arange(5) != 1
    y = np.array([0, 0, 0, 1, 2, 2, 4, 4, 4])
    away = [(z[v] - target[y[v]], int((y == y[v]).sum())) for v in range(9) if present[y[v]]]
    norms = {c: float(np.linalg.norm(z[c] - target[c])) for c in range(5) if present[c]}
    own = torch.from_numpy(z).requires_grad_()
    rest = torch.from_numpy(y), torch.from_numpy(target), torch.from_numpy(present)
    places = rest[2].nonzero(as_tuple=True)
    terms: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
        "row": (lambda z: mean_square(z, *rest, 3.0), 3 * sum(d @ d for d, _ in away) / len(away) / 4),
        "plain": (lambda z: prototype_alignment(z[:5], *rest[1:]), sum(norms.values())),
        "places": (lambda z: prototype_alignment(z[:5], rest[1], places), sum(norms.values())),
    }
    for name, (term, expected) in terms.items():
        assert float(term(own).detach()) == pytest.approx(expected), name
        assert torch.autograd.gradcheck(term, (own,)), name


def of_rows(y: Tensor, target: Tensor, present: Tensor) -> SumAlignment:
    """Makes the mean of |z_v - t_c|^2 over the rows of every present class, summed over these."""
    place = torch.arange(len(y) + 1, dtype=torch.int32)
    ones = SparseMatrix.of(place, place[:-1], torch.ones(len(y)), len(y))
    return SumAlignment(ones, target[y], of_classes(y, present), scales=False)


@pytest.mark.parametrize("scales", [False, True])
def test_alignment_of_sums_of_rows(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several sums, in none, and without a direction; a sum of nothing."""
    z = drawn(7)
    z[3] = 0
    dense = torch.tensor([[0.5, 0, 2, 0, 1], [0, 0, 0, 0, 0], [0, -1, 0, 3, 0], [0, 0, 1, 0, 0]])
    csr = dense.to_sparse_csr()
    sums = SparseMatrix.of(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), 5)
    alignment = SumAlignment(sums, drawn(4, 1), torch.tensor([1.0, 2, 0.25, 0]), scales)
    places, found = torch.tensor([6, 0, 3, 2, 5]), []
    for _ in range(2):
        leaf = z.clone().requires_grad_()
        loss = alignment(leaf, places)
        (3 * loss).backward()
        found += [(loss.detach(), leaf.grad)]
        monkeypatch.setattr(prototype_losses, "is_compiled", lambda *tensors: False)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)
    rows = z[places] / z[places].norm(dim=1, keepdim=True).clamp_min(1e-9) if scales else z[places]
    expected = sum(w * (s @ rows - t).square().sum() for s, t, w in zip(dense, alignment.target_KH, alignment.weight_K))
    torch.testing.assert_close(found[0][0], torch.as_tensor(expected))
    with pytest.raises(IndexError):
        alignment(z.requires_grad_(), places + 1)


def test_no_target_no_term_and_no_nan() -> None:
    z, y, target = drawn(4).requires_grad_(), torch.tensor([0, 0, 1, 2]), drawn(4, 1)
    nothing, everything = torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)
    terms = [
        mean_square(z, y, target, nothing),
        mean_square(z, torch.full((4,), -1), target, everything),
        of_rows(y, target, nothing)(z, torch.arange(4)),
        prototype_alignment(z, target, nothing),
        mean_square(z[:0], y[:0], target, everything),
        of_rows(y[:0], target, everything)(z[:0], y[:0]),
    ]
    assert [float(term.detach()) for term in terms] == [0] * 6
    sum(terms, start=torch.zeros(())).backward()
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_prototypes_at_hops_and_on_their_targets() -> None:
    proto, target = torch.zeros(2, 3, 2), torch.tensor([3.0, 4.0]).expand(2, 3, 2)
    present = torch.tensor([[True, False, True], [False, True, False]])
    assert float(prototype_alignment(proto, target, present)) == pytest.approx(3 * 5)
    z = drawn(4).requires_grad_()
    prototype_alignment(z, z.detach(), torch.ones(4, dtype=torch.bool)).backward()
    assert z.grad is not None
    assert math.isfinite(float(z.grad.abs().max()))


@pytest.mark.parametrize("margin", [0.0, 0.4])
def test_a_loss_of_levels_knows_the_gradient_that_autograd_finds(margin: float) -> None:
    """Of two levels of three, each by its own gradient, and a third whose anchors have no part in it."""
    classes = torch.arange(20) % 4
    losses = {level: MarginCrossEntropy(drawn(20, level), classes, torch.ones(4) > 0, margin) for level in (0, 2)}
    loss, anchor = SumOfLevels({**losses}, 3), drawn(12, 5)
    value, gradient = differentiate(loss, anchor)
    expected, by_autograd = differentiate(lambda anchor_SH: loss(anchor_SH), anchor)
    assert value == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(gradient, by_autograd, rtol=1e-5, atol=1e-7)
    assert not gradient[4:8].any()
    assert gradient[:4].any()
    assert value == pytest.approx(sum(float(losses[i](anchor[4 * i : 4 * i + 4])) for i in losses), rel=1e-6)


def test_queries_of_float64_are_read_as_such() -> None:
    query, classes, anchor = drawn(20), torch.arange(20) % 4, drawn(4, 5)
    losses = [MarginCrossEntropy(q, classes, torch.ones(4) > 0, 0.3) for q in (query, query.double())]
    (value, gradient), (other, of_other) = (differentiate(loss, anchor) for loss in losses)
    assert value == other == pytest.approx(float(losses[1](anchor.requires_grad_()).detach()), rel=1e-6)
    assert torch.equal(gradient, of_other)
