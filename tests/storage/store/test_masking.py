"""What is masked, against SplitMix64 in Python's integers, value by value; and that nothing else hangs on it."""

from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.induced_parts import csr_rows

from shoal.storage.graph.graph import clean_edges
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.rows import CsrRows
from shoal.storage.options.masking import Sparsity
from shoal.storage.store.masking import masks, without_edges, without_features, without_labels
from shoal.storage.store.split import Split

SHARES = st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0])
SEEDS = st.integers(0, 3)


def bits(key: int, position: int) -> int:
    """SplitMix64 at a position."""
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def key(seed: int, purpose: str) -> int:
    return bits(bits(seed, 0), int.from_bytes(purpose.encode().ljust(8, b"\0"), "little"))


def uniform(key: int, position: int) -> float:
    return (bits(key, position) >> 11) / 2**53


def part_of(node: np.ndarray, edges: np.ndarray) -> Induced:
    indptr, indices, _ = clean_edges(edges.reshape(-1, 2).T, len(node), "test")
    return Induced(node, indptr.astype(np.int64), indices.astype(np.int32).copy())


def edges_by_id(part: Induced) -> list[tuple[int, int]]:
    node = part.node.tolist()
    ends = pairwise(part.indptr.tolist())
    return [(node[row], node[other]) for row, (a, b) in enumerate(ends) for other in part.indices[a:b]]


def drawn(seed: int) -> Induced:
    rng = np.random.default_rng(seed)
    return part_of(rng.permutation(40)[:12].astype(np.int64), rng.integers(12, size=(30, 2)))


@settings(max_examples=40, deadline=None)
@given(share=SHARES, seed=SEEDS, graph=st.integers(0, 5))
def test_edges_are_removed_in_pairs(share: float, seed: int, graph: int) -> None:
    before = edges_by_id(drawn(graph))
    after = without_edges(drawn(graph), Sparsity(edges=share, seed=seed))
    own = key(seed, "edges")
    assert edges_by_id(after) == [(a, b) for a, b in before if uniform(own, (min(a, b) << 32) + max(a, b)) >= share]
    assert after.node.tolist() == drawn(graph).node.tolist()
    assert after.indptr[-1] == len(after.indices)
    assert all((np.diff(after.indices[a:b]) > 0).all() for a, b in pairwise(after.indptr))


@settings(max_examples=40, deadline=None)
@given(share=SHARES, seed=SEEDS, dtype=st.sampled_from(["float16", "float32"]))
def test_values_are_zero_in_dense_and_gone_from_sparse_rows(share: float, seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    node = np.array([5, 0, 2**31 - 2, 7])
    x = ((rng.random((4, 6)) < 0.6) * rng.standard_normal((4, 6))).astype(dtype)
    own, expected = key(seed, "features"), x.copy()
    for row, column in np.ndindex(*x.shape):
        if uniform(own, int(node[row]) * 6 + column) < share:
            expected[row, column] = 0
    wanted = Sparsity(features=share, seed=seed)
    found = without_features(csr_rows(x), node, wanted)
    np.testing.assert_array_equal(without_features(x.copy(), node, wanted), expected)
    assert isinstance(found, CsrRows)
    np.testing.assert_array_equal(found.toarray(), expected)
    assert (found.dtype, found.entries) == (np.dtype(dtype), np.count_nonzero(expected))
    assert found.indptr.dtype == found.columns.dtype == np.int32


@pytest.mark.parametrize(("share", "left"), [(0.0, 100), (0.29, 71), (0.3, 70), (0.999, 1)])
def test_training_items_are_taken_away_and_no_others(share: float, left: int) -> None:
    train, val, test = np.split(np.random.default_rng(0).permutation(300).astype(np.int32), 3)
    split = Split(np.sort(train), np.sort(val), np.sort(test))
    item = np.random.default_rng(1).permutation(1000)[:300]
    found = without_labels(split, item, Sparsity(labels=share, seed=2))
    own = key(2, "labels")
    order = sorted(split.train.tolist(), key=lambda row: bits(own, int(item[row])))
    assert found.train.tolist() == sorted(order[100 - left :])
    assert found.train.dtype == np.int32
    assert (found.val.tolist(), found.test.tolist()) == (split.val.tolist(), split.test.tolist())


def test_what_is_said_and_named() -> None:
    assert Sparsity().of_shards == {}
    assert Sparsity(labels=0.5, seed=3).of_shards == {}
    assert Sparsity(edges=0.5, labels=0.1, seed=3).of_shards == {"features": 0.0, "edges": 0.5, "seed": 3}
    assert Sparsity(features=0.5).of_shards == {"features": 0.5, "edges": 0.0, "seed": 0}
    assert (Sparsity(seed=3).of_split, Sparsity(labels=0.29, seed=3).of_split) == ("", "-less29-seed3")
    assert masks(asdict(Sparsity(seed=3))) == masks({}) == ""
    every = masks(asdict(Sparsity(0.3, 0.55, 0.1, 3)))
    assert every == "30 % of features, 55 % of edges, 10 % of training labels (seed 3)"
