"""Graphs of NetworkX, and of DGL and torch_sparse by duck types of their interface: this torch has no build of them."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from support.errors import refused
from torch import Tensor
from torch_geometric.data import Data

from shoal.storage.adapters import from_dgl, from_networkx, from_pyg, from_sparse_tensor, to_dgl, to_sparse_tensor
from shoal.storage.graph.graph import Graph
from shoal.storage.store.store import Store


def club() -> Any:
    graph = nx.DiGraph()
    for node, label in (("c", "owl"), ("a", None), (7, "ant"), ("b", "owl")):
        graph.add_node(node, h=len(str(node)) + 0.5, w=2, both=[1.0, 3.0], train_mask=node == "c", assignment=0)
        if label:
            graph.nodes[node]["label"] = label
    graph.add_edges_from([("c", "a"), ("a", "c"), ("a", 7), ("b", 7), ("b", "b")])
    return graph


def test_brings_back_what_is_there() -> None:
    graph = from_networkx(club(), ["h", "w"], name="club")
    assert (graph.indptr.tolist(), graph.indices.tolist()) == ([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])
    assert (graph.y.tolist(), graph.label_names) == ([1, -1, 0, 1], ("ant", "owl"))
    assert (graph.x.tolist(), graph.name) == ([[1.5, 2]] * 4, "club")
    assert graph.vocabulary.tolist() == ["h", "w"]
    assert graph.split.tolist() == [1, 0, 0, 0]
    assert graph.assignment.tolist() == [0] * 4
    assert from_networkx(club(), "both").x.tolist() == [[1, 3]] * 4
    assert from_networkx(club(), "h").x.tolist() == [[1.5]] * 4
    assert from_networkx(nx.MultiGraph(club()), "h").indices.tolist() == [1, 0, 2, 1, 3, 2]


def test_weights_of_edges_and_one_where_there_is_none() -> None:
    graph = club()
    graph["b"][7]["weight"] = 2.5
    # Of c: a; of a: c and 7; of 7: a and b; of b: 7. The loop at b is taken out.
    found = from_networkx(graph, "h").edge_weight
    assert found.tolist() == [1, 1, 1, 1, 2.5, 2.5]
    assert from_networkx(club(), "h").edge_weight is None


def test_numbers_of_the_library_are_labels() -> None:
    graph = nx.karate_club_graph()
    nx.set_edge_attributes(graph, 1, "weight")
    nx.set_node_attributes(graph, dict(graph.degree()), "degree")
    found = from_networkx(graph, "degree", y="club")
    assert found.label_names == ("Mr. Hi", "Officer")
    assert (found.nodes, found.entries) == (34, 156)
    nx.set_node_attributes(graph, {node: node % 2 for node in graph}, "parity")
    found = from_networkx(graph, "degree", y="parity")
    assert (found.label_names, found.y.tolist()) == (None, [0, 1] * 17)


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        (lambda g: g.nodes["a"].pop("h"), "graph.nodes['a']['h']", "missing"),
        (lambda g: g.nodes[7].update(h=[1, 2]), "graph.nodes[7]['h']", "of another length"),
        (lambda g: g.nodes[7].update(h="x"), "graph.nodes[...]['h']", "features must be numbers"),
        (lambda g: g.nodes[7].pop("assignment"), "graph.nodes[7]['assignment']", "missing"),
        (lambda g: g["a"][7].update(weight=-1), "graph", "edge 'a', 7 has weight -1"),
        (lambda g: g["a"][7].update(weight="far"), "graph", "edge 'a', 7 has weight 'far'"),
        (lambda g: g["a"][7].update(weight=float("inf")), "graph", "has weight inf"),
        (lambda g: g["a"][7].update(weight=float("nan")), "graph", "has weight nan"),
        (lambda g: g["a"]["c"].update(weight=3), "graph.edges", "weighs 1 and 3"),
        (lambda g: g.clear(), "graph", "has no nodes"),
    ],
)
def test_networkx_refuses(change: Any, place: str, says: str) -> None:
    graph = club()
    change(graph)
    with refused(place, says=says):
        from_networkx(graph, "h")


Square = Callable[..., dict[str, Any]]
NAMES = {"x": "feat", "y": "label"}


class DGLGraph:
    """As dgl.DGLGraph: ndata takes tensors of one row a node, edges come as sources and targets."""

    is_homogeneous = True

    def __init__(self, edges: tuple[Tensor, Tensor], num_nodes: int) -> None:
        source, target = edges
        assert source.dtype == target.dtype in (torch.int64, torch.int32)
        assert num_nodes > max(source.max(), target.max()) if len(source) else True
        self._edges, self._nodes = (source, target), num_nodes
        self.ndata: dict[str, Tensor] = {}
        self.edata: dict[str, Tensor] = {}

    def num_nodes(self) -> int:
        return self._nodes

    def edges(self) -> tuple[Tensor, Tensor]:
        return self._edges


def graph(data: tuple[Tensor, Tensor], *, num_nodes: int) -> DGLGraph:
    return DGLGraph(data, num_nodes)


DGL = SimpleNamespace(graph=graph, NID="_ID")


def given(square: Square, **changes: Any) -> DGLGraph:
    tensors = square(**changes)
    made = DGLGraph(tuple(tensors.pop("edge_index")), 4)
    made.ndata.update({NAMES.get(key, key): tensor for key, tensor in tensors.items()})
    return made


def test_graph_in(square: Square, assert_square: Callable[[Graph], None]) -> None:
    made = given(square, edge_index=square()["edge_index"].int())
    assert_square(from_dgl(made))
    made.ndata["h"], made.ndata["c"] = made.ndata.pop("feat"), made.ndata.pop("label")
    assert_square(from_dgl(made, "mine", x="h", y="c"))


def test_graph_out_is_what_came_in(square: Square, assert_square: Callable[[Graph], None]) -> None:
    out = to_dgl(from_dgl(given(square)), module=DGL)
    assert_square(from_dgl(out))
    assert out.num_nodes() == 4
    assert len(out.edges()[0]) == 10
    assert set(out.ndata) == {"feat", "label", "train_mask", "val_mask", "test_mask"}


def test_shard_out_keeps_the_numbers_of_its_nodes(make_store: Callable[..., Store]) -> None:
    store = make_store()
    shard = store.shard(1)
    out = to_dgl(shard, store.split(next(iter(store.manifest.splits)), 1), module=DGL)
    assert out.ndata["_ID"].tolist() == shard.node.tolist()
    assert sorted(out.ndata["_ID"].tolist()) == list(range(20, 29))
    assert out.ndata["train_mask"].any()
    lonely = to_dgl(store.shard(2), module=DGL)
    assert (lonely.num_nodes(), len(lonely.edges()[0])) == (1, 0)


@pytest.mark.parametrize("key", ["weight", "w"])
def test_weights_in_and_out(
    key: str, square: Square, given_weights: Tensor, assert_weighted: Callable[[Graph], None]
) -> None:
    made = given(square)
    made.edata[key] = given_weights
    assert_weighted(from_dgl(made))
    out = to_dgl(from_dgl(made), module=DGL)
    assert len(out.edata["weight"]) == 10
    assert_weighted(from_dgl(out))
    out.edata["w"] = out.edata["weight"]
    with refused("graph.edata"):
        from_dgl(out)
    made.edata[key] = -given_weights
    with refused(f"graph.edata['{key}']"):
        from_dgl(made)


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        ("feat", {"x": None}, "missing"),
        ("label", {"y": None}, "missing"),
        ("feat", {"x": torch.ones(3, 2)}, "3 rows for 4 nodes"),
        ("label", {"y": torch.ones(4, 2)}, "multi-label"),
        ("test_mask", {"test_mask": torch.ones(4, 2, dtype=torch.bool)}, "2 splits"),
    ],
)
def test_dgl_refuses(key: str, changes: dict[str, Any], message: str, square: Square) -> None:
    with refused(f"graph.ndata['{key}']", says=message):
        from_dgl(given(square, **changes))


def test_refuses_several_kinds_of_nodes_and_labels_of_graphs(square: Square) -> None:
    made = given(square)
    made.is_homogeneous = False
    with refused("graph", says="to_homogeneous"):
        from_dgl(made)
    graph = replace(from_pyg(Data(**square())), graph_of=np.zeros(4, dtype=np.int64), y=np.array([1]), split=None)
    with refused("graph", says="many graphs"):
        to_dgl(graph, module=object())


@pytest.mark.skipif(importlib.util.find_spec("dgl") is not None, reason="DGL is installed")
def test_without_dgl_one_line(square: Square) -> None:
    with refused("dgl"):
        to_dgl(from_dgl(given(square)))


MASKS = ("train_mask", "val_mask", "test_mask")


class SparseTensor:
    """As torch_sparse.SparseTensor: from rows or from a row pointer, entries in row order."""

    def __init__(
        self, *, col: Tensor, sparse_sizes: tuple[int, int], row: Tensor | None = None, rowptr: Tensor | None = None,
        value: Tensor | None = None, is_sorted: bool = False,
    ) -> None:  # fmt: skip
        if rowptr is not None:
            assert rowptr.dtype == col.dtype == torch.int64
            row = torch.repeat_interleave(torch.arange(sparse_sizes[0]), rowptr.diff())
        keys = row * sparse_sizes[1] + col
        assert not is_sorted or bool((keys.diff() >= 0).all()), "announced as sorted, but is not"
        order = keys.argsort()
        self.entries = row[order], col[order], None if value is None else value[order]
        self.sizes = sparse_sizes

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.entries

    def sparse_sizes(self) -> tuple[int, int]:
        return self.sizes


MODULE = SimpleNamespace(SparseTensor=SparseTensor)


def adjacency(square: Square, sizes: tuple[int, int] = (4, 4)) -> SparseTensor:
    target, source = square()["edge_index"]
    return SparseTensor(row=source, col=target, value=torch.rand(5), sparse_sizes=sizes)


def test_adjacency_in(square: Square, assert_square: Callable[[Graph], None]) -> None:
    tensors = square()
    masks = {key: tensors[key] for key in MASKS}
    assert_square(from_sparse_tensor(adjacency(square), tensors["x"], tensors["y"], masks))
    bare = from_sparse_tensor(adjacency(square), tensors["x"], tensors["y"], name="mine")
    assert bare.split is None
    assert bare.name == "mine"


def test_values_are_weights(square: Square, given_weights: Tensor, assert_weighted: Callable[[Graph], None]) -> None:
    tensors = square()
    target, source = tensors["edge_index"]
    given = SparseTensor(row=source, col=target, value=given_weights, sparse_sizes=(4, 4))
    masks = {key: tensors[key] for key in MASKS}
    assert_weighted(from_sparse_tensor(given, tensors["x"], tensors["y"], masks))
    graph = from_pyg(Data(**square(edge_index=None, adj_t=given)))
    assert_weighted(graph)
    assert_weighted(from_sparse_tensor(to_sparse_tensor(graph, MODULE), tensors["x"], tensors["y"], masks))


def test_adjacency_out_is_what_came_in(square: Square) -> None:
    graph = from_pyg(Data(**square()))
    row, col, value = to_sparse_tensor(graph, MODULE).coo()
    assert value is None
    assert graph.edge_weight is None
    assert row.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert col.tolist() == [1, 2, 3, 0, 2, 0, 1, 3, 0, 2]
    again = from_sparse_tensor(to_sparse_tensor(graph, MODULE), square()["x"], square()["y"])
    assert again.indices.tolist() == graph.indices.tolist()
    assert again.cleaning.reversed_added == 0


def test_sparse_refuses(square: Square) -> None:
    tensors = square()
    x, y = tensors["x"], tensors["y"]
    with refused("adjacency", says="square, found [4, 5]"):
        from_sparse_tensor(adjacency(square, (4, 5)), x, y)
    with refused("adjacency", says="found list"):
        from_sparse_tensor([[0, 1]], x, y)
    with refused("adjacency", says="names node 3, but the 3 nodes"):
        from_sparse_tensor(adjacency(square), x[:3], y[:3])
    with refused("masks['val_mask']"):
        from_sparse_tensor(adjacency(square), x, y, {key: torch.ones(4, dtype=torch.bool) for key in MASKS})


@pytest.mark.skipif(importlib.util.find_spec("torch_sparse") is not None, reason="torch_sparse is installed")
def test_without_torch_sparse_one_line(square: Square) -> None:
    with refused("torch_sparse"):
        to_sparse_tensor(from_pyg(Data(**square())))
