"""Graphs of PyG and NetworkX, and of DGL and torch_sparse by duck types of their interface: this torch has no build."""

import importlib.util
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from support.pyg_graphs import three
from support.shards import adjacency, dense
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import ToSparseTensor

import shoal
from shoal.storage.adapters import (
    from_dgl,
    from_networkx,
    from_pyg,
    from_sparse_tensor,
    to_dgl,
    to_pyg,
    to_sparse_tensor,
)
from shoal.storage.adapters.clients import from_clients
from shoal.storage.adapters.libraries import WEIGHTS
from shoal.storage.datasets.user.unread import Unread
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
    assert (graph.vocabulary.tolist(), graph.split.tolist()) == (["h", "w"], [1, 0, 0, 0])
    assert (graph.assignment.tolist(), graph.ids.to_pylist()) == ([0] * 4, ["c", "a", "7", "b"])
    assert from_networkx(club(), "both").x.tolist() == [[1, 3]] * 4
    assert from_networkx(club(), "h").x.tolist() == [[1.5]] * 4
    assert from_networkx(nx.MultiGraph(club()), "h").indices.tolist() == [1, 0, 2, 1, 3, 2]


def test_a_program_takes_graphs_of_other_libraries_from_the_package_itself() -> None:
    graph = nx.karate_club_graph()
    nx.set_node_attributes(graph, dict(graph.degree()), "degree")
    data = shoal.to_pyg(shoal.from_networkx(graph, "degree", y="club"))
    both = {(int(s), int(t)) for s, t in data.edge_index.T}
    assert both == {*graph.edges, *((target, source) for source, target in graph.edges)}
    assert data.x[:, 0].tolist() == [degree for _, degree in graph.degree()]
    officer = [graph.nodes[node]["club"] == "Officer" for node in graph]
    assert [bool(y) for y in data.y == data.y[33]] == officer
    assert shoal.from_dgl is from_dgl


def test_weights_of_edges_and_one_where_there_is_none() -> None:
    graph = club()
    graph["b"][7]["weight"] = 2.5
    # Of c: a; of a: c and 7; of 7: a and b; of b: 7. The loop at b is taken out.
    found = from_networkx(graph, "h").edge_weight
    assert found.tolist() == [1, 1, 1, 1, 2.5, 2.5]
    assert from_networkx(club(), "h").edge_weight is None


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
Check = Callable[[Graph], None]
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


DGL = SimpleNamespace(graph=lambda data, *, num_nodes: DGLGraph(data, num_nodes), NID="_ID")


def given(square: Square, **changes: Any) -> DGLGraph:
    tensors = square(**changes)
    made = DGLGraph(tuple(tensors.pop("edge_index")), 4)
    made.ndata.update({NAMES.get(key, key): tensor for key, tensor in tensors.items()})
    return made


def test_graph_in(square: Square, assert_square: Check) -> None:
    made = given(square, edge_index=square()["edge_index"].int())
    assert_square(from_dgl(made))
    made.ndata["h"], made.ndata["c"] = made.ndata.pop("feat"), made.ndata.pop("label")
    assert_square(from_dgl(made, "mine", x="h", y="c"))


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
def test_weights_in_and_out(key: str, square: Square, given_weights: Tensor, assert_weighted: Check) -> None:
    made = given(square)
    made.edata[key] = given_weights
    assert_weighted(from_dgl(made))
    out = to_dgl(from_dgl(made), module=DGL)
    assert (out.num_nodes(), len(out.edges()[0]), len(out.edata["weight"])) == (4, 10, 10)
    assert set(out.ndata) == {"feat", "label", "train_mask", "val_mask", "test_mask"}
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
        ("label", {"y": torch.rand(4)}, "a measured number"),
        ("feat", {"x": torch.ones(3, 2)}, "3 rows for 4 nodes"),
        ("label", {"y": torch.ones(4, 2)}, "of several classes; give one"),
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


