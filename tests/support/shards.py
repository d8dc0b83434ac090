"""What shards hold, by dense and sparse algebra from the graph that they were cut out of; files damaged and timed."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from support.dense_graphs import smoothing

from shoal.storage.graph.graph import Graph
from shoal.storage.shards.shard import Shard
from shoal.storage.store.store import Store


def adjacency(graph: Graph | Shard) -> sp.csr_array:
    """The edges of a graph or a shard, `[N, N]`."""
    return sp.csr_array((np.ones(graph.entries), graph.indices, graph.indptr), shape=(graph.nodes,) * 2)


def dense(x: Any) -> np.ndarray:
    """Rows of features or hops `[N, F]`, sparse ones written out."""
    return np.asarray(x.toarray() if hasattr(x, "toarray") else x)


def dense_hops(edges: np.ndarray, x: np.ndarray) -> Iterator[np.ndarray]:
    """Hops of features `[N, F]` over edges `[N, N]`, with self loops and symmetric degrees, one after another."""
    operator = smoothing(edges)
    while True:
        x = operator @ x
        yield x


def assert_holds(store: Store, client: int, nodes: Sequence[int] | np.ndarray, graph: Graph) -> None:
    """A shard has these nodes of a graph, with their features, labels and graphs, and all edges among them."""
    shard = store.shard(client)
    assert sorted(shard.node.tolist()) == sorted(nodes)
    np.testing.assert_array_equal(dense(shard.x), dense(graph.x)[shard.node])
    if graph.graph_of is None:
        np.testing.assert_array_equal(shard.label, graph.y[shard.node])
    else:
        assert shard.graph is not None
        assert shard.graph.tolist() == graph.graph_of[sorted(nodes)].tolist() == graph.graph_of[shard.node].tolist()
    assert (adjacency(graph)[shard.node][:, shard.node] != adjacency(shard)).nnz == 0


def flip(path: Path, place: int = 7) -> bytes:
    """Changes a bit of a file, by default one that no reader of Arrow files looks at; gives what was there."""
    before = path.read_bytes()
    content = bytearray(before)
    content[place] ^= 1
    path.write_bytes(content)
    return before


def times(folder: Path, pattern: str = "*") -> dict[str, int]:
    """When each file of a folder was written."""
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob(pattern) if p.is_file()}
