"""Minimum cuts against all ways to divide a graph, and time warping against every path there is."""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from shoal.algorithms.methods.gcfl_plus.gcfl_plus import minimum_cut, warping_distances

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


def test_of_two_nodes_one_is_alone() -> None:
    assert minimum_cut(np.array([[0.0, 0.0], [0.0, 0.0]])).sum() == 1
    assert minimum_cut(np.array([[0.0, 3.0], [3.0, 0.0]])).sum() == 1


def paths(length: int, i: int = 0, j: int = 0) -> Iterator[list[tuple[int, int]]]:
    """All ways from the first pair of places to the last."""
    if i == j == length - 1:
        yield [(i, j)]
    for k, m in ((i + 1, j), (i, j + 1), (i + 1, j + 1)):
        if k < length and m < length:
            yield from ([(i, j), *rest] for rest in paths(length, k, m))


@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_the_least_of_all_paths(length: int) -> None:
    series = np.random.default_rng(length).standard_normal((6, length)).astype(np.float32)
    found = warping_distances(series)
    assert found.dtype == np.float64
    for a, x in enumerate(series.astype(np.float64)):
        for b, y in enumerate(series.astype(np.float64)):
            least = min(sum((x[i] - y[j]) ** 2 for i, j in path) for path in paths(length))
            assert found[a, b] == pytest.approx(math.sqrt(least), abs=1e-12)
    np.testing.assert_array_equal(found, found.T)
    assert not found.diagonal().any()