def adjacency_of(square: Square, sizes: tuple[int, int] = (4, 4)) -> SparseTensor:
    target, source = square()["edge_index"]
    return SparseTensor(row=source, col=target, value=torch.rand(5), sparse_sizes=sizes)


def test_adjacency_alone(square: Square) -> None:
    bare = from_sparse_tensor(adjacency_of(square), square()["x"], square()["y"], name="mine")
    assert (bare.split, bare.name, bare.entries) == (None, "mine", 10)


def test_values_are_weights(square: Square, given_weights: Tensor, assert_weighted: Check) -> None:
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
    assert (value, graph.edge_weight) == (None, None)
    assert (row.tolist(), col.tolist()) == ([0, 0, 0, 1, 1, 2, 2, 2, 3, 3], [1, 2, 3, 0, 2, 0, 1, 3, 0, 2])
    again = from_sparse_tensor(to_sparse_tensor(graph, MODULE), square()["x"], square()["y"])
    assert (again.indices.tolist(), again.cleaning.reversed_added) == (graph.indices.tolist(), 0)


def test_sparse_refuses(square: Square) -> None:
    tensors = square()
    x, y = tensors["x"], tensors["y"]
    with refused("adjacency", says="square, found [4, 5]"):
        from_sparse_tensor(adjacency_of(square, (4, 5)), x, y)
    with refused("adjacency", says="found list"):
        from_sparse_tensor([[0, 1]], x, y)
    with refused("adjacency", says="names node 3, but the 3 nodes"):
        from_sparse_tensor(adjacency_of(square), x[:3], y[:3])
    with refused("masks['val_mask']"):
        from_sparse_tensor(adjacency_of(square), x, y, {key: torch.ones(4, dtype=torch.bool) for key in MASKS})


@pytest.mark.parametrize(("library", "out"), [("dgl", to_dgl), ("torch_sparse", to_sparse_tensor)])
def test_without_a_library_one_line(library: str, out: Callable[[Graph], Any], square: Square) -> None:
    if importlib.util.find_spec(library) is not None:
        pytest.skip(f"{library} is installed")
    with refused(library):
        out(from_pyg(Data(**square())))


