"""Several graphs as one: where nodes, edges, columns, parts and clients of each end up."""

from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.datasets.domains import domain_of_nodes, joined
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Domain, Graph


def graph(name: str, edges: list[tuple[int, int]], x: Any, y: list[int], **arrays: Any) -> Graph:
    found = {"edge_index": np.array(edges).reshape(-1, 2).T, "x": x, "y": np.array(y), **arrays}
    return graph_from_arrays(name, found, {key: key for key in found})


FIRST = graph("first", [(0, 1), (1, 2)], np.array([[1.0, 0], [2, 0], [0, 3]]), [0, 1, -1])
SECOND = graph("second", [(0, 1)], np.array([[4.0, 5], [0, 6]]), [2, 0])


def test_nodes_of_the_second_follow_those_of_the_first() -> None:
    both = joined([FIRST, SECOND])
    assert both.domains == (Domain("first", 3), Domain("second", 2))
    assert both.indptr.tolist() == [0, 1, 3, 4, 5, 6]
    assert both.indices.tolist() == [1, 0, 2, 1, 4, 3]
    assert both.indices.dtype == np.int32
    assert (both.y.tolist(), both.classes, both.name) == ([0, 1, -1, 2, 0], 3, "first+second")
    np.testing.assert_array_equal(both.x, [[1, 0], [2, 0], [0, 3], [4, 5], [0, 6]])
    assert joined([FIRST, replace(SECOND, synthetic=True)]).synthetic > both.synthetic
    assert both.cleaning.entries_read == 3
    assert both.cleaning.reversed_added == 3
    assert domain_of_nodes(both).tolist() == [0, 0, 0, 1, 1]


def test_columns_are_the_union_of_the_vocabularies() -> None:
    first = replace(FIRST, vocabulary=np.array(["rain", "mud"]))
    second = replace(SECOND, x=sp.csr_array(SECOND.x), vocabulary=np.array(["sun", "rain"]))
    both = joined([first, second])
    assert both.vocabulary.tolist() == ["mud", "rain", "sun"]
    np.testing.assert_array_equal(both.x.toarray(), [[0, 1, 0], [0, 2, 0], [3, 0, 0], [0, 5, 4], [0, 6, 0]])
    # The order in which graphs are named moves rows, and no column.
    turned = joined([second, first])
    np.testing.assert_array_equal(turned.x.toarray()[[2, 3, 4, 0, 1]], both.x.toarray())


def test_one_sparse_makes_all_sparse_and_drawn_features_are_read() -> None:
    both = joined([FIRST, replace(SECOND, x=sp.csr_array(SECOND.x))])
    assert sp.issparse(both.x)
    np.testing.assert_array_equal(both.x.toarray()[3:], SECOND.x)


def test_other_features_are_refused() -> None:
    wide = graph("wide", [(0, 1)], np.ones((2, 3)), [0, 1])
    with refused("data.dataset", says="found widths first 2, wide 3"):
        joined([FIRST, wide])
    # A vocabulary of one alone joins nothing.
    assert joined([replace(FIRST, vocabulary=np.array(["a", "b"])), SECOND]).vocabulary is None


def test_a_split_is_kept_if_all_have_one() -> None:
    split = [replace(g, split=np.full(g.nodes, k, dtype=np.int8)) for k, g in enumerate((FIRST, SECOND), 1)]
    assert joined(split).split.tolist() == [1, 1, 1, 2, 2]
    assert joined([split[0], SECOND]).split is None


def test_clients_of_the_second_follow_those_of_the_first() -> None:
    own = [replace(g, assignment=np.arange(g.nodes, dtype=np.int32) % 2) for g in (FIRST, SECOND)]
    assert joined(own).assignment.tolist() == [0, 1, 0, 2, 3]
    assert joined([FIRST, own[1]]).assignment is None


def test_a_vocabulary_names_every_column_once() -> None:
    names = {"vocabulary": np.array(["a", "a"])}
    with refused("vocabulary", says="'a' is there twice"):
        graph("twice", [], np.ones((2, 2)), [0, 1], **names)
    with refused("vocabulary", says="must be texts [2]"):
        graph("numbers", [], np.ones((2, 2)), [0, 1], vocabulary=np.arange(2))


def test_a_graph_without_weights_weighs_one_beside_others() -> None:
    weighted = graph("first", [(0, 1), (1, 2)], FIRST.x, [0, 1, -1], edge_weight=np.array([0.5, 3.0]))
    both = joined([weighted, SECOND])
    assert both.edge_weight is not None
    assert (both.edge_weight.tolist(), both.edge_weight.dtype) == ([0.5, 0.5, 3, 3, 1, 1], np.float32)
    assert joined([FIRST, SECOND]).edge_weight is None
