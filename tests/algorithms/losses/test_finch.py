"""FINCH against a version in plain Python, and on points whose clusters anybody can see."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.algorithms.losses import finch as finch_module
from shoal.algorithms.losses.finch import class_clusters, finch


def at(*degrees: float) -> Tensor:
    """Points on the unit circle, scaled apart so that only their directions agree."""
    radians = torch.tensor(degrees, dtype=torch.float64) / 180 * math.pi
    return torch.stack([radians.cos(), radians.sin()], 1) * torch.arange(1, len(degrees) + 1)[:, None]


def by_hand(points: list[list[float]]) -> list[int]:
    """FINCH as its authors write it: the adjacency matrix of first neighbours, flooded, over and over."""

    def cosine(a: list[float], b: list[float]) -> float:
        def norm(v: list[float]) -> float:
            return max(math.sqrt(sum(x * x for x in v)), 1e-8)

        return round(sum(x * y for x, y in zip(a, b)) / norm(a) / norm(b), 10)

    def partition(points: list[list[float]]) -> list[int]:
        n = len(points)
        first = []
        for i in range(n):
            others = [j for j in range(n) if j != i]
            first.append(max(others, key=lambda j: (cosine(points[i], points[j]), -j)))
        label = [-1] * n
        for seed in range(n):
            if label[seed] >= 0:
                continue
            label[seed], waiting = max(label) + 1, [seed]
            while waiting:
                i = waiting.pop()
                for j in range(n):
                    if label[j] < 0 and (first[i] == j or first[j] == i or first[i] == first[j]):
                        label[j] = label[i]
                        waiting.append(j)
        return label

    found = partition(points)
    while max(found) > 0:
        means = []
        for cluster in range(max(found) + 1):
            members = [p for p, label in zip(points, found) if label == cluster]
            means.append([sum(column) / len(members) for column in zip(*members)])
        above = partition(means)
        if max(above) == 0:
            break
        found = [above[label] for label in found]
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_points_are_one_cluster_or_kept_apart(count: int) -> None:
    points = at(0, 90, 180)[:count]
    assert finch(points, least=1).tolist() == [0] * count
    assert finch(points, least=4).tolist() == list(range(count))
    assert finch(points, least=count).tolist() == [0] * count
    assert finch(points, least=count + 1).tolist() == list(range(count))
    assert finch(points).tolist() == list(range(count))


def test_the_coarsest_partition_of_more_than_one_cluster() -> None:
    # Four pairs are the first partition, pairs of them the second, everything the third.
    assert finch(at(0, 1, 10, 11.5, 100, 101.25, 112, 113.75)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    # Three pairs: the second partition is one cluster, so the first stands.
    assert finch(at(0, 1, 60, 61, 120, 121)).tolist() == [0, 0, 1, 1, 2, 2]
    # A chain is one cluster at once.
    assert finch(at(0, 10, 19, 27)).tolist() == [0, 0, 0, 0]


def test_equal_cosines_take_the_lowest_index() -> None:
    # Point 2 is as near to 1 as to 4; 0 and 1, and 4 and 3, belong together.
    assert finch(at(-31, -30, 0, 31, 30)).tolist() == [0, 0, 0, 1, 1]
    assert finch(at(31, 30, 0, -31, -30)).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("nearer", "expected"), [(1.5e-12, [0, 1, 0, 1, 0]), (1e-14, [0, 0, 1, 0, 1])])
def test_cosines_that_agree_to_twelve_decimals_are_equal(nearer: float, expected: list[int]) -> None:
    # Point 0 is at 60 degrees from 1, and by so much of a cosine less from 2; 3 is beside 1, and 4 beside 2.
    degrees = math.degrees(nearer / math.sin(math.pi / 3))
    assert finch(at(0, 60, degrees - 60, 61, -61)).tolist() == expected


def test_zero_points_have_cosine_zero() -> None:
    points = torch.tensor([[1.0, 0], [0, 0], [1, 0.1], [-1, 0], [-1, 0.1]])
    # Equally far from all that point to the right and at right angles: the lowest index wins.
    assert finch(points).tolist() == by_hand(points.tolist()) == [0, 0, 0, 1, 1]
    assert finch(torch.zeros(5, 3)).tolist() == [0] * 5
    # A length below 1e-8 counts as 1e-8: such a point has a cosine of 0.1 at most, and none that decides.
    tiny = torch.tensor([[1.0, 0], [1, 0.01], [0, 1], [0.01, 1], [0, 1e-9]], dtype=torch.float64)
    assert finch(tiny).tolist() == [0, 0, 1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 24), st.integers(1, 4))
def test_as_by_hand(seed: int, count: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers: many equal cosines, duplicates and zeros.
    points = torch.randint(-2, 3, (count, width), generator=generator).double()
    assert finch(points, least=1).tolist() == by_hand(points.tolist())
    points = torch.randn(count, width, generator=generator).double()
    assert finch(points, least=1).tolist() == by_hand(points.tolist())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(4, 40))
def test_order_of_points_does_not_matter(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 5, generator=generator)
    order = torch.randperm(count, generator=generator)
    found, moved = finch(points)[order], finch(points[order])
    assert torch.equal(found[:, None] == found, moved[:, None] == moved)
    firsts = [moved.tolist().index(cluster) for cluster in range(int(moved.max()) + 1)]
    assert firsts == sorted(firsts)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    whole = finch(points)
    monkeypatch.setattr(finch_module, "ROWS", 7)
    assert torch.equal(finch(points), whole)
    assert whole.tolist() == by_hand(points.double().tolist())


def test_centres_of_every_class_by_hand() -> None:
    right, up = [[1.0, 0.0], [3.0, 0.1], [2.0, 0.0], [1.0, 0.2]], [[0.0, 1.0], [0.0, 3.0], [0.1, 2.0]]
    proto = torch.tensor([up[0], *right, up[1], [5, 5], up[2], [0.0, 4.0]])
    owner = torch.tensor([3, 3, 3, 3, 3, 3, 0, 3, 3])
    centres, owners = class_clusters(proto, owner, classes=5)
    assert owners.tolist() == [0, 3, 3]
    assert owners.dtype == torch.int64
    expected = torch.tensor([[5, 5], [0.1 / 4, 10 / 4], [7 / 4, 0.3 / 4]])
    torch.testing.assert_close(centres, expected)
