"""HGT and HAN beside the layers of PyG, on a graph of three kinds of nodes: values, gradients, paths, bad input."""

from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from torch import Tensor
from torch_geometric.nn import HANConv, HGTConv

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, receptive_field, standalone
from shoal.storage.datasets.sources.kinds import NodeKind, join_kinds
from shoal.storage.graph.edges import edge_matrix
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.rows import CsrRows
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

HIDDEN, HEADS, CLASSES = 8, 2, 3
COUNTS = {"paper": 6, "author": 4, "venue": 2}
BY = np.array([[0, 0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 2, 3, 3]])
AT = np.array([[0, 1, 2, 3], [0, 0, 1, 1]])
CITES = np.array([[0, 1, 5], [1, 2, 0]])
PATHS = [["paper", "author", "paper"], ["paper", "venue", "paper"], ["paper", "paper"]]
TRAIN = [4, 1]


def features_of() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "paper": rng.standard_normal((6, 3)).astype(np.float32),
        "author": np.eye(4, dtype=np.float32),
        "venue": rng.standard_normal((2, 2)).astype(np.float32),
    }


def relations() -> dict[tuple[str, str, str], np.ndarray]:
    """Edges of every relation as `join_kinds` makes them: both ways, and of citations all ways alike."""
    both = np.concatenate([CITES, CITES[::-1]], axis=1)
    return {
        ("paper", "by", "author"): BY,
        ("author", "by, the other way", "paper"): BY[::-1].copy(),
        ("paper", "at", "venue"): AT,
        ("venue", "at, the other way", "paper"): AT[::-1].copy(),
        ("paper", "cites", "paper"): both,
    }


def kinds_of_graph() -> tuple[Any, Kinds]:
    x = features_of()
    kinds = {name: NodeKind(count, None if name == "author" else x[name]) for name, count in COUNTS.items()}
    given = {("paper", "by", "author"): BY, ("paper", "at", "venue"): AT, ("paper", "cites", "paper"): CITES}
    arrays = join_kinds(kinds, given, dict.fromkeys(given, "edges"))
    nodes = sum(COUNTS.values())
    arrays["y"] = np.arange(nodes) % CLASSES
    graph = graph_from_arrays("kinds", arrays, dict.fromkeys(arrays, "kinds"))
    return graph, Kinds.of(graph.vocabulary, graph.edge_kinds)


def view_of(graph: Any, dense: bool = True) -> View:
    x = graph.x.toarray() if dense else CsrRows(graph.x.indptr, graph.x.indices, graph.x.data, graph.x.shape[1])
    csr = graph.indptr.astype(np.int32), graph.indices
    shard = Shard(0, np.arange(graph.nodes), graph.y.astype(np.int32), *csr, x, edge_attr=graph.edge_attr)
    rows = (np.array(part, dtype=np.int32) for part in (TRAIN, [0], [2]))
    return View("kinds", shard, Split(*rows), [], CLASSES, Cache(2**24))


def make(name: str, view: View, kinds: Kinds | None, dropout: float = 0.0, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"hidden": HIDDEN, "heads": HEADS, **options}
    return build(name, view.features, CLASSES, 0, dropout, options, edge_features=len(relations()), kinds=kinds)


def apart(x: Tensor) -> dict[str, Tensor]:
    """Splits rows of all nodes by their kinds."""
    return dict(zip(COUNTS, x.split(list(COUNTS.values()))))


def edges_of_pyg() -> dict[tuple[str, str, str], Tensor]:
    return {relation: torch.from_numpy(ends) for relation, ends in relations().items()}


def load_hgt(theirs: HGTConv, ours: Any) -> None:
    count = len(relations())
    for number, kind in enumerate(COUNTS):
        theirs.kqv_lin.lins[kind].load_state_dict(ours.lin_kqv[number].state_dict())
        theirs.out_lin.lins[kind].load_state_dict(ours.lin_out[number].state_dict())
        theirs.skip[kind].data = ours.skip[number : number + 1].detach().clone()
    for number, relation in enumerate(relations()):
        theirs.p_rel["__".join(relation)].data = ours.prior[number : number + 1].detach().clone()
        for head in range(HEADS):
            place = head * count + number
            theirs.k_rel.weight.data[place] = ours.key_weight[number, head].detach()
            theirs.v_rel.weight.data[place] = ours.value_weight[number, head].detach()


def redraw(model: Any) -> None:
    """Draws parameters that start at one."""
    for parameter in model.parameters():
        parameter.data.uniform_(-0.8, 0.8)


