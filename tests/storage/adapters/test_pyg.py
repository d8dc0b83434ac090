"""PyG's own Data in, by hand; out, its own algebra on the result; every fault names the attribute."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from support.errors import refused
from torch_geometric.data import Data, HeteroData
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import ToSparseTensor

from shoal.storage.adapters import from_pyg, to_pyg
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
        ("y", None, "missing"),
        ("edge_index", None, "missing"),
        ("x", [[1.0], [2.0]], "must be a tensor or an array, found list"),
        ("x", torch.tensor([[1.0], [torch.nan], [2.0], [3.0]]), "row 1 "),
        ("x", torch.tensor([[1.0], [2.0], [3.0], [1e300]], dtype=torch.float64), "row 3 "),
        ("x", torch.ones(4), "[N, F]"),
        ("y", torch.tensor([0, 1, 2]), "x has 4 rows"),
        ("edge_index", torch.tensor([[0, 4], [1, 2]]), "names node 4"),
        ("train_mask", torch.ones(4, 10, dtype=torch.bool), "10 splits; take one"),
        ("val_mask", torch.ones(3, dtype=torch.bool), "4 nodes, found bool [3]"),
        ("test_mask", torch.tensor([0, 1, 3]), "found int64 [3]"),
        ("val_mask", torch.tensor([True, False, False, False]), "node 0 is in another mask"),
        ("assignment", torch.tensor([0, 1, -1, 1]), "row 2 is -1"),
    ],
)
def test_refuses(attribute: str, value: Any, message: str, square: Square) -> None:
    with refused(f"data.{attribute}", says=message):
        from_pyg(Data(**square(**{attribute: value})))


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (HeteroData(), "data", "found HeteroData; "),
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
    assert graph.graph_of.tolist() == [0, 0, 1, 2, 2, 2]
    assert np.array_equal(graph.x, [[1, 0], [0, 1], [5, 6], [1, 1], [2, 2], [3, 3]])
    out = to_pyg(graph)
    assert (out.batch.tolist(), out.y.tolist()) == ([0, 0, 1, 2, 2, 2], [2, 0, 1])


def small_shard(label: list[int], **own: Any) -> Shard:
    """Nodes 4, 5 and 9, with an edge between the first two."""
    return Shard(
        client=0,
        node=np.array([4, 5, 9]),
        label=np.array(label, dtype=np.int32),
        indptr=np.array([0, 1, 2, 2], dtype=np.int32),
        indices=np.array([1, 0], dtype=np.int32),
        x=np.ones((3, 2), dtype=np.float32),
        **own,
    )


def test_a_client_of_many_graphs_has_masks_of_graphs() -> None:
    shard = small_shard([1, 1, 0], graph=np.array([3, 3, 7]))
    parts = (np.array(rows, dtype=np.int32) for rows in ([1], [], [0]))
    out = to_pyg(shard, Split(*parts))
    assert (out.batch.tolist(), out.y.tolist(), out.n_id.tolist()) == ([0, 0, 1], [1, 0], [4, 5, 9])
    assert (out.train_mask.tolist(), out.test_mask.tolist()) == ([False, True], [True, False])


def test_a_client_of_pairs_has_labels_and_masks_of_pairs() -> None:
    columns = [1, 2, 2], [1, 0, 0], [1, 3, 2]
    partner, label, part = (np.array(column, dtype=np.int8) for column in columns)
    pairs = Pairs(np.array([0, 2, 3, 3], dtype=np.int32), partner.astype(np.int32), label, part)
    shard = small_shard([-1] * 3, pairs=pairs)
    out = to_pyg(shard, Split(*(np.array([row], dtype=np.int32) for row in (0, 2, 1))))
    assert out.edge_index.tolist() == [[0, 1], [1, 0]]
    assert (out.edge_label_index.tolist(), out.edge_label.tolist()) == ([[0, 0, 1], [1, 2, 2]], [1, 0, 0])
    assert (out.n_id.tolist(), out.y, out.num_nodes) == ([4, 5, 9], None, 3)
    masks = [out.train_mask.tolist(), out.val_mask.tolist(), out.test_mask.tolist()]
    assert masks == [[True, False, False], [False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        *((key, None, "missing") for key in ("x", "y", "edge_index")),
        ("x", torch.ones(1, 3), "found [1, 3]"),
        ("x", torch.ones(0, 2), "found [0, 2]"),
        ("x", torch.ones(2), "found [2]"),
        ("y", torch.tensor([0, 1]), "must be the one label of the graph, found [2]"),
        ("y", "a", "found str"),
        ("edge_index", torch.tensor([[0], [1]]), "names a node outside 0 to 0"),
        ("edge_index", torch.tensor([[-1], [0]]), "names a node outside 0 to 0"),
        ("edge_index", torch.ones(2, 1), "must be integers"),
        ("edge_index", torch.zeros(1, 2, dtype=torch.int64), "shape [2, E]"),
    ],
)
def test_a_wrong_graph_among_many_is_named(key: str, value: Any, says: str) -> None:
    graphs = three()
    setattr(graphs[1], key, value)
    with refused(f"data[1].{key}", says=says):
        from_pyg(graphs)
