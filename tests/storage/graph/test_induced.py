from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import breadth_first_order, connected_components
from support.induced_parts import part_of

from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, induced, kept_entries


def whole(graph: Graph) -> sp.csr_array:
    ones = np.ones(graph.entries, dtype=np.int8)
    return sp.csr_array((ones, graph.indices, graph.indptr), shape=(graph.nodes, graph.nodes))


def dense(part: Induced) -> np.ndarray:
    shape = (len(part.node), len(part.node))
    return sp.csr_array((np.ones(len(part.indices)), part.indices, part.indptr), shape=shape).toarray()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(1, 25), density=st.floats(0, 0.5), share=st.floats(0, 1))
def test_any_part_of_any_graph(
    make_graph: Callable[..., Graph], seed: int, nodes: int, density: float, share: float
) -> None:
    graph = make_graph(seed, nodes, density)
    chosen = np.flatnonzero(np.random.default_rng(seed).random(nodes) <= share)
    part = part_of(graph, chosen)
    np.testing.assert_array_equal(np.sort(part.node), chosen)
    np.testing.assert_array_equal(dense(part), whole(graph)[part.node][:, part.node].toarray())
    for row in range(len(chosen)):
        assert (np.diff(part.indices[part.indptr[row] : part.indptr[row + 1]]) > 0).all()

    # SciPy's breadth-first search, from the smallest id of every component.
    local = whole(graph)[chosen][:, chosen].tocsr()
    local.sort_indices()
    component = connected_components(local)[1] if len(chosen) else np.empty(0)
    roots = np.unique(component, return_index=True)[1]
    order = [breadth_first_order(local, root, return_predecessors=False) for root in np.sort(roots)]
    np.testing.assert_array_equal(part.node, chosen[np.concatenate(order)] if order else chosen)


def test_clients_of_one_pass_are_those_of_many(make_graph: Callable[..., Graph]) -> None:
    graph = make_graph(5, 90, 0.1)
    assignment = np.random.default_rng(5).integers(0, 4, 90).astype(np.int32)
    kept = kept_entries(graph.indptr, graph.indices, assignment)
    together = list(induced(graph.indptr, graph.indices, assignment, kept, [3, 0, 2]))
    for client, found in zip([3, 0, 2], together):
        alone = part_of(graph, np.flatnonzero(assignment == client))
        for a, b in zip((found.node, found.indptr, found.indices), (alone.node, alone.indptr, alone.indices)):
            np.testing.assert_array_equal(a, b)
