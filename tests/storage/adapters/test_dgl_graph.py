"""DGLGraph in and out. DGL has no build for this torch: a duck type keeps to the part of its interface we use."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from torch import Tensor
from torch_geometric.data import Data

from shoal.storage.adapters import from_dgl, from_pyg, to_dgl
from shoal.storage.graph.graph import Graph
from shoal.storage.store.store import Store

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
def test_refuses(key: str, changes: dict[str, Any], message: str, square: Square) -> None:
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
