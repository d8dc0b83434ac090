"""Models that read features of edges beside the layers of PyG: values, gradients, batches of graphs, drawn edges."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView
from torch import nn
from torch_geometric.nn import GATConv, GINEConv, RGCNConv, TransformerConv

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, receptive_field, sample_neighbourhood
from shoal.algorithms.models.items.client_graphs import ClientGraphs
from shoal.algorithms.models.names import NEED_EDGES, READ_EDGES, describe_edge_features
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.cache import writes
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

FEATURES, CLASSES, HIDDEN, OF_EDGES = 5, 3, 8, 2
MODELS = sorted({*READ_EDGES, *NEED_EDGES})
# These read features that are 0 or 1.
OF_KINDS = ("han", "hgt", "rgcn")
every_model = pytest.mark.parametrize("name", MODELS)
# Two rings that are joined by a path, and a node alone; every edge has other features each way.
EDGES = [*((i, (i + 1) % 5) for i in range(5)), (5, 6), (6, 7), (5, 7), (4, 8), (8, 5)]
NODES = 10


def attr_of(entries: int, kinds: bool = False) -> np.ndarray:
    rng = np.random.default_rng(3)
    if kinds:
        # An entry may be of one kind, of both, or of none.
        return rng.integers(2, size=(entries, OF_EDGES)).astype(np.float32)
    return rng.standard_normal((entries, OF_EDGES)).astype(np.float32)


def with_features(make_view: MakeView, kinds: bool = False, other: bool = False) -> View:
    x = np.random.default_rng(1).standard_normal((NODES, FEATURES)).astype(np.float32)
    plain = make_view(NODES, EDGES, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [3, 0, 9, 7], CLASSES, x)
    attr = attr_of(plain.entries, kinds)
    attr = 1 - attr if other else attr
    shard = Shard(0, np.arange(NODES), np.zeros(NODES, np.int32), *plain.csr, x, edge_attr=attr)
    rows = (np.array(part, dtype=np.int32) for part in ([3, 0, 9, 7], [], [1, 2]))
    return View("edges", shard, Split(*rows), [], CLASSES, Cache(2**24))


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    return build(name, FEATURES, CLASSES, 0, 0.0, {"hidden": HIDDEN, **options}, edge_features=OF_EDGES)


def pyg_edges(view: View) -> tuple[torch.Tensor, torch.Tensor]:
    """Sender and receiver of every entry, and its features, as PyG has them."""
    indptr, indices = view.csr
    receiver = np.repeat(np.arange(view.nodes), np.diff(indptr))
    assert view.edge_attr is not None
    return torch.from_numpy(np.stack([indices.astype(np.int64), receiver])), torch.from_numpy(view.edge_attr.copy())


def pyg_layers(name: str) -> list[nn.Module]:
    if name == "gine":
        mlps = [nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)) for _ in range(2)]
        return [GINEConv(mlp, train_eps=True, edge_dim=OF_EDGES) for mlp in mlps]
    if name == "gat":
        first = GATConv(FEATURES, HIDDEN // 2, 2, edge_dim=OF_EDGES, fill_value="mean")
        return [first, GATConv(HIDDEN, HIDDEN, 1, edge_dim=OF_EDGES, fill_value="mean")]
    if name == "transformer":
        return [
            TransformerConv(width, HIDDEN // 2, 2, edge_dim=OF_EDGES, root_weight=True) for width in (FEATURES, HIDDEN)
        ]
    return [RGCNConv(width, HIDDEN, OF_EDGES, aggr="mean") for width in (FEATURES, HIDDEN)]


def load_layer(name: str, theirs: Any, ours: Any) -> None:
    """Gives a layer of PyG the parameters of ours."""
    if name == "gine":
        theirs.nn.load_state_dict(ours.gin.nn.state_dict())
        theirs.eps.data = ours.gin.eps.detach().clone()
        theirs.lin.load_state_dict(ours.lin.state_dict())
    elif name == "gat":
        theirs.load_state_dict({**ours.gat.state_dict(), **ours.edges.state_dict()})
    elif name == "transformer":
        theirs.load_state_dict({**ours.of_nodes.state_dict(), "lin_edge.weight": ours.lin_edge.weight})
    else:
        theirs.weight.data = torch.stack([linear.weight.t() for linear in ours.kinds.linears]).detach().clone()
        theirs.root.data, theirs.bias.data = ours.root.weight.t().detach().clone(), ours.bias.detach().clone()


def by_pyg(name: str, layers: list[nn.Module], x: torch.Tensor, view: View) -> torch.Tensor:
    edge_index, attr_ED = pyg_edges(view)
    if name == "rgcn":
        # An entry of several kinds is one edge of each.
        entry, kind = attr_ED.nonzero().t()
        edge_index, attr_ED = edge_index[:, entry], kind
    first, second = layers
    slope = 0.01 if name == "transformer" else 0.0
    return second(F.leaky_relu(first(x, edge_index, attr_ED), slope), edge_index, attr_ED)


# `test_models_of_kinds.py` has the others.
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("han", "hgt")])
def test_layers_are_those_of_pyg(name: str, make_view: MakeView) -> None:
    view = with_features(make_view, name == "rgcn")
    options = {"gat": {"heads": 2}, "transformer": {"heads": 2}, "gine": {"norm": "none"}}.get(name, {})
    model, theirs = make(name, **options).eval(), pyg_layers(name)
    for layer, ours in zip(theirs, model.convs):
        load_layer(name, layer, ours)
    x = view.whole(0)
    start = model.lift(x).detach() if name == "gine" else x
    expected = by_pyg(name, theirs, start, view)
    found = model(all_nodes(view, model.operator, model.depth)).embedding_NH
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for embedding in (found, expected):
        (embedding * torch.linspace(-1, 1, HIDDEN)).square().sum().backward()
    for gradient, expected_gradient in gradients_of(name, theirs[0], model.convs[0]):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


def gradients_of(name: str, theirs: Any, ours: Any) -> list[tuple[Any, Any]]:
    """Gradients of what a layer has for edges, ours and those of PyG."""
    if name == "gine":
        return [(ours.lin.weight.grad, theirs.lin.weight.grad), (ours.gin.eps.grad, theirs.eps.grad)]
    if name == "gat":
        return [
            (ours.edges.get_parameter(key).grad, theirs.get_parameter(key).grad)
            for key in ("lin_edge.weight", "att_edge")
        ]
    if name == "transformer":
        return [(ours.lin_edge.weight.grad, theirs.lin_edge.weight.grad)]
    return [(linear.weight.grad, theirs.weight.grad[kind].t()) for kind, linear in enumerate(ours.kinds.linears)]


@pytest.mark.parametrize(
    ("name", "head"),
    [*((name, None) for name in MODELS if name != "han"), *((name, "conv") for name in ("gat", "gine", "rgcn"))],
)
def test_parts_of_the_graph_answer_as_the_whole(name: str, head: str | None, make_view: MakeView) -> None:
    view = with_features(make_view, name in OF_KINDS)
    model = make(name, **({} if head is None else {"head": head})).eval()
    whole = model(all_nodes(view, model.operator, model.depth)._replace(rows=view.train)).logits_NC
    field = model(receptive_field(view, model.operator, model.depth)).logits_NC
    torch.testing.assert_close(field, whole, rtol=1e-5, atol=1e-6)
    if head is None:
        rng = np.random.default_rng(0)
        drawn = model(sample_neighbourhood(view, model.operator, [-1, -1], view.train, rng)).logits_NC
        torch.testing.assert_close(drawn, whole, rtol=1e-5, atol=1e-6)
    # Other features of edges give other answers.
    changed = with_features(make_view, name in OF_KINDS, other=True)
    other = model(all_nodes(changed, model.operator, model.depth)._replace(rows=view.train)).logits_NC
    assert not torch.allclose(other[:2], whole[:2], atol=1e-4)
    # Node 9 has no edge.
    torch.testing.assert_close(other[2], whole[2])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "han"])
def test_a_batch_of_graphs_is_each_of_them(name: str) -> None:
    # Graphs of 3, 1, 2 and 3 nodes.
    starts, edges = [0, 3, 4, 6, 9], [(0, 1), (1, 2), (4, 5), (6, 7), (7, 8), (6, 8)]
    both = np.array([*edges, *((b, a) for a, b in edges)])
    order = np.lexsort((both[:, 1], both[:, 0]))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0], minlength=9))]).astype(np.int32)
    x = np.random.default_rng(0).standard_normal((9, FEATURES)).astype(np.float32)
    graph = np.repeat(np.arange(4), np.diff(starts))
    attr = attr_of(len(both), name in OF_KINDS)
    shard = Shard(
        0, np.arange(9), np.zeros(9, np.int32), indptr, both[order, 1].astype(np.int32), x, graph, edge_attr=attr
    )
    parts = (np.array(part, dtype=np.int32) for part in ([2, 0], [1], [3]))
    view = View("graphs", shard, Split(*parts), [], CLASSES, Cache(2**24))
    torch.manual_seed(0)
    model = build(name, FEATURES, CLASSES, 0, 0.0, {"hidden": HIDDEN}, task="graph", edge_features=OF_EDGES).eval()
    assert view.graph_ptr is not None
    graphs = ClientGraphs(view, view.graph_ptr, (0,), model.backbone)
    whole = model(graphs.all()).logits_NC
    torch.testing.assert_close(model(graphs.some(torch.tensor([3, 0, 1]))).logits_NC, whole[[3, 0, 1]])
    torch.testing.assert_close(model(graphs.part("train")).logits_NC, whole[[2, 0]])
    # Graphs of one node have no edges, whatever features these would have.
    alone = model(graphs.standalone(view.whole(0)[3:4])).logits_NC
    assert alone.isfinite().all()


def test_loops_have_the_mean_of_the_edges_around_them() -> None:
    csr = SparseMatrix.of(
        np.array([0, 2, 3, 3], np.int32), np.array([1, 2, 0], np.int32), np.ones(3, np.float32), 3
    ).csr
    looped = EdgeMatrix(csr, torch.tensor([[1.0, 0.0], [3.0, 4.0], [5.0, 6.0]])).with_loops
    starts, columns, _ = looped.parts()
    assert (starts.tolist(), columns.tolist()) == ([0, 3, 5, 6], [0, 1, 2, 1, 0, 2])
    assert looped.features(2).tolist() == [[2, 2], [1, 0], [3, 4], [5, 6], [5, 6], [0, 0]]


def test_who_reads_features_of_edges_is_said() -> None:
    assert describe_edge_features(0, ["gin"]) == ""
    assert describe_edge_features(1, ["gine"]) == "1 feature of edges, read by gine"
    says = "13 features of edges, not read by gcn; gat, gine, han, hgt, rgcn, transformer read them"
    assert describe_edge_features(13, ["gcn", "gine"]) == says


@every_model
def test_a_client_without_edges_or_features_of_any_answers(name: str, make_view: MakeView) -> None:
    for nodes in (0, 2):
        x = np.ones((nodes, FEATURES), np.float32)
        view = make_view(nodes, [], [0] * nodes, [], CLASSES, x)
        out = make(name)(all_nodes(view, "edges", 2)).logits_NC
        assert (tuple(out.shape), bool(out.isfinite().all())) == ((nodes, CLASSES), True)
        out.sum().backward()


def test_kinds_share_bases_as_pyg_has_them(make_view: MakeView) -> None:
    view = with_features(make_view, kinds=True)
    model = make("rgcn", bases=3).eval()
    assert len(list(model.convs[0].parameters())) == 1 + 3 + 1 + 1
    layers = [RGCNConv(width, HIDDEN, OF_EDGES, num_bases=3, aggr="mean") for width in (FEATURES, HIDDEN)]
    for theirs, ours in zip(layers, model.convs):
        theirs.weight.data = torch.stack([linear.weight.t() for linear in ours.kinds.linears]).detach().clone()
        theirs.comp.data = ours.kinds.shares.detach().clone()
        theirs.root.data, theirs.bias.data = ours.root.weight.t().detach().clone(), ours.bias.detach().clone()
    expected = by_pyg("rgcn", layers, view.whole(0), view)
    found = model(all_nodes(view, model.operator, model.depth)).embedding_NH
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for embedding in (found, expected):
        embedding.square().sum().backward()
    torch.testing.assert_close(model.convs[0].kinds.shares.grad, layers[0].comp.grad, rtol=1e-4, atol=1e-5)


def test_writes_to_features_of_edges_are_seen(make_view: MakeView) -> None:
    view = with_features(make_view)
    matrix = all_nodes(view, "edges", 1).operators[0]
    before = writes(matrix)
    assert isinstance(matrix, EdgeMatrix)
    matrix.features(OF_EDGES).mul_(2)
    assert writes(matrix) != before
