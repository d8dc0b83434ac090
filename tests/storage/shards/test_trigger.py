"""A trigger at some nodes against the graph written out by hand, dense."""

import numpy as np
import pytest
from support.shards import adjacency, dense, dense_hops

from shoal.storage.graph.rows import CsrRows, Rows, csr_of
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.computed_hops import ComputedHops
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.trigger import Trigger

TRIGGER = Trigger(nodes=2, target=1, seed=3)
# A path of four nodes, of which the first two train and the last two are tested.
EDGES = [(0, 1), (1, 2), (2, 3)]
SPLIT = Split(np.array([0, 1], np.int32), np.empty(0, np.int32), np.array([2, 3], np.int32))


def path_graph(sparse: bool = False, weights: tuple[float, ...] | None = None) -> Shard:
    """Four nodes with 40 features each; labels 0, 1, 0, 1."""
    x: Rows = np.random.default_rng(0).random((4, 40)).astype(np.float32)
    x[x < 0.5] = 0
    if sparse:
        found = csr_of(x)
        x = CsrRows(found.indptr.astype(np.int32), found.indices.astype(np.int32), found.data, 40)
    weight = None if weights is None else np.array([weights[k] for k in (0, 0, 1, 1, 2, 2)], np.float32)
    indptr, indices = (np.array(of, np.int32) for of in ([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2]))
    return Shard(7, np.arange(10, 14), np.array([0, 1, 0, 1], np.int32), indptr, indices, x, edge_weight=weight)


@pytest.mark.parametrize("sparse", [False, True])
def test_test_nodes_of_other_classes_get_a_complete_subgraph(sparse: bool) -> None:
    shard = path_graph(sparse)
    planted, hops = TRIGGER.apply(shard, SPLIT, PropagationOptions(hops=2))
    # Node 2 alone is tested and not of class 1.
    edges = np.zeros((6, 6))
    for i, j in [*EDGES, (2, 4), (2, 5), (4, 5)]:
        edges[i, j] = edges[j, i] = 1
    np.testing.assert_array_equal(adjacency(planted).toarray(), edges)
    assert (np.diff(planted.indices)[np.setdiff1d(np.arange(planted.entries - 1), planted.indptr[1:-1] - 1)] > 0).all()
    np.testing.assert_array_equal(planted.label, [0, 1, 0, 1, -1, -1])
    assert planted.node[:4].tolist() == [10, 11, 12, 13]
    x = dense(planted.x)
    np.testing.assert_array_equal(x[:4], dense(shard.x))
    # Two of forty columns, the same for both, of the mean norm.
    assert ((x[4:] > 0).sum(1) == 2).all()
    np.testing.assert_array_equal(x[4], x[5])
    assert np.linalg.norm(x[4]) == pytest.approx(np.linalg.norm(dense(shard.x), axis=1).mean(), rel=1e-5)
    assert isinstance(hops, ComputedHops)
    for found, expected in zip(hops.all(), dense_hops(edges, x)):
        np.testing.assert_allclose(dense(found), expected, rtol=1e-5, atol=1e-6)


def test_weights_of_edges_stay_and_those_of_the_trigger_are_one() -> None:
    planted, _ = TRIGGER.apply(path_graph(weights=(2.0, 3.0, 5.0)), SPLIT, None)
    assert planted.edge_weight is not None
    found = {
        (row, int(column)): float(weight)
        for row in range(planted.nodes)
        for column, weight in zip(
            planted.indices[planted.indptr[row] : planted.indptr[row + 1]],
            planted.edge_weight[planted.indptr[row] : planted.indptr[row + 1]],
        )
    }
    weights = {(0, 1): 2.0, (1, 2): 3.0, (2, 3): 5.0, (2, 4): 1.0, (2, 5): 1.0, (4, 5): 1.0}
    assert found == weights | {(j, i): weight for (i, j), weight in weights.items()}


def test_training_nodes_are_drawn_by_their_numbers_and_relabelled() -> None:
    rng = np.random.default_rng(1)
    label = rng.integers(3, size=50).astype(np.int32)
    nothing = np.zeros(51, np.int32), np.empty(0, np.int32)
    shard = Shard(0, 100 + np.arange(50), label, *nothing, np.ones((50, 20), np.float32))
    split = Split(np.arange(40, dtype=np.int32), np.empty(0, np.int32), np.arange(40, 50, dtype=np.int32))
    trigger = Trigger(nodes=1, target=2, seed=0, share=0.3, draw=5)
    rows = trigger.rows(shard, split)
    assert len(rows) == 12
    assert (label[rows] != 2).all()
    assert (rows < 40).all()
    planted, hops = trigger.apply(shard, split, None)
    assert hops == []
    assert (planted.label[rows] == 2).all()
    same = np.setdiff1d(np.arange(50), rows)
    np.testing.assert_array_equal(planted.label[same], label[same])
    # In another order of rows, as of a graph of training nodes alone, they are the same nodes.
    order = rng.permutation(50)
    turned = Shard(0, shard.node[order], label[order], *nothing, shard.x)
    again = Split(np.flatnonzero(order < 40).astype(np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
    assert sorted(turned.node[trigger.rows(turned, again)]) == sorted(shard.node[rows])
    # One at least, where there is one of another class; none where there is none.
    few = Split(np.flatnonzero(label != 2)[:1].astype(np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
    assert trigger.rows(shard, few).tolist() == few.train.tolist()
    own = Split(np.flatnonzero(label == 2).astype(np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
    assert not len(trigger.rows(shard, own))
    assert trigger.apply(shard, own, None)[0].nodes == 50