ODD: dict[str, Callable[[torch.Tensor], Any]] = {
    "meta": lambda t: t.to("meta"),
    "quantized": lambda t: torch.quantize_per_tensor(t.float(), 0.1, 0, torch.quint8),
    "nested": lambda t: torch.nested.nested_tensor([t.float(), t.float()]),
    "float8": lambda t: t.float().to(torch.float8_e4m3fn),
    "of another layout": lambda t: t.float().to_mkldnn(),
    "sparse, without values": lambda t: t.float().to_sparse().to("meta"),
    "one number": lambda t: torch.tensor(3),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("key", ["x", "edge_index", "y", "edge_weight"])
def test_tensors_that_are_no_array_are_refused_by_name(kind: str, key: str, square: Square) -> None:
    tensors = square()
    tensors["edge_weight"] = torch.ones(tensors["edge_index"].shape[1])
    odd = Data(**{**tensors, key: ODD[kind](tensors[key])})
    with refused(f"data.{key}"):
        from_pyg(odd)
    small = {"x": tensors["x"], "edge_index": tensors["edge_index"], "y": torch.tensor([0])}
    # Of a small graph one number is its label.
    with nullcontext() if (key, kind) == ("y", "one number") else refused(f"data[1].{key}"):
        from_pyg([Data(**small), Data(**{**small, key: ODD[kind](tensors[key])})])
    with refused(f"client 1.{key}"):
        from_clients([Data(**tensors), odd])


def test_lazy_conjugates_and_negatives_are_read(square: Square) -> None:
    tensors = square()
    graph = from_pyg(Data(**{**tensors, "x": torch._neg_view(-tensors["x"])}))
    assert np.array_equal(graph.x, from_pyg(Data(**tensors)).x)


def test_data_in(square: Square, assert_square: Check) -> None:
    graph = from_pyg(Data(**square()), "mine")
    assert_square(graph)
    assert (graph.name, graph.cleaning.reversed_added, graph.assignment) == ("mine", 5, None)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_adjacency_instead_of_edges(layout: torch.layout, square: Square, assert_square: Check) -> None:
    data = ToSparseTensor(layout=layout)(Data(**square()))
    assert data.edge_index is None
    assert_square(from_pyg(data))


def test_weights_of_data_in_and_out(square: Square, given_weights: torch.Tensor, assert_weighted: Check) -> None:
    weighted = Data(**square(edge_weight=given_weights))
    graph = from_pyg(weighted)
    assert_weighted(graph)
    assert_weighted(from_pyg(Data(**square(edge_weight=given_weights[:, None].double()))))
    assert_weighted(from_pyg(ToSparseTensor(layout=torch.sparse_csr)(weighted)))
    out = to_pyg(graph)
    assert out.edge_weight.dtype == torch.float32
    assert_weighted(from_pyg(out))
    # PyG's own algebra reads what came out as it reads what went in, both ways.
    conv = GCNConv(2, 3)
    both = torch.cat([weighted.edge_index, weighted.edge_index.flip(0)], dim=1)
    expected = conv(weighted.x, both, given_weights.repeat(2))
    torch.testing.assert_close(conv(out.x, out.edge_index, out.edge_weight), expected)
    # Ones say nothing.
    assert "edge_weight" not in to_pyg(from_pyg(Data(**square(edge_weight=torch.ones(5)))))
    small = [Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=0, edge_weight=torch.tensor([2.0]))]
    with refused("data[0].edge_weight"):
        from_pyg(small)


X = torch.arange(8, dtype=torch.float32).reshape(4, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"y": torch.tensor([0.0, 1.0, torch.nan, 2.0])},
        {"y": torch.tensor([[0], [1], [-1], [2]])},
        {"y": torch.tensor([0, 1, -1, 2], dtype=torch.int8)},
        {"y": torch.tensor([0.0, 1.0, torch.nan, 2.0], dtype=torch.bfloat16)},
        *({"x": X.to(dtype)} for dtype in (torch.float64, torch.bfloat16, torch.int64)),
        {"x": X.clone().requires_grad_()},
    ],
)
def test_features_and_labels_of_any_type(changes: dict[str, Any], square: Square, assert_square: Check) -> None:
    graph = from_pyg(Data(**square(**changes)))
    assert graph.x.dtype == np.float32
    assert_square(graph)


def test_sparse_features_and_no_edges(square: Square) -> None:
    sparse = from_pyg(Data(**square(x=X.to_sparse_csr())))
    assert sp.issparse(sparse.x)
    assert np.array_equal(sparse.x.toarray(), X)
    alone = from_pyg(Data(edge_index=torch.empty(2, 0, dtype=torch.int64), x=torch.ones(1, 2), y=torch.zeros(1)))
    assert (alone.nodes, alone.entries, alone.classes) == (1, 0, 1)
    assert to_pyg(alone).edge_index.shape == (2, 0)