@pytest.mark.parametrize("dense", [True, False])
def test_layers_of_hgt_are_those_of_pyg(dense: bool) -> None:
    graph, kinds = kinds_of_graph()
    view = view_of(graph, dense)
    model = make("hgt", view, kinds).eval()
    redraw(model)
    layers = [HGTConv(HIDDEN, HIDDEN, (list(COUNTS), list(relations())), HEADS) for _ in range(2)]
    for theirs, ours in zip(layers, model.convs):
        load_hgt(theirs, ours)
    x = torch.from_numpy(graph.x.toarray())
    by_kind = apart(torch.relu(x @ model.lift.weight.detach().t() + model.lift.bias.detach()))
    for layer in layers:
        by_kind = layer(by_kind, edges_of_pyg())
    expected = torch.cat([by_kind[kind] for kind in COUNTS])
    found = model(all_nodes(view, "edges", 2)).embedding_NH
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for embedding in (found, expected):
        (embedding * torch.linspace(-1, 1, HIDDEN)).square().sum().backward()
    theirs, ours = layers[0], model.convs[0]
    for number, kind in enumerate(COUNTS):
        close(ours.lin_kqv[number].weight.grad, theirs.kqv_lin.lins[kind].weight.grad)
        close(ours.lin_out[number].bias.grad, theirs.out_lin.lins[kind].bias.grad)
        close(ours.skip.grad[number], theirs.skip[kind].grad[0])
    for number, relation in enumerate(relations()):
        close(ours.prior.grad[number], theirs.p_rel["__".join(relation)].grad[0])
        for head in range(HEADS):
            place = head * len(relations()) + number
            close(ours.key_weight.grad[number, head], theirs.k_rel.weight.grad[place])
            close(ours.value_weight.grad[number, head], theirs.v_rel.weight.grad[place])


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def paths_by_hand() -> dict[tuple[str, str, str], Tensor]:
    """Who reaches whom along `PATHS`, by products of dense matrices."""
    nodes = [COUNTS["paper"], COUNTS["author"], COUNTS["venue"]]
    by, at, cites = np.zeros((nodes[0], nodes[1])), np.zeros((nodes[0], nodes[2])), np.zeros((nodes[0], nodes[0]))
    by[BY[0], BY[1]], at[AT[0], AT[1]], cites[CITES[0], CITES[1]] = 1, 1, 1
    found = {"author": by @ by.T, "venue": at @ at.T, "none": cites + cites.T}
    return {("paper", name, "paper"): torch.from_numpy(np.stack(matrix.T.nonzero())) for name, matrix in found.items()}


def test_han_is_pygs_along_paths() -> None:
    graph, kinds = kinds_of_graph()
    view = view_of(graph)
    model = make("han", view, kinds, metapaths=PATHS, layers=2).eval()
    redraw(model)
    edges = paths_by_hand()
    x = torch.from_numpy(graph.x.toarray())[: COUNTS["paper"]]
    layers = [HANConv(width, HIDDEN, (["paper"], list(edges)), HEADS) for width in (view.features, HIDDEN)]
    expected = x
    for theirs, ours in zip(layers, model.convs):
        theirs.proj["paper"].load_state_dict(ours.lin.state_dict())
        theirs.k_lin.load_state_dict(ours.k_lin.state_dict())
        theirs.q.data = ours.q.detach().clone()
        for number, path in enumerate(edges):
            theirs.lin_src["__".join(path)].data = ours.att_src[number].detach().clone()
            theirs.lin_dst["__".join(path)].data = ours.att_dst[number].detach().clone()
        expected = theirs({"paper": expected}, edges)["paper"]
    found = model(all_nodes(view, "edges", 2)).embedding_NH[: COUNTS["paper"]]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    for embedding in (found, expected):
        (embedding * torch.linspace(-1, 1, HIDDEN)).square().sum().backward()
    for theirs, ours in zip(layers, model.convs):
        close(ours.q.grad, theirs.q.grad)
        close(ours.k_lin.weight.grad, theirs.k_lin.weight.grad)
        close(ours.lin.weight.grad, theirs.proj["paper"].weight.grad)
        for number, path in enumerate(edges):
            close(ours.att_src[number].grad, theirs.lin_src["__".join(path)].grad)
            close(ours.att_dst[number].grad, theirs.lin_dst["__".join(path)].grad)


