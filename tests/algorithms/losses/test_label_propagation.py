import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_graphs import join, smoothing
from support.fixtures import MakeView
from torch import Tensor

from shoal.algorithms.losses.label_propagation import propagate_labels, row_stochastic
from shoal.algorithms.methods.fedgta.fedgta import with_training_labels

RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]


def soft(nodes: int, classes: int, seed: int = 0) -> Tensor:
    return torch.rand(nodes, classes, generator=torch.Generator().manual_seed(seed)).softmax(1)


def dense(
    nodes: int, edges: list[tuple[int, int]], seed_NC: np.ndarray, steps: int, seed_weight: float
) -> list[np.ndarray]:
    """Y^1 … Y^k with every matrix written out, in float64."""
    operator = smoothing(join(nodes, edges))
    result = [seed_NC]
    for _ in range(steps):
        result.append(seed_weight * seed_NC + (1 - seed_weight) * operator @ result[-1])
    return result[1:]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equals_dense_algebra(make_view: MakeView, data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 9))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda p: p[0] != p[1])
    edges = data.draw(st.lists(pairs, max_size=15)) if nodes > 1 else []
    classes = data.draw(st.integers(1, 4))
    label = data.draw(st.lists(st.integers(0, classes - 1), min_size=nodes, max_size=nodes))
    train = sorted(data.draw(st.sets(st.integers(0, nodes - 1))))
    steps, seed_weight = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))
    view, prediction = make_view(nodes, edges, label, train, classes), soft(nodes, classes)
    seed = prediction.double().numpy().copy()
    if data.draw(st.booleans()):
        found = list(propagate_labels(view, with_training_labels(view, prediction), steps, seed_weight))
        for v in train:
            seed[v] = np.eye(classes)[label[v]]
    else:
        found = list(propagate_labels(view, prediction, steps, seed_weight))
    for got, expected in zip(found, dense(nodes, edges, seed, steps, seed_weight), strict=True):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hidden", [0, 1, -1])
def test_reads_no_label_outside_the_training_rows(make_view: MakeView, hidden: int) -> None:
    labels = [[1, 2, 2, 2, 2], [1, hidden, 2, hidden, hidden]]
    views = [make_view(5, RING, y, [0, 2], 3) for y in labels]
    results = [list(propagate_labels(view, with_training_labels(view, soft(5, 3)), 4, 0.5)) for view in views]
    for left, right in zip(*results, strict=True):
        assert torch.equal(left, right)


def test_row_stochastic() -> None:
    y = torch.tensor([[3.0, 1.0], [0.0, 0.0], [0.2, 0.2]])
    torch.testing.assert_close(row_stochastic(y), torch.tensor([[0.75, 0.25], [0.0, 0.0], [0.5, 0.5]]))
