"""Minimum cuts by hand, against all ways to divide a graph, and against networkx."""

from itertools import product

import networkx as nx
import numpy as np
import pytest

from shoal.algorithms.methods.gcfl_plus.division import minimum_cut

# The example of Stoer and Wagner's paper: from node, to node, weight; nodes count from 1.
EXAMPLE = [
    (1, 2, 2), (1, 5, 3), (2, 3, 3), (2, 5, 2), (2, 6, 2), (3, 4, 4), (3, 7, 2), (4, 7, 2), (4, 8, 2), (5, 6, 3),
    (6, 7, 1), (7, 8, 3),
]  # fmt: skip


def symmetric(rng: np.random.Generator, count: int, zeros: float = 0.0) -> np.ndarray:
    weight = np.triu(rng.random((count, count)) * (rng.random((count, count)) >= zeros), 1)
    return weight + weight.T


def cut_of(weight: np.ndarray, side: np.ndarray) -> float:
    return float(weight[side][:, ~side].sum())


def test_the_example_of_the_paper() -> None:
    weight = np.zeros((8, 8))
    for a, b, w in EXAMPLE:
        weight[a - 1, b - 1] = weight[b - 1, a - 1] = w
    side = minimum_cut(weight)
    assert side.dtype == bool
    assert cut_of(weight, side) == 4
    assert {frozenset(np.flatnonzero(half) + 1) for half in (side, ~side)} == {
        frozenset({1, 2, 5, 6}),
        frozenset({3, 4, 7, 8}),
    }


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_no_division_is_cheaper(count: int, zeros: float) -> None:
    rng = np.random.default_rng(count)
    for _ in range(20):
        weight = symmetric(rng, count, zeros)
        before = weight.copy()
        side = minimum_cut(weight)
        np.testing.assert_array_equal(weight, before)
        assert side.any()
        assert not side[0]
        sides = (np.array([False, *rest]) for rest in product([False, True], repeat=count - 1) if any(rest))
        assert cut_of(weight, side) == pytest.approx(min(cut_of(weight, other) for other in sides), abs=1e-12)


def test_cuts_of_networkx() -> None:
    rng = np.random.default_rng(7)
    for count in (12, 30):
        weight = symmetric(rng, count)
        value, (one, other) = nx.stoer_wagner(nx.from_numpy_array(weight))
        side = minimum_cut(weight)
        assert cut_of(weight, side) == pytest.approx(value)
        assert set(np.flatnonzero(side)) in (set(one), set(other))


def test_two_groups_are_found_and_the_diagonal_is_not_read() -> None:
    group = np.arange(40) % 3 == 0
    weight = np.where(group[:, None] == group, 1.0, 0.01) + 9 * np.eye(40)
    side = minimum_cut(weight)
    assert side.tolist() in (group.tolist(), (~group).tolist())


def test_of_two_nodes_one_is_alone() -> None:
    assert minimum_cut(np.array([[0.0, 0.0], [0.0, 0.0]])).sum() == 1
    assert minimum_cut(np.array([[0.0, 3.0], [3.0, 0.0]])).sum() == 1