def test_masks_may_be_absent_and_clients_there(square: Square) -> None:
    bare = {"train_mask": None, "val_mask": None, "test_mask": None}
    graph = from_pyg(Data(**square(**bare, assignment=torch.tensor([1, 0, 0, 1]))))
    assert graph.split is None
    assert graph.assignment.tolist() == [1, 0, 0, 1]
    some = from_pyg(Data(**square(val_mask=None)))
    assert some.split.tolist() == [1, 0, 0, 3]


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("x", None, "missing"),
        ("edge_index", None, "missing"),
        ("x", [[1.0], [2.0]], "must be a tensor or an array, found list"),
        ("train_mask", torch.ones(4, 10, dtype=torch.bool), "10 splits; take one"),
        ("val_mask", torch.ones(3, dtype=torch.bool), "4 nodes, found bool [3]"),
        ("test_mask", torch.tensor([0, 1, 3]), "found int64 [3]"),
        ("val_mask", torch.tensor([True, False, False, False]), "node 0 is in another mask"),
    ],
)
def test_data_refuses(attribute: str, value: Any, message: str, square: Square) -> None:
    with refused(f"data.{attribute}", says=message):
        from_pyg(Data(**square(**{attribute: value})))


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (HeteroData(), "data.y", "one kind of nodes has labels, found none"),
        (KarateClub(), "data", "found KarateClub; "),
        (None, "data", "found NoneType; "),
        ([], "data", "an empty list"),
        ([HeteroData()], "data[0]", "found HeteroData"),
        (Data(x=X, y=X[:, 0], adj_t=torch.eye(4)), "data.adj_t", "found Tensor"),
        (Data(x=X, y=X[:, 0], adj_t=torch.ones(4, 5).to_sparse_csr()), "data.adj_t", "found [4, 5]"),
    ],
)
def test_refuses_what_is_no_data_or_no_adjacency(data: Any, place: str, message: str) -> None:
    with refused(place, says=message):
        from_pyg(data)


def test_graph_in_and_out_is_what_it_was(square: Square) -> None:
    karate = KarateClub()[0]
    out = to_pyg(from_pyg(karate))
    assert out.validate()
    assert torch.equal(out.edge_index, karate.coalesce().edge_index)
    assert all(torch.equal(out[key], karate[key]) for key in ("x", "y", "train_mask"))
    assert not out.val_mask.any()
    clients = torch.tensor([1, 0, 0, 1], dtype=torch.int32)
    assert torch.equal(to_pyg(from_pyg(Data(**square(assignment=clients)))).assignment, clients)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shard_out(dtype: str, make_store: Callable[..., Store], make_graph: Callable[..., Graph]) -> None:
    """Edges by the node's own numbers are those of the whole graph between nodes of the client."""
    store, graph = make_store(dtype), make_graph(0, 30, 0.2)
    for client in range(store.clients):
        shard, split = store.shard(client), store.split(next(iter(store.manifest.splits)), client)
        data = to_pyg(shard, split)
        assert data.validate()
        assert data.num_nodes == shard.nodes
        node = data.n_id.numpy()
        given = node[np.array(adjacency(graph)[node][:, node].nonzero())]
        assert sorted(zip(*data.n_id[data.edge_index].tolist())) == sorted(zip(*given.tolist()))
        assert torch.equal(data.x, torch.from_numpy(graph.x[node]).to(getattr(torch, dtype)))
        assert np.array_equal(data.y, graph.y[node])
        for mask, rows in zip((data.train_mask, data.val_mask, data.test_mask), (split.train, split.val, split.test)):
            assert torch.equal(mask.nonzero().flatten(), torch.from_numpy(rows).long())
    assert "train_mask" not in to_pyg(store.shard(0))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_features_out_are_dense_or_csr(dtype: str, layout: str, make_store: Callable[..., Store]) -> None:
    """However a shard keeps them; writing into them leaves the file."""
    x = np.random.default_rng(0).integers(0, 2, (30, 40)).astype(np.float32)
    store = make_store(dtype, layout, x)
    shard = store.shard(0)
    expected = torch.from_numpy(x[shard.node]).to(getattr(torch, dtype))
    plain, sparse = to_pyg(shard), to_pyg(shard, sparse=True)
    assert torch.equal(plain.x, expected)
    assert (sparse.x.layout, sparse.x.dtype) == (torch.sparse_csr, expected.dtype)
    assert torch.equal(sparse.x.to_dense(), expected)
    assert np.array_equal(from_pyg(sparse).x.toarray(), x[shard.node])
    sparse.x.values().zero_()
    assert np.array_equal(dense(shard.x), expected.numpy())
    plain.x.zero_()
    assert np.array_equal(dense(store.shard(0).x), expected.numpy())


