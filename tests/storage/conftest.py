from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.graph.gather import gather_features
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.graph.induced import kept_entries
from shoal.storage.graph.layout import Layout
from shoal.storage.graph.rows import entries_of
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions
from shoal.storage.shards.hops import write_hops
from shoal.storage.shards.shard import open_shard, write_shard
from shoal.storage.shards.split import random_split, write_split
from shoal.storage.store.client_table import ClientRecord, Clients, Files, SplitRecord
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import Store, hops_path, shard_path, split_path

OPTIONS = SplitOptions("stratified", 0, fractions=(0.5, 0.2, 0.3))


def build_graph(seed: int, nodes: int, density: float, features: int = 3, classes: int = 2) -> Graph:
    """A random graph; labels lie in -1 to `classes` - 1."""
    rng = np.random.default_rng(seed)
    edges = np.argwhere(np.triu(rng.random((nodes, nodes)) < density, 1)).T
    indptr, indices, cleaning = clean_edges(edges, nodes, "test")
    x = rng.standard_normal((nodes, features)).astype(np.float32)
    return Graph("small", indptr, indices, x, rng.integers(-1, classes, nodes), classes, cleaning=cleaning)


@pytest.fixture(scope="session")
def make_graph() -> Callable[..., Graph]:
    return build_graph


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[..., Store]:
    """A store of 30 nodes: clients of 20, 9 and 1 nodes, one split, one kernel of two hops."""

    def make(dtype: str = "float32", layout: Layout = "dense", x: np.ndarray | None = None, rows: str = "all") -> Store:
        root = tmp_path / ("store" if layout == "dense" else layout)
        propagation = PropagationOptions(2, dtype=dtype, rows=rows)
        graph = build_graph(0, 30, 0.2)
        graph = graph if x is None else replace(graph, x=x)
        assignment = np.repeat(np.arange(3, dtype=np.int32), [20, 9, 1])
        kept = kept_entries(graph.indptr, graph.indices, assignment)
        clients, splits, hops, counts = [], [], [], []
        for client, part, x in gather_features(graph, assignment, kept, range(3), dtype, 1 << 30, layout):
            file = write_shard(root / shard_path(client), client, part, graph.y, x)
            shard = open_shard(root / shard_path(client), client, file)
            split = random_split(shard.label, shard.node, client, OPTIONS)
            labelled = shard.label[shard.label >= 0]
            classes = np.bincount(labelled, minlength=2).tolist()
            clients.append(ClientRecord(client, shard.nodes, shard.entries, len(labelled), classes, file))
            counts.append([len(split.train), len(split.val), len(split.test)])
            splits.append(write_split(root / split_path(OPTIONS.split_name, client), split))
            hops.append(write_hops(root / hops_path(propagation.name, client), shard, propagation))
        identity = {"dataset": {"dataset": "small"}, "partition": {"method": "file"}}
        split = {OPTIONS.split_name: SplitRecord(counts, 0, Files.of(splits))}
        values = entries_of(graph.x) if layout == "sparse" else 0
        of_graph = ("small", True, 30, graph.features, 2, dtype, {}, {})
        manifest = Manifest(identity, *of_graph, Clients.of(clients), split, {propagation.name: Files.of(hops)})
        replace(manifest, layout=layout, feature_values=values).write(root)
        return Store(root)

    return make
