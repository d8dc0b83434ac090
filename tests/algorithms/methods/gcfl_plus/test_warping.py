"""Dynamic time warping by hand, and against every path there is."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from shoal.algorithms.methods.gcfl_plus.division import warping_distances


def between(x: Sequence[float], y: Sequence[float]) -> float:
    return float(warping_distances(np.array([x, y]))[0, 1])


@pytest.mark.parametrize(
    ("x", "y", "squared"),
    [
        ([3.0], [1.0], 4),
        ([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], 0),
        # One waits for the other.
        ([0.0, 1.0, 1.0, 3.0], [0.0, 0.0, 1.0, 3.0], 0),
        ([0.0, 2.0], [1.0, 3.0], 2),
        # Nothing of the one is like the 5 of the other, which is passed once.
        ([0.0, 0.0, 0.0], [0.0, 5.0, 0.0], 25),
        # First meets first and last meets last.
        ([0.0, 1.0], [1.0, 0.0], 2),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], 4 + 0 + 4),
    ],
)
def test_by_hand(x: list[float], y: list[float], squared: float) -> None:
    assert between(x, y) == pytest.approx(math.sqrt(squared))


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


def test_one_series_is_at_no_distance_from_itself() -> None:
    assert warping_distances(np.ones((1, 3))).tolist() == [[0.0]]