E, N = torch.arange(1.0, 6.0), torch.zeros(4, dtype=torch.int64)
# What has a meaning, an entry an edge or a node, and where that is read from.
LOST = [
    *((key, E, "its weight is read") for key in ("weight", "edge_time", "t", "edge_label", "w")),
    *((key, N, "read of a HeteroData") for key in ("node_type", "ntype")),
    *((key, N, "the parts of a split") for key in ("train_idx", "valid_mask", "split", "Test_nodes", "fold")),
    *((key, N, "the client of every item") for key in ("client", "client_id")),
]


@pytest.mark.parametrize(("key", "value", "says"), LOST)
def test_what_tells_of_edges_parts_or_clients_is_not_lost(key: str, value: Tensor, says: str, square: Square) -> None:
    data = Data(**square(), **{key: value})
    with refused(f"data.{key}", says=says):
        from_pyg(data)
    small = three()
    small[1][key] = value
    # Of many graphs a name alone tells: in one of them there may be as many edges as anything.
    with refused(f"data[1].{key}", says=f"(del data.{key})") if key != "t" else pytest.warns(Unread):
        from_pyg(small)
    made, kind = given(square), "edata" if len(value) == 5 else "ndata"
    if key not in WEIGHTS:
        getattr(made, kind)[key] = value
        with refused(f"graph.{kind}['{key}']", says=f"(del graph.{kind}['{key}'])"):
            from_dgl(made)


def test_everything_else_that_is_not_read_is_named_once(square: Square) -> None:
    more = {"pos": torch.ones(4, 2), "year": N, "n_id": torch.arange(4), "num_nodes": 4}
    with pytest.warns(Unread, match="not read: data.pos, data.year$") as caught:
        from_pyg(Data(**square(), **more))
    assert len(caught) == 1
    made = given(square)
    made.ndata["pos"], made.ndata["_ID"] = torch.ones(4, 2), torch.arange(4)
    with pytest.warns(Unread, match=re.escape("not read: graph.ndata['pos']") + "$"):
        from_dgl(made)
    made.edata["_TYPE"] = E
    with refused("graph.edata['_TYPE']", says="read of a HeteroData"):
        from_dgl(made)
    for adapter in (from_dgl, lambda graph: from_networkx(graph, "h")):
        with refused("graph", says="found list"):
            adapter([made])
    with refused("data.adj_t", says="edges are read from edge_index"):
        from_pyg(Data(**square(), adj_t=torch.eye(4).to_sparse_csr()))
    with refused("masks['valid_mask']", says="the parts of a split"):
        from_sparse_tensor(adjacency_of(square), square()["x"], square()["y"], {"valid_mask": torch.ones(4).bool()})


def test_networkx_reads_parts_and_refuses_what_has_a_meaning() -> None:
    graph = club()
    for node, part in zip(graph, ("train", "val", None, 3)):
        del graph.nodes[node]["train_mask"]
        graph.nodes[node].update(pos=(0, 0), **({} if part is None else {"split": part}))
    assert from_networkx(graph, "h").split.tolist() == [1, 2, 0, 3]
    for place, own in (("graph.nodes[...]['client']", graph.nodes["a"]), ("graph.edges[...]['time']", graph["a"][7])):
        own[place.split("'")[1]] = 3
        with refused(place, says=".pop('"):
            from_networkx(graph, "h")
        own.popitem()
    graph.nodes["a"]["split"] = "dev"
    with refused("graph.nodes['a']['split']", says="'dev'; it is train"):
        from_networkx(graph, "h")
    both = club()
    nx.set_node_attributes(both, "test", "split")
    with refused("graph.nodes[...]['split']", says="train_mask"):
        from_networkx(both, "h")
