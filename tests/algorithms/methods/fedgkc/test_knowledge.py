"""What a copilot knows, node by node and in closed form."""

import math
from collections.abc import Callable, Collection

import pytest
import torch

from shoal.algorithms.methods.fedgkc import TERMS, Clarity, Term, knowledge, likeness_to_neighbours
from shoal.storage.store.view import View

EDGES = [(0, 1), (1, 2), (0, 2), (2, 3)]


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    """Five nodes; the last one has no edge."""
    return make_view(5, EDGES, [0] * 5, [0], 3)


def node_by_node(p: list[list[float]], smoothing: float, clarity: str, terms: Collection[str]) -> float:
    total = 0.0
    for i, own in enumerate(p):
        near = [b for a, b in EDGES if a == i] + [a for a, b in EDGES if b == i]
        top = max(own)
        others = sum(own) - top
        cosines = [sum(a * b for a, b in zip(own, p[j])) / math.hypot(*own) / math.hypot(*p[j]) for j in near]
        total += top * ("strength" in terms)
        margin = (top - others) / (len(own) - 1) if clarity == "literal" else top - others / (len(own) - 1)
        total += margin * ("clarity" in terms)
        total -= smoothing * ("smoothness" in terms) * (sum(cosines) / len(near) if near else 0)
    return total / len(p)


@pytest.mark.parametrize("terms", [TERMS, *((term,) for term in TERMS), ("strength", "smoothness")])
@pytest.mark.parametrize("clarity", ["literal", "margin_mean"])
def test_node_by_node(view: View, clarity: Clarity, terms: tuple[Term, ...]) -> None:
    logits = 2 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    expected = node_by_node(logits.double().softmax(1).tolist(), 0.3, clarity, terms)
    assert knowledge(view, logits, 0.3, clarity, terms) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 4, 7, 40])
def test_uniform_scores_give_the_closed_form(view: View, classes: int) -> None:
    found = knowledge(view, torch.full((5, classes), 2.5), 0.1)
    assert found == pytest.approx(1 / (classes * (classes - 1)) - 0.1 * 4 / 5, abs=1e-6)


def test_of_one_class_everything_is_known(view: View) -> None:
    assert knowledge(view, torch.zeros(5, 1), 0.1) == pytest.approx(2 - 0.1 * 4 / 5)


def test_likeness_of_isolated_nodes_is_zero(view: View) -> None:
    p = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
    assert likeness_to_neighbours(view, p).tolist() == pytest.approx([0.5, 0.5, 1 / 3, 1, 0])


def test_what_is_wrong_is_not_hidden(view: View) -> None:
    assert math.isnan(knowledge(view, torch.full((5, 3), float("nan")), 0.1))
