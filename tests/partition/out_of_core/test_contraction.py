import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.partition.out_of_core.blocks import Level
from shoal.partition.out_of_core.contraction import bucket_starts, contract, number_clusters


def dense(level):
    weights = np.ones(level.entries) if level.weights is None else level.weights
    return sp.csr_array((weights, level.indices, level.indptr), shape=(level.nodes, level.nodes)).toarray()


def test_clusters_are_numbered_in_their_order_and_none_stays_none():
    label = np.array([7, -1, 2, 7, 2, 4, -1, 7], dtype=np.int32)
    assert number_clusters(label) == 3
    assert label.tolist() == [2, -1, 0, 2, 0, 1, -1, 2]


def test_ranges_hold_a_bucket_or_one_node():
    assert bucket_starts(np.array([3, 3, 9, 0, 1, 5, 6]), 6) == [0, 2, 3, 6, 7]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_contraction_is_a_product_with_the_membership_matrix(tmp_path_factory, data):
    # The weights of coarse edges are the off-diagonal of P' A P, those of coarse nodes P' w.
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    nodes = data.draw(st.integers(1, 40))
    upper = np.triu(rng.integers(1, 9, (nodes, nodes)) * (rng.random((nodes, nodes)) < 0.2), 1)
    matrix = sp.csr_array(upper + upper.T)
    weighted = data.draw(st.booleans())
    level = Level(
        matrix.indptr.astype(np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.int32) if weighted else None,
        rng.integers(1, 5, nodes).astype(np.int32) if weighted else None,
    )
    coarse_N = rng.integers(data.draw(st.integers(1, nodes)), size=nodes).astype(np.int32)
    coarse_N[np.diff(level.indptr) == 0] = -1
    if (coarse_N < 0).all():
        return
    count = number_clusters(coarse_N)
    member = np.eye(count)[coarse_N] * (coarse_N >= 0)[:, None]
    folder = tmp_path_factory.mktemp("level")
    entries, bucket = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 50))
    coarse = contract(level, coarse_N, count, folder, entries, bucket)

    expected = member.T @ dense(level) @ member
    np.fill_diagonal(expected, 0)
    np.testing.assert_array_equal(dense(coarse), expected)
    assert (np.asarray(coarse.weights) > 0).all()
    own = np.ones(nodes) if level.node_weights is None else level.node_weights
    np.testing.assert_array_equal(coarse.node_weights, member.T @ own)
    # One entry a pair of neighbours: nothing is left to add up.
    assert coarse.entries == np.count_nonzero(expected)


@pytest.mark.parametrize(("entries", "bucket"), [(1, 1), (100, 500), (10**6, 10**6)])
def test_blocks_and_buckets_change_nothing(planted, tmp_path, entries, bucket):
    coarse_N = (np.arange(planted.nodes) % 90).astype(np.int32)
    level = Level(planted.indptr, planted.indices)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    got = contract(level, coarse_N, 90, tmp_path / "a", entries, bucket)
    other = contract(level, coarse_N, 90, tmp_path / "b", 1000, 3000)
    for name in ("indptr", "indices", "weights", "node_weights"):
        np.testing.assert_array_equal(getattr(got, name), getattr(other, name))
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["indices", "weights"]
