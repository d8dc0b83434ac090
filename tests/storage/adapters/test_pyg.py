"""PyG's own Data in, by hand; out, its own algebra on the result; every fault names the attribute."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import ToSparseTensor

from shoal.storage.adapters import from_pyg, to_pyg
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user.files import save_graph
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.pairs import Pairs
from shoal.storage.store.shard import Shard
from shoal.storage.store.split import Split
from shoal.storage.store.store import Store

Square = Callable[..., dict[str, Any]]
Check = Callable[[Graph], None]


def test_data_in(square: Square, assert_square: Check) -> None:
    graph = from_pyg(Data(**square()), "mine")
    assert_square(graph)
    assert graph.name == "mine"
    assert graph.cleaning.reversed_added == 5
    assert graph.assignment is None


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_adjacency_instead_of_edges(layout: torch.layout, square: Square, assert_square: Check) -> None:
    data = ToSparseTensor(layout=layout)(Data(**square()))
    assert data.edge_index is None
    assert_square(from_pyg(data))


def test_weights_in_and_out(square: Square, given_weights: torch.Tensor, assert_weighted: Check) -> None:
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
    with pytest.raises(ShoalError, match=r"^data\[0\]\.edge_weight: many small graphs have no weights of edges here"):
        from_pyg(small)


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([0.0, 1.0, torch.nan, 2.0]),
        torch.tensor([[0], [1], [-1], [2]]),
        torch.tensor([0, 1, -1, 2], dtype=torch.int8),
        torch.tensor([0.0, 1.0, torch.nan, 2.0], dtype=torch.bfloat16),
    ],
)
def test_labels_as_floats_column_or_bytes(y: torch.Tensor, square: Square, assert_square: Check) -> None:
    assert_square(from_pyg(Data(**square(y=y))))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_features_become_float32(dtype: torch.dtype, square: Square, assert_square: Check) -> None:
    graph = from_pyg(Data(**square(x=square()["x"].to(dtype))))
    assert graph.x.dtype == np.float32
    assert_square(graph)


def test_features_with_a_gradient_and_sparse_ones(square: Square, assert_square: Check) -> None:
    assert_square(from_pyg(Data(**square(x=square()["x"].requires_grad_()))))
    sparse = from_pyg(Data(**square(x=square()["x"].to_sparse_csr())))
    assert sp.issparse(sparse.x)
    assert np.array_equal(sparse.x.toarray(), square()["x"])


def test_masks_may_be_absent_and_clients_there(square: Square) -> None:
    bare = {"train_mask": None, "val_mask": None, "test_mask": None}
    graph = from_pyg(Data(**square(**bare, assignment=torch.tensor([1, 0, 0, 1]))))
    assert graph.split is None
    assert graph.assignment is not None
    assert graph.assignment.tolist() == [1, 0, 0, 1]
    some = from_pyg(Data(**square(val_mask=None)))
    assert some.split is not None
    assert some.split.tolist() == [1, 0, 0, 3]


@pytest.mark.parametrize("nodes", [1, 4])
def test_no_edges(nodes: int) -> None:
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), x=torch.ones(nodes, 2), y=torch.zeros(nodes))
    graph = from_pyg(data)
    assert (graph.nodes, graph.entries, graph.classes) == (nodes, 0, 1)
    assert to_pyg(graph).edge_index.shape == (2, 0)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("x", None, "missing"),
        ("y", None, "missing"),
        ("edge_index", None, "missing"),
        ("x", [[1.0], [2.0]], "must be a tensor or an array, found list"),
        ("x", torch.tensor([[1.0], [torch.nan], [2.0], [3.0]]), "row 1 .*NaN"),
        ("x", torch.tensor([[1.0], [2.0], [3.0], [1e300]], dtype=torch.float64), "row 3 "),
        ("x", torch.ones(4), r"\[N, F\]"),
        ("y", torch.tensor([[0, 1], [1, 0], [1, 1], [0, 0]]), "multi-label"),
        ("y", torch.tensor([0.0, 1.5, 0.0, 1.0]), r"row 1 is 1\.5, not an integer"),
        ("y", torch.tensor([0, 1, 2]), "x has 4 rows"),
        ("y", torch.full((4,), torch.nan), "no node has a label"),
        ("edge_index", torch.tensor([[0, 4], [1, 2]]), "names node 4"),
        ("edge_index", torch.tensor([[0.0], [1.0]]), "must be integers"),
        ("edge_index", torch.tensor([[0, 1], [1, 2], [2, 3]]), r"shape \[2, E\]"),
        ("train_mask", torch.ones(4, 10, dtype=torch.bool), "10 splits; take one"),
        ("val_mask", torch.ones(3, dtype=torch.bool), r"4 nodes, found bool \[3\]"),
        ("test_mask", torch.tensor([0, 1, 3]), r"found int64 \[3\]"),
        ("val_mask", torch.tensor([True, False, False, False]), "node 0 is in another mask"),
        ("assignment", torch.tensor([0, 1, -1, 1]), "row 2 is -1"),
    ],
)
def test_refuses(attribute: str, value: Any, message: str, square: Square) -> None:
    with pytest.raises(ShoalError, match=rf"^data\.{attribute}: .*{message}") as caught:
        from_pyg(Data(**square(**{attribute: value})))
    assert "\n" not in caught.value.line


def test_refuses_an_adjacency_that_is_dense_or_not_square(square: Square) -> None:
    for adj_t, message in ((torch.eye(4), "found Tensor"), (torch.ones(4, 5).to_sparse_csr(), r"found \[4, 5\]")):
        with pytest.raises(ShoalError, match=rf"^data\.adj_t: .*{message}"):
            from_pyg(Data(**square(edge_index=None, adj_t=adj_t)))


@pytest.mark.parametrize("data", [HeteroData(), KarateClub(), None])
def test_refuses_what_is_no_data(data: Any) -> None:
    with pytest.raises(ShoalError, match=rf"^data: .*found {type(data).__name__}; "):
        from_pyg(data)


def test_graph_in_and_out_is_what_it_was(square: Square) -> None:
    karate = KarateClub()[0]
    out = to_pyg(from_pyg(karate))
    assert out.validate()
    assert torch.equal(out.edge_index, karate.coalesce().edge_index)
    assert torch.equal(out.x, karate.x)
    assert torch.equal(out.y, karate.y)
    assert torch.equal(out.train_mask, karate.train_mask)
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
        inside = np.isin(np.arange(30), node)
        source = np.repeat(np.arange(30), np.diff(graph.indptr))
        kept = inside[source] & inside[graph.indices]
        given = set(zip(source[kept].tolist(), graph.indices[kept].tolist()))
        assert set(zip(*data.n_id[data.edge_index].tolist())) == given
        assert data.edge_index.shape[1] == len(given)
        assert torch.equal(data.x, torch.from_numpy(graph.x[node]).to(getattr(torch, dtype)))
        assert np.array_equal(data.y, graph.y[node])
        for mask, rows in zip((data.train_mask, data.val_mask, data.test_mask), (split.train, split.val, split.test)):
            assert torch.equal(mask.nonzero().flatten(), torch.from_numpy(rows).long())
    assert "train_mask" not in to_pyg(store.shard(0))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_sparse_features_out(dtype: str, layout: str, make_store: Callable[..., Store]) -> None:
    """However a shard keeps them, they are dense, or CSR where that is asked for."""
    x = np.random.default_rng(0).integers(0, 2, (30, 40)).astype(np.float32)
    shard = make_store(dtype, layout, x).shard(0)
    expected = torch.from_numpy(x[shard.node]).to(getattr(torch, dtype))
    plain, sparse = to_pyg(shard), to_pyg(shard, sparse=True)
    assert torch.equal(plain.x, expected)
    assert (sparse.x.layout, sparse.x.dtype) == (torch.sparse_csr, expected.dtype)
    assert torch.equal(sparse.x.to_dense(), expected)
    assert np.array_equal(from_pyg(sparse).x.toarray(), x[shard.node])
    before = shard.x.toarray() if layout == "sparse" else shard.x.copy()
    sparse.x.values().zero_()
    assert np.array_equal(shard.x.toarray() if layout == "sparse" else shard.x, before)


def test_writing_into_what_went_out_leaves_the_file(make_store: Callable[..., Store]) -> None:
    store = make_store()
    before = store.shard(0).x.copy()
    to_pyg(store.shard(0)).x.zero_()
    assert np.array_equal(store.shard(0).x, before)


def test_a_layer_of_pyg_takes_what_went_out(square: Square) -> None:
    """GCN by dense algebra on the square: D^-1/2 (A + I) D^-1/2 X W."""
    data = to_pyg(from_pyg(Data(**square())))
    layer = GCNConv(2, 3, bias=False)
    a = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.float32)
    scale = a.sum(1) ** -0.5
    expected = (scale[:, None] * a * scale) @ data.x @ layer.lin.weight.T
    assert torch.allclose(layer(data.x, data.edge_index), expected, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_saved_graph_is_loaded_equal(sparse: bool, square: Square, assert_square: Check, tmp_path: Path) -> None:
    x = square()["x"]
    graph = from_pyg(Data(**square(x=x.to_sparse_csr() if sparse else x, assignment=torch.tensor([1, 0, 0, 1]))))
    read = load(DataSource("files", path=str(save_graph(graph, tmp_path / "mine"))))
    assert sp.issparse(read.x) == sparse
    assert_square(from_pyg(to_pyg(read)))
    assert read.assignment is not None
    assert read.assignment.tolist() == [1, 0, 0, 1]


def three() -> list[Data]:
    """An edge, a node alone, and a path of three nodes given one way."""
    return [
        Data(torch.tensor([[1.0, 0], [0, 1]]), torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([2])),
        Data(torch.tensor([[5.0, 6]]), torch.empty(2, 0, dtype=torch.int64), y=torch.tensor([[0]])),
        Data(torch.tensor([[1.0, 1], [2, 2], [3, 3]]), torch.tensor([[0, 2], [1, 1]]), y=1),
    ]


def test_many_graphs_in_and_out() -> None:
    graph = from_pyg(three(), "mine")
    assert (graph.name, graph.nodes, graph.items, graph.classes) == ("mine", 6, 3, 3)
    assert graph.indptr.tolist() == [0, 1, 2, 2, 3, 5, 6]
    assert graph.indices.tolist() == [1, 0, 4, 3, 5, 4]
    assert graph.y.tolist() == [2, 0, 1]
    assert graph.graph_of is not None
    assert graph.graph_of.tolist() == [0, 0, 1, 2, 2, 2]
    assert np.array_equal(graph.x, [[1, 0], [0, 1], [5, 6], [1, 1], [2, 2], [3, 3]])
    out = to_pyg(graph)
    assert (out.batch.tolist(), out.y.tolist()) == ([0, 0, 1, 2, 2, 2], [2, 0, 1])


def test_a_client_of_many_graphs_has_masks_of_graphs() -> None:
    shard = Shard(
        client=0,
        node=np.array([4, 5, 9]),
        label=np.array([1, 1, 0], dtype=np.int32),
        indptr=np.array([0, 1, 2, 2], dtype=np.int32),
        indices=np.array([1, 0], dtype=np.int32),
        x=np.ones((3, 2), dtype=np.float32),
        graph=np.array([3, 3, 7]),
    )
    parts = (np.array(rows, dtype=np.int32) for rows in ([1], [], [0]))
    out = to_pyg(shard, Split(*parts))
    assert (out.batch.tolist(), out.y.tolist(), out.n_id.tolist()) == ([0, 0, 1], [1, 0], [4, 5, 9])
    assert (out.train_mask.tolist(), out.test_mask.tolist()) == ([False, True], [True, False])


def test_a_client_of_pairs_has_labels_and_masks_of_pairs() -> None:
    columns = [1, 2, 2], [1, 0, 0], [1, 3, 2]
    partner, label, part = (np.array(column, dtype=np.int8) for column in columns)
    shard = Shard(
        client=0,
        node=np.array([4, 5, 9]),
        label=np.full(3, -1, dtype=np.int32),
        indptr=np.array([0, 1, 2, 2], dtype=np.int32),
        indices=np.array([1, 0], dtype=np.int32),
        x=np.ones((3, 2), dtype=np.float32),
        pairs=Pairs(np.array([0, 2, 3, 3], dtype=np.int32), partner.astype(np.int32), label, part),
    )
    out = to_pyg(shard, Split(*(np.array([row], dtype=np.int32) for row in (0, 2, 1))))
    assert out.edge_index.tolist() == [[0, 1], [1, 0]]
    assert (out.edge_label_index.tolist(), out.edge_label.tolist()) == ([[0, 0, 1], [1, 2, 2]], [1, 0, 0])
    assert (out.n_id.tolist(), out.y, out.num_nodes) == ([4, 5, 9], None, 3)
    masks = [out.train_mask.tolist(), out.val_mask.tolist(), out.test_mask.tolist()]
    assert masks == [[True, False, False], [False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"x": None}, r"^data\[1\]\.x: missing"),
        ({"y": None}, r"^data\[1\]\.y: missing"),
        ({"edge_index": None}, r"^data\[1\]\.edge_index: missing"),
        ({"x": torch.ones(1, 3)}, r"^data\[1\]\.x: must be \[nodes, 2\] .*, found \[1, 3\]"),
        ({"x": torch.ones(0, 2)}, r"^data\[1\]\.x: must be .* one node or more, found \[0, 2\]"),
        ({"x": torch.ones(2)}, r"^data\[1\]\.x: must be .*found \[2\]"),
        ({"y": torch.tensor([0, 1])}, r"^data\[1\]\.y: must be the one label of the graph, found \[2\]"),
        ({"y": "a"}, r"^data\[1\]\.y: must be a tensor or an array, found str"),
        ({"edge_index": torch.tensor([[0], [1]])}, r"^data\[1\]\.edge_index: names a node outside 0 to 0"),
        ({"edge_index": torch.tensor([[-1], [0]])}, r"^data\[1\]\.edge_index: names a node outside 0 to 0"),
        ({"edge_index": torch.ones(2, 1)}, r"^data\[1\]\.edge_index: must be integers"),
        ({"edge_index": torch.zeros(1, 2, dtype=torch.int64)}, r"^data\[1\]\.edge_index: .*shape \[2, E\]"),
    ],
)
def test_a_wrong_graph_among_many_is_named(changed: dict[str, Any], line: str) -> None:
    graphs = three()
    for key, value in changed.items():
        setattr(graphs[1], key, value)
    with pytest.raises(ShoalError, match=line) as caught:
        from_pyg(graphs)
    assert "\n" not in caught.value.line


def test_many_graphs_are_some_graphs() -> None:
    with pytest.raises(ShoalError, match=r"^data: an empty list; give at least one graph$"):
        from_pyg([])
    with pytest.raises(ShoalError, match=r"^data\[0\]: must be a torch_geometric Data, found HeteroData$"):
        from_pyg([HeteroData()])
