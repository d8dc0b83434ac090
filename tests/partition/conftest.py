import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from shoal.storage.graph.graph import Graph, clean_edges

MakeGraph = Callable[..., Graph]


def build(nodes: int, edges: Any, y: Any = None, classes: int = 1, assignment: np.ndarray | None = None) -> Graph:
    indptr, indices, cleaning = clean_edges(np.asarray(edges, dtype=np.int64).reshape(-1, 2).T, nodes, "test")
    label = np.zeros(nodes, dtype=np.int64) if y is None else np.asarray(y, dtype=np.int64)
    x = np.zeros((nodes, 1), dtype=np.float32)
    return Graph("small", indptr, indices, x, label, classes, assignment=assignment, cleaning=cleaning)


@pytest.fixture(scope="session")
def make_graph() -> MakeGraph:
    return build


@pytest.fixture(scope="session")
def draw_graph() -> MakeGraph:
    """Draws a graph by hypothesis: from `least` to `most` nodes, and edges in any number up to a limit."""

    def draw_graph(data: st.DataObject, most: int, edges: int, least: int = 1, least_edges: int = 0) -> Graph:
        nodes = data.draw(st.integers(least, most))
        node = st.integers(0, nodes - 1)
        return build(nodes, data.draw(st.lists(st.tuples(node, node), min_size=least_edges, max_size=edges)))

    return draw_graph


@pytest.fixture(scope="session")
def planted() -> Graph:
    """12 communities of 150 nodes under random ids; a node has about 16 neighbours in its own and 3 elsewhere."""
    rng = np.random.default_rng(5)
    nodes, size = 1800, 150
    source = rng.integers(nodes, size=8 * nodes)
    inside = np.stack([source, source // size * size + rng.integers(size, size=8 * nodes)], axis=1)
    edges = np.concatenate([inside, rng.integers(nodes, size=(3 * nodes // 2, 2))])
    return build(nodes, rng.permutation(nodes)[edges])


@pytest.fixture
def mapped_graph(tmp_path: Path) -> Callable[[Graph], Graph]:
    """Puts the edges of a graph on disk."""

    def mapped(graph: Graph) -> Graph:
        found = {}
        for name in ("indptr", "indices"):
            np.save(tmp_path / f"{name}.npy", getattr(graph, name))
            found[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        return replace(graph, **found)

    return mapped


@pytest.fixture(scope="session")
def cora() -> Graph:
    if "SHOAL_DATA" not in os.environ:
        pytest.skip("SHOAL_DATA is not set: the folder that holds planetoid/Cora/raw")
    from torch_geometric.datasets import Planetoid

    data = Planetoid(root=str(Path(os.environ["SHOAL_DATA"]) / "planetoid"), name="Cora")[0]
    return build(data.num_nodes, data.edge_index.numpy().T, data.y.numpy(), classes=7)


@pytest.fixture(scope="session")
def reference() -> Path:
    if "SHOAL_REFERENCE" not in os.environ:
        pytest.skip("SHOAL_REFERENCE is not set: the folder of published partitions with their info.json")
    return Path(os.environ["SHOAL_REFERENCE"])
