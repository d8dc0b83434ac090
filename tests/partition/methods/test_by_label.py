import numpy as np
import pytest

from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition


def counts(graph, assignment, clients):
    return np.array([np.bincount(graph.y[assignment == k], minlength=graph.classes) for k in range(clients)])


def test_shares_of_a_class_are_those_drawn(make_graph):
    """The same generator, in the order that is written down: a permutation and the shares of a class, one by one."""
    y = [-1] * 5 + [0] * 40 + [1] * 7 + [2] * 100
    graph = make_graph(152, [], y, classes=3)
    assignment = partition(graph, PartitionOptions("dirichlet", 4, seed=3, alpha=0.7))
    rng = np.random.default_rng(3)
    expected = np.empty(152, dtype=np.int64)
    for place, item in enumerate(rng.permutation(5)):
        expected[item] = place % 4
    for label, (first, size) in enumerate([(5, 40), (45, 7), (52, 100)]):
        items = first + rng.permutation(size)
        shares = rng.dirichlet([0.7] * 4)
        begin = 0
        for client in range(4):
            end = size if client == 3 else round(sum(shares[: client + 1]) * size)
            expected[items[begin:end]] = client
            begin = end
        assert (graph.y[items] == label).all()
    np.testing.assert_array_equal(assignment, expected)


def test_alpha_is_how_alike_clients_are(make_graph):
    y = np.arange(5000) % 5
    graph = make_graph(5000, [], y, classes=5)
    far, near, alike = (
        counts(graph, partition(graph, PartitionOptions("dirichlet", 10, alpha=alpha)), 10) for alpha in (0.05, 1, 1e6)
    )
    assert (alike == 100).mean() > 0.7
    assert np.abs(alike - 100).max() <= 2
    # Of Dirichlet shares the variance is (1 / K)(1 - 1 / K) / (K alpha + 1).
    assert np.var(near / 1000) == pytest.approx(0.09 / 11, rel=0.6)
    assert np.var(far / 1000) == pytest.approx(0.09 / 1.5, rel=0.6)


@pytest.mark.parametrize("alpha", [1e-3, 1.0])
def test_no_client_is_empty(make_graph, alpha):
    graph = make_graph(30, [], np.arange(30) % 2, classes=2)
    assignment = partition(graph, PartitionOptions("dirichlet", 30, alpha=alpha))
    assert sorted(assignment.tolist()) == list(range(30))


def test_another_seed_is_another_partition(make_graph):
    graph = make_graph(200, [], np.arange(200) % 4, classes=4)
    first, again, other = (partition(graph, PartitionOptions("dirichlet", 5, seed=seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
