"""Hops a relation beside products of dense matrices, and beside SeHGNN's features of every meta-path."""

from itertools import product

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.graph.edges.relation_hops import relation_hops
from shoal.storage.graph.rows import CsrRows
from shoal.storage.options.propagation import PropagationOptions, propagation_of

NODES, FEATURES, RELATIONS, STEPS = 9, 4, 3, 3


def graph_of(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A CSR, the relations of its entries, and features; relation 2 has no edge, and node 8 has no neighbour."""
    rng = np.random.default_rng(seed)
    joined = np.triu(rng.random((NODES, NODES)) < 0.4, 1)
    joined |= joined.T
    joined[8] = joined[:, 8] = False
    rows, indices = joined.nonzero()
    indptr = np.searchsorted(rows, np.arange(NODES + 1)).astype(np.int32)
    kind_ER = rng.integers(2, size=(len(rows), RELATIONS)).astype(np.float32)
    kind_ER[:, 2] = 0
    x = rng.standard_normal((NODES, FEATURES)).astype(np.float32)
    x[:, 1:] *= rng.random((NODES, FEATURES - 1)) < 0.3
    return indptr, indices.astype(np.int32), kind_ER, x


def means_of(indptr: np.ndarray, indices: np.ndarray, kind_ER: np.ndarray) -> list[np.ndarray]:
    """The mean over senders of every relation, dense `[N, N]` of float64."""
    rows = np.repeat(np.arange(NODES), np.diff(indptr))
    found = []
    for kind_E in kind_ER.T:
        dense = np.zeros((NODES, NODES))
        dense[rows, indices] = kind_E
        found.append(dense / np.maximum(dense.sum(1), 1)[:, None])
    return found


def sparse_of(x: np.ndarray) -> CsrRows:
    rows, columns = x.nonzero()
    starts = np.searchsorted(rows, np.arange(len(x) + 1)).astype(np.int32)
    return CsrRows(starts, columns.astype(np.int32), x[rows, columns], x.shape[1])


def dense_of(hop: np.ndarray | CsrRows) -> np.ndarray:
    return hop.toarray() if isinstance(hop, CsrRows) else hop


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_hops_are_sums_over_meta_paths(sparse: bool, dtype: str) -> None:
    indptr, indices, kind_ER, x = graph_of()
    means = means_of(indptr, indices, kind_ER)
    found = relation_hops(indptr, indices, kind_ER, sparse_of(x) if sparse else x, STEPS, dtype)
    assert len(found) == STEPS * RELATIONS
    tolerance = 1e-6 if dtype == "float32" else 2e-3
    for step, relation in product(range(STEPS), range(RELATIONS)):
        # Every meta-path of so many steps that ends with the relation, one by one.
        expected = np.zeros((NODES, FEATURES))
        for path in product(range(RELATIONS), repeat=step):
            of_path = x.astype(np.float64)
            for number in (*path, relation):
                of_path = means[number] @ of_path
            expected += of_path
        hop = found[step * RELATIONS + relation]
        assert hop.dtype == np.dtype(dtype)
        np.testing.assert_allclose(dense_of(hop), expected, atol=tolerance)
    assert not dense_of(found[2]).any()


def test_sparse_hops_stay_sparse_where_that_gains() -> None:
    indptr, indices, kind_ER, x = graph_of()
    few = np.zeros((NODES, 200), np.float32)
    few[:, :FEATURES] = x
    found = relation_hops(indptr, indices, kind_ER, sparse_of(few), 2, "float32")
    assert all(isinstance(hop, CsrRows) for hop in found)


def test_no_edges_and_no_nodes_have_hops() -> None:
    none = np.zeros((0, RELATIONS), np.float32)
    for nodes in (0, 3):
        x = np.ones((nodes, FEATURES), np.float32)
        indptr, indices = np.zeros(nodes + 1, np.int32), np.zeros(0, np.int32)
        for given in (x, sparse_of(x)):
            found = relation_hops(indptr, indices, none, given, 2, "float32")
            assert [dense_of(hop).shape for hop in found] == [(nodes, FEATURES)] * 2 * RELATIONS
            assert not any(dense_of(hop).any() for hop in found)


def test_what_hops_a_relation_cannot_be() -> None:
    indptr, indices, kind_ER, x = graph_of()
    with refused("propagation.relations", says="read kinds of edges, features that are 0 or 1"):
        relation_hops(indptr, indices, kind_ER * 0.5, x, 1, "float32")
    for given in (x * 1e6, sparse_of(x * 1e6)):
        with refused("propagation.dtype", says="float16 ends at"):
            relation_hops(indptr, indices, kind_ER, given, 1, "float16")


def test_names_of_kernels_say_relations() -> None:
    for options in (
        PropagationOptions(2, relations=True),
        PropagationOptions(2, relations=True, rows="labelled"),
        PropagationOptions(2, relations=True, keep="none", dtype="float16"),
        PropagationOptions(2),
    ):
        assert propagation_of(options.name) == options
    assert PropagationOptions(2, relations=True).stored(3) == 6
    assert PropagationOptions(2).stored(3) == 2
