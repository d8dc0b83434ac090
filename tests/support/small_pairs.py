"""A federation whose items are pairs of nodes: five clients of one graph, some of them odd, plainly drawn."""

from itertools import combinations
from pathlib import Path

import numpy as np
from support.user_graph import write_arrays

from shoal.storage.graph.pairs import Pairs
from shoal.storage.store.store import Store

FEATURES = 5
OF_CLIENT = (14, 16, 6, 4, 5)
COMPLETE, NO_EDGES, ONE_EDGE = 2, 3, 4
SHARES = (0.4, 0.3, 0.3)
Pair = tuple[int, int]


def write_nodes(folder: Path) -> Path:
    """Writes them as a folder of arrays: nodes lie in no order of clients, and edges join clients, too.

    In client 2 an edge joins any two nodes, in client 3 none, in client 4 only one pair. Elsewhere nodes that are
    alike are joined. One node in five has no label, and labels are of no use.
    """
    rng = np.random.default_rng(11)
    assignment = rng.permutation(np.repeat(np.arange(len(OF_CLIENT)), OF_CLIENT))
    nodes = len(assignment)
    x = rng.standard_normal((nodes, FEATURES)).astype(np.float32)
    edges = []
    for a, b in combinations(range(nodes), 2):
        same = assignment[a] == assignment[b]
        near = float(x[a] @ x[b]) > (1.0 if same else 4.0)
        if (same and assignment[a] == COMPLETE) or (near and not (same and assignment[a] in (NO_EDGES, ONE_EDGE))):
            edges.append((a, b))
    edges.append(tuple(np.flatnonzero(assignment == ONE_EDGE)[[1, 3]]))
    y = np.where(np.arange(nodes) % 5 == 4, -1, rng.integers(3, size=nodes))
    return write_arrays(folder, edge_index=np.array(edges).T, x=x, y=y, assignment=assignment)


def edges_of(folder: Path, client: int | None = None) -> set[Pair]:
    """The published edges, or those among the nodes of a client, smaller global id first."""
    assignment, edges = (np.load(folder / f"{name}.npy") for name in ("assignment", "edge_index"))
    every = {(min(a, b), max(a, b)) for a, b in edges.T.tolist()}
    return {(a, b) for a, b in every if client is None or assignment[a] == assignment[b] == client}


def pairs_by_id(node: np.ndarray, pairs: Pairs | None) -> dict[Pair, tuple[int, int]]:
    """Label and part of every pair, by global ids, the smaller first."""
    assert pairs is not None
    ids = np.sort(node[pairs.ends], axis=1).tolist()
    found = {(a, b): (label, part) for (a, b), label, part in zip(ids, pairs.label.tolist(), pairs.part.tolist())}
    assert len(found) == len(pairs)
    return found


def visible(store: Store, client: int) -> set[Pair]:
    """The edges that a shard has, by global ids; it has each both ways."""
    shard = store.shard(client)
    row = np.repeat(np.arange(shard.nodes), np.diff(shard.indptr))
    both = list(zip(shard.node[row].tolist(), shard.node[shard.indices].tolist()))
    assert len(set(both)) == len(both) == shard.entries
    assert {(b, a) for a, b in both} == set(both)
    return {(a, b) for a, b in both if a < b}
