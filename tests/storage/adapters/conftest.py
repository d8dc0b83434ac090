"""A square 0-1-2-3 with a diagonal 0-2, by hand: what every adapter must bring in and out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shoal.storage.graph.graph import Graph


@pytest.fixture
def square() -> Callable[..., dict[str, Any]]:
    """Tensors of the square, edges given one way, with some changed; None leaves one out."""

    def make(**changes: Any) -> dict[str, Any]:
        given = {
            "edge_index": torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]),
            "x": torch.arange(8, dtype=torch.float32).reshape(4, 2),
            "y": torch.tensor([0, 1, -1, 2]),
            **{f"{part}_mask": torch.arange(4) == node for part, node in (("train", 0), ("val", 1), ("test", 3))},
        } | changes
        return {key: value for key, value in given.items() if value is not None}

    return make


@pytest.fixture
def assert_square() -> Callable[[Graph], None]:
    def check(graph: Graph) -> None:
        assert graph.indptr.tolist() == [0, 3, 5, 8, 10]
        assert graph.indices.tolist() == [1, 2, 3, 0, 2, 0, 1, 3, 0, 2]
        assert (graph.indptr.dtype, graph.indices.dtype) == (np.int64, np.int32)
        assert np.array_equal(graph.x, [[0, 1], [2, 3], [4, 5], [6, 7]])
        assert (graph.y.tolist(), graph.y.dtype) == ([0, 1, -1, 2], np.int64)
        assert (graph.classes, graph.synthetic, graph.split.tolist()) == (3, False, [1, 2, 0, 3])

    return check


@pytest.fixture
def given_weights() -> torch.Tensor:
    """Weights of the edges of the square as they are given, one way."""
    return torch.tensor([0.5, 2.0, 3.0, 4.0, 0.25])


@pytest.fixture
def assert_weighted(assert_square: Callable[[Graph], None]) -> Callable[[Graph], None]:
    def check(graph: Graph) -> None:
        assert_square(graph)
        assert graph.edge_weight.dtype == np.float32
        # Of 0: 1, 2, 3; of 1: 0, 2; of 2: 0, 1, 3; of 3: 0, 2.
        assert graph.edge_weight.tolist() == [0.5, 0.25, 4, 0.5, 2, 0.25, 2, 3, 4, 3]

    return check