@pytest.mark.parametrize("name", ["hgt", "han"])
def test_drawn_models_answer_for_nodes_of_no_kind(name: str) -> None:
    graph, kinds = kinds_of_graph()
    model = make(name, view_of(graph), kinds, **({"metapaths": PATHS} if name == "han" else {})).eval()
    # No column of kinds is set, and a node alone has itself as neighbour, by no relation.
    x = torch.zeros(2, graph.features)
    x[1, 0] = 1
    out = model(standalone(x, "edges", model.depth)).logits_NC
    assert out.isfinite().all()
    out.sum().backward()


def test_rows_of_a_part_are_those_of_all() -> None:
    graph, kinds = kinds_of_graph()
    view = view_of(graph)
    model = make("hgt", view, kinds).eval()
    redraw(model)
    whole = model(all_nodes(view, "edges", 2)._replace(rows=view.train)).logits_NC
    torch.testing.assert_close(model(receptive_field(view, "edges", 2)).logits_NC, whole, rtol=1e-5, atol=1e-6)
    assert not make("han", view, kinds, metapaths=PATHS).row_by_row


def test_relations_are_the_paths_of_nodes_of_one_kind() -> None:
    graph, _ = kinds_of_graph()
    view = view_of(graph)
    model = make("han", view, Kinds((), (), 0)).eval()
    redraw(model)
    edges = {
        ("node", str(number), "node"): torch.from_numpy(
            np.stack([view.csr[1].astype(np.int64), np.repeat(np.arange(view.nodes), np.diff(view.csr[0]))])
        )[:, torch.from_numpy(graph.edge_attr[:, number] == 1)]
        for number in range(len(relations()))
    }
    theirs, (ours,) = HANConv(view.features, HIDDEN, (["node"], list(edges)), HEADS), model.convs
    theirs.proj["node"].load_state_dict(ours.lin.state_dict())
    theirs.k_lin.load_state_dict(ours.k_lin.state_dict())
    theirs.q.data = ours.q.detach().clone()
    for number, path in enumerate(edges):
        theirs.lin_src["__".join(path)].data = ours.att_src[number].detach().clone()
        theirs.lin_dst["__".join(path)].data = ours.att_dst[number].detach().clone()
    expected = theirs({"node": torch.from_numpy(graph.x.toarray())}, edges)["node"]
    torch.testing.assert_close(model(all_nodes(view, "edges", 1)).embedding_NH, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("metapaths", "says"),
    [
        (None, "han reads paths of kinds of nodes (paper, author, venue); name them, such as [[paper, author, paper]]"),
        ([], "must be paths of two kinds of nodes or more"),
        ([["paper"]], "must be paths of two kinds of nodes or more"),
        ([["paper", "author"]], "all paths start and end at one kind, that with labels, found author, paper"),
        ([["paper", "book", "paper"]], "there is no kind of nodes 'book'; choose of paper, author, venue"),
        ("paper", "must be"),
    ],
)
def test_wrong_paths_are_refused(metapaths: Any, says: str) -> None:
    graph, kinds = kinds_of_graph()
    with refused("model.metapaths", says=says):
        make("han", view_of(graph), kinds, metapaths=metapaths)
    if metapaths is not None and says.startswith("there"):
        # Before the graph is known, names are taken as they are.
        make("han", view_of(graph), None, metapaths=metapaths)


def test_what_models_of_kinds_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, kinds = kinds_of_graph()
    view = view_of(graph)
    for name in ("hgt", "han"):
        with refused("model.head", says=f"{name} has a linear classifier, found conv"):
            make(name, view, kinds, head="conv", metapaths=PATHS) if name == "han" else make(
                name, view, kinds, head="conv"
            )
        with refused("model.heads", says="must divide model.hidden"):
            build(name, 4, 2, 0, 0.0, {"heads": 3}, edge_features=1)
        with refused("model.name", says=f"{name} reads features of edges, and these edges have none"):
            build(name, 4, 2, 0, 0.0, {})
    with refused("model.name", says="han weighs meta-paths by means over all nodes"):
        build("han", 4, 2, 0, 0.0, {}, task="graph", edge_features=1)
    with refused("model.fanouts"):
        make("han", view, kinds, metapaths=PATHS, fanouts=[2])
    numbers = EdgeMatrix(all_nodes(view, "edges", 1).operators[0].csr, torch.full((graph.entries, 2), 0.5))
    with refused("model.name", says="hgt reads kinds of edges, features that are 0 or 1, found others"):
        numbers.by_relation(2)
    monkeypatch.setattr(edge_matrix, "MOST_OF_PATH", 3)
    with refused("model.metapaths", says="a path joins up to"):
        make("han", view_of(graph), kinds, metapaths=PATHS)(all_nodes(view_of(graph), "edges", 1))
