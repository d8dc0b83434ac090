"""Differences of tensors are counted and measured as a plain loop does, and named by the layer that holds them."""

import math

import numpy as np
import pytest
import torch
from support.needs import needs

pytestmark = needs("bisect")


def test_differences_are_those_of_a_plain_loop() -> None:
    from shoal.bisect.differences import compare

    rng = np.random.default_rng(0)
    for _ in range(20):
        a = rng.normal(size=30).astype(np.float32)
        b = np.where(rng.random(30) < 0.3, a + rng.normal(size=30).astype(np.float32), a).astype(np.float32)
        apart = [(i, abs(float(x) - float(y))) for i, (x, y) in enumerate(zip(a, b)) if x != y]
        found = compare("w", torch.from_numpy(a), torch.from_numpy(b))
        if not apart:
            assert found is None
            continue
        scale = max(abs(float(x)) for x in (*a, *b))
        largest = max(distance for _, distance in apart)
        assert (found.differing, found.numbers, found.first) == (len(apart), 30, apart[0][0])
        assert found.largest == pytest.approx(largest)
        assert found.relative == pytest.approx(largest / scale)


def test_forms_and_numbers_that_are_none_are_compared() -> None:
    from shoal.bisect.differences import compare

    none = torch.tensor([math.nan, 1.0])
    assert compare("w", none, none.clone()) is None
    assert compare("w", None, None) is None
    assert compare("w", "digest", "digest") is None
    for other in (none[:1], none.double(), None, "digest", torch.tensor([0.0, 1.0])):
        assert compare("w", none, other).relative == math.inf
    # Whole numbers differ in value, whatever their size.
    assert compare("n", torch.tensor([10**9]), torch.tensor([10**9 + 1])).relative == math.inf
    assert compare("w", torch.tensor([0.0]), torch.tensor([-0.0])) is None


def test_a_tolerance_is_relative_to_the_largest_number() -> None:
    from shoal.bisect.differences import compare

    found = compare("w", torch.tensor([100.0, 1.0]), torch.tensor([100.0, 1.0005]))
    assert found.relative == pytest.approx(5e-6, rel=1e-3)
    assert "in last bits" in found.text(1e-5)
    assert "in value" in found.text(1e-6)


def test_points_come_in_the_order_of_a_round() -> None:
    from shoal.bisect.differences import DOWNLOAD, KEYS, REDUCTION, TRAINING, UPLOAD, Point, list_differences

    order = [(1, DOWNLOAD, 5, 0), (1, KEYS, 3, 1), (1, TRAINING, 2, 0), (1, UPLOAD, 1, 0), (1, REDUCTION, -1, 0)]
    order.append((2, DOWNLOAD, 0, 0))
    points = [Point(*place, "place", "w") for place in order]
    a = dict.fromkeys(reversed(points), torch.tensor([1.0]))
    b = dict.fromkeys(points, torch.tensor([2.0]))
    assert [point for point, _ in list_differences(a, b)] == points
    assert list_differences(a, b, tolerance=0.5) == []
    # A side that draws more often has other streams at the same place, which is no fault of the draw.
    more = {**b, Point(1, KEYS, 3, 2, "place", "w"): torch.tensor([3.0])}
    assert [point for point, _ in list_differences(a, more)] == [point for point in points if point.kind != KEYS]


def test_a_flat_vector_is_named_by_its_layer() -> None:
    from shoal.bisect.differences import name_layer

    layers = [{"first.weight": (2, 3), "first.bias": (2,)}]
    names = [name_layer("w", torch.zeros(8), first, layers) for first in (0, 5, 6, 7)]
    assert names == ["w (first.weight)", "w (first.weight)", "w (first.bias)", "w (first.bias)"]
    assert name_layer("w", torch.zeros(9), 0, layers) == "w"
