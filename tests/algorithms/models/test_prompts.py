"""Prompts against loops over graphs, nodes and edges by their published formulas, and models with them against PyG."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView
from support.made_models import graphs_of
from support.plain_dropout import dropped
from support.sparse_rows import sparse
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, TransformerConv

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import GraphBatch
from shoal.algorithms.models.items.plain_graphs import PlainGraphs, batch_of, pairs_of
from shoal.algorithms.models.layers.readout import ceil_of, floor_of
from shoal.algorithms.models.names import PROMPTS
from shoal.algorithms.models.prompts.prompts import Prompted

FEATURES, CLASSES, HIDDEN = 5, 3, 8
Pairs = set[tuple[int, int]]


def make(prompt: object, name: str = "gcn", dropout: float = 0.0, **options: object) -> Prompted:
    torch.manual_seed(0)
    model = build(name, FEATURES, CLASSES, 0, dropout, {"hidden": HIDDEN, "prompt": prompt, **options}, task="graph")
    assert isinstance(model, Prompted)
    return model


def random_graphs(seed: int, sizes: tuple[int, ...] = (1, 4, 12, 7, 2)) -> list[Data]:
    """The second has no edges; features are of three values, so that nodes and edges tie."""
    rng = np.random.default_rng(seed)
    graphs = []
    for number, n in enumerate(sizes):
        all_pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
        pairs = [] if number == 1 else [pair for pair in all_pairs if rng.random() < 0.6]
        both = [*pairs, *[(b, a) for a, b in pairs]]
        index = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).t()
        x = torch.from_numpy(rng.integers(-1, 2, (n, FEATURES)).astype(np.float32))
        if seed % 2:
            x += 0.3 * torch.from_numpy(rng.standard_normal((n, FEATURES)).astype(np.float32))
        graphs.append(Data(x=x, edge_index=index, y=torch.tensor([number % CLASSES])))
    return graphs


def parts(graphs: PlainGraphs) -> list[tuple[Tensor, Pairs, Pairs]]:
    """Features, pairs and arrows of every graph, with rows within it."""
    found = []
    arrows = torch.zeros(2, 0) if graphs.arrows_2E is None else graphs.arrows_2E
    for start, stop in zip(graphs.first[:-1].tolist(), graphs.first[1:].tolist()):
        of_graph = []
        for edges in (graphs.pairs_2E, arrows):
            inside = [(a - start, b - start) for a, b in edges.t().tolist() if start <= a < stop]
            assert all(0 <= a < stop - start and 0 <= b < stop - start for a, b in inside)
            of_graph.append({(int(a), int(b)) for a, b in inside})
            assert len(of_graph[-1]) == len(inside)
        found.append((graphs.x_NF[start:stop], *of_graph))
    assert sum(len(pairs) for _, pairs, _ in found) == graphs.pairs_2E.shape[1]
    assert graphs.first[0] == 0
    assert graphs.first[-1] == len(graphs.x_NF)
    return found


def pairs_in(graph: Data) -> list[tuple[int, int]]:
    return sorted((a, b) for a, b in graph.edge_index.t().tolist() if a < b)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def vpg_by_loops(
    graph: Data, p: Tensor, nodes: float, edges: float, rule: str, candidates: Tensor | None, joined: float,
    join: str = "above", shares: str = "kept",
) -> tuple[Tensor, Pairs]:  # fmt: skip
    x, pairs = list(graph.x), pairs_in(graph)
    n, m = len(x), len(pairs)
    for c in [] if candidates is None else range(len(candidates)):
        x.append(candidates[c])
        pairs += [
            (i, len(x) - 1)
            for i in range(graph.num_nodes)
            if (sigmoid(float(candidates[c].double() @ graph.x[i].double())) >= joined) == (join == "above")
        ]
    w = [(row * p).sum() / p.norm() for row in x]
    height = [float(number.detach()) for number in w]
    count = math.ceil(nodes * (n if shares == "original" else len(x)) - 1e-9)
    kept = sorted(sorted(range(len(x)), key=lambda i: (-height[i], i))[:count])
    left = pairs if shares == "original" else [(a, b) for a, b in pairs if a in kept and b in kept]
    sign = -1 if rule == "high" else 1
    apart = [sign * float((w[a] - w[b]).abs()) for a, b in left]
    count = math.floor(edges * (m if shares == "original" else len(left)) + 1e-9)
    chosen = [left[e] for e in sorted(range(len(left)), key=lambda e: (apart[e], e))[:count]]
    return (
        torch.stack([x[i] * torch.tanh(w[i]) for i in kept]),
        {(kept.index(a), kept.index(b)) for a, b in chosen if a in kept and b in kept},
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nodes": 1.0, "edges": 0.5},
        {"nodes": 0.7, "edges": 0.3, "rule": "low"},
        {"nodes": 0.01, "edges": 1.0},
        {"candidates": 3},
        {"candidates": 2, "joined": 0.4, "nodes": 0.9, "rule": "low"},
        {"candidates": 3, "learnt": False, "seed": 4, "join": "below", "nodes": 0.8},
        {"shares": "original", "nodes": 0.8, "edges": 0.6},
        {"candidates": 4, "learnt": False, "join": "below", "shares": "original"},
    ],
)
def test_vpg_equals_plain_loops(graph_view: MakeView, options: dict[str, Any], seed: int) -> None:
    """What is kept, its features, and gradients by them, in a batch and graph by graph."""
    graphs = random_graphs(seed)
    model = make({"name": "vpg", **options})
    view = graphs_of(graph_view(graphs), model)
    loop_options = {"nodes": 0.5, "edges": 0.9, "rule": "high", "joined": 0.5, **options}
    for name in ("candidates", "learnt", "seed"):
        loop_options.pop(name, None)
    prompt = model.prompt
    found = model.prompt(view.all())
    expected = [vpg_by_loops(g, prompt.direction, candidates=prompt.candidates, **loop_options) for g in graphs]
    for (x, pairs, _), (wanted_x, wanted_pairs) in zip(parts(found), expected, strict=True):
        torch.testing.assert_close(x, wanted_x)
        assert pairs == wanted_pairs
    assert found.arrows_2E is None
    assert (found.pairs_2E.dtype, found.first.dtype) == (torch.int32, torch.int64)
    wanted = torch.randn_like(found.x_NF)
    parameters = list(prompt.parameters())
    gradients = torch.autograd.grad((found.x_NF * wanted).sum(), parameters, retain_graph=True)
    by_loops = torch.autograd.grad((torch.cat([x for x, _ in expected]) * wanted).sum(), parameters)
    for ours, other in zip(gradients, by_loops):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)
    for number in range(len(graphs)):
        alone = prompt(view.some(torch.tensor([number])))
        x, pairs, _ = parts(found)[number]
        assert torch.equal(alone.x_NF, x)
        assert {tuple(pair) for pair in alone.pairs_2E.t().tolist()} == pairs


def test_ties_go_to_the_first_rows(graph_view: MakeView) -> None:
    ring = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 0, 1, 2, 3, 4, 5]])
    graphs = [Data(x=torch.ones(6, FEATURES), edge_index=ring, y=torch.tensor([0]))] * 2
    model = make({"name": "vpg", "nodes": 0.5, "edges": 0.5})
    for _, pairs, _ in parts(model.prompt(graphs_of(graph_view(graphs), model).all())):
        assert pairs == {(0, 1)}


def test_shares_are_whole_numbers_but_for_rounding() -> None:
    """0.07 times 100 is more than 7 in floating point, 0.29 times 100 less than 29."""
    assert ceil_of(0.07, torch.tensor([100, 101, 1])).tolist() == [7, 8, 1]
    assert floor_of(0.29, torch.tensor([100, 99, 1])).tolist() == [29, 28, 0]


def all_in_one_by_loops(graph: Data, tokens: Tensor, inner: float, cross: float) -> tuple[Tensor, Pairs, Pairs]:
    n, k = graph.num_nodes, len(tokens)
    pairs = set(pairs_in(graph))
    pairs |= {(n + i, n + j) for i in range(k) for j in range(i + 1, k) if sigmoid(tokens[i] @ tokens[j]) >= inner}
    arrows = {(n + i, j) for i in range(k) for j in range(n) if sigmoid(tokens[i] @ graph.x[j]) >= cross}
    return torch.cat([graph.x, tokens]), pairs, arrows


@pytest.mark.parametrize(("inner", "cross"), [(0.3, 0.1), (0.6, 0.5)])
def test_all_in_one_equals_plain_loops(graph_view: MakeView, inner: float, cross: float) -> None:
    graphs = random_graphs(1)
    model = make({"name": "all_in_one", "tokens": 4, "inner": inner, "cross": cross})
    with torch.no_grad():
        tokens = model.prompt.tokens.mul_(2)
    found = model.prompt(graphs_of(graph_view(graphs), model).all())
    for (x, pairs, arrows), graph in zip(parts(found), graphs, strict=True):
        wanted_x, wanted_pairs, wanted_arrows = all_in_one_by_loops(graph, tokens, inner, cross)
        torch.testing.assert_close(x, wanted_x)
        assert (pairs, arrows) == (wanted_pairs, wanted_arrows)
    assert 0 < found.arrows_2E.shape[1] < 4 * sum(g.num_nodes for g in graphs)


def test_what_is_added_to_features(graph_view: MakeView) -> None:
    graphs = random_graphs(1)
    x = torch.cat([g.x for g in graphs])
    gpf, plus, plain = make("gpf"), make({"name": "gpf_plus", "vectors": 3}), make("none")
    a, b = plus.prompt.scored, plus.prompt.added
    rows = []
    for row in x:
        e = torch.stack([(a[j] @ row).exp() for j in range(3)])
        rows.append(row + sum(e[j] / e.sum() * b[j] for j in range(3)))
    for model, wanted in ((gpf, x + gpf.prompt.added[0]), (plus, torch.stack(rows)), (plain, x)):
        found = model.prompt(graphs_of(graph_view(graphs), model).all())
        torch.testing.assert_close(found.x_NF, wanted)
        assert [pairs for _, pairs, _ in parts(found)] == [set(pairs_in(g)) for g in graphs]
    assert not list(plain.prompt.parameters())


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"form": "hard"}, {"form": "hard", "share": 0.6, "vectors": 4}, {"form": "hard", "share": 1.0}]
)
def test_supt_equals_plain_loops(graph_view: MakeView, options: dict[str, Any], seed: int) -> None:
    """Scores by PyG's layer graph by graph, nodes chosen one by one, with gradients by all parameters."""
    graphs = random_graphs(seed)
    model = make({"name": "supt", "vectors": 3, **options})
    p, layer = model.prompt.added, GCNConv(FEATURES, options.get("vectors", 3))
    layer.lin.weight, layer.bias = model.prompt.weight, model.prompt.bias
    with torch.no_grad():
        layer.bias.uniform_()
    rows = []
    for graph in graphs:
        score = layer(graph.x + p.sum(0), graph.edge_index)
        if options.get("form") != "hard":
            rows.append(graph.x + torch.exp(score) / torch.exp(score).sum(1, keepdim=True) @ p)
            continue
        n, s = graph.num_nodes, score.tanh()
        count = math.ceil(options.get("share", 0.2) * n - 1e-9)
        of = [sorted(range(n), key=lambda i: (-float(s[i, j]), i))[:count] for j in range(len(p))]
        for i in range(n):
            mine = [j for j in range(len(p)) if i in of[j]]
            rows.append((graph.x[i] + sum((s[i, j] * p[j] for j in mine), 0 * p[0]) / (1 + len(mine)))[None])
    wanted = torch.cat(rows)
    found = model.prompt(graphs_of(graph_view(graphs), model).all())
    torch.testing.assert_close(found.x_NF, wanted)
    assert [pairs for _, pairs, _ in parts(found)] == [set(pairs_in(g)) for g in graphs]
    towards, own = torch.randn_like(wanted), [p, layer.lin.weight, layer.bias]
    for ours, other in zip(
        torch.autograd.grad((found.x_NF * towards).sum(), own), torch.autograd.grad((wanted * towards).sum(), own)
    ):
        assert ours.abs().max() > 1e-3
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-5)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "gcn": lambda width: GCNConv(width, HIDDEN),
    "gat": lambda width: GATConv(width, HIDDEN // (8 if width == FEATURES else 1), 8 if width == FEATURES else 1),
    "transformer": lambda width: TransformerConv(width, HIDDEN),
}


@pytest.mark.parametrize("prompt", sorted(PROMPTS))
@pytest.mark.parametrize("name", LAYERS)
def test_prompted_step_equals_pyg(graph_view: MakeView, name: str, prompt: str) -> None:
    """Its layers on the edges that a prompt gives, pooled and read, dropout included, with all gradients."""
    graphs = random_graphs(1)
    model = make(prompt, name, 0.4).train()
    batch = graphs_of(graph_view(graphs), model).all()
    convs = nn.ModuleList([LAYERS[name](FEATURES), LAYERS[name](HIDDEN)])
    convs.load_state_dict(model.backbone.backbone.convs.state_dict())
    changed = model.prompt(batch)
    edges = torch.cat([changed.pairs_2E, changed.pairs_2E.flip(0)], dim=1)
    if changed.arrows_2E is not None:
        edges = torch.cat([edges, changed.arrows_2E], dim=1)
    edges = edges.long()
    torch.manual_seed(4)
    out = model(batch)
    torch.manual_seed(4)
    x = convs[0](changed.x_NF, edges)
    x = dropped(F.leaky_relu(x) if name == "transformer" else F.relu(x), 0.4)
    x = convs[1](x, edges)
    bounds = changed.first.tolist()
    pooled = torch.stack([x[a:b].mean(0) for a, b in pairwise(bounds)])
    expected = model.head.linears[-1](dropped(pooled, 0.4))
    torch.testing.assert_close(out.logits_NC, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.embedding_NH, pooled, rtol=1e-4, atol=1e-5)
    label, own = torch.cat([g.y for g in graphs]), list(model.prompt.parameters())
    ours = [*own, *model.backbone.backbone.convs.parameters()]
    found = torch.autograd.grad(F.cross_entropy(out.logits_NC, label), ours)
    wanted = torch.autograd.grad(F.cross_entropy(expected, label), [*own, *convs.parameters()])
    for gradient, by_pyg in zip(found, wanted):
        torch.testing.assert_close(gradient, by_pyg, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["gcn", "gin", "transformer", "sage"])
def test_without_a_prompt_nothing_changes(graph_view: MakeView, pyg_graphs: list[Data], name: str) -> None:
    """The identity gives the numbers and the initial parameters of the model that has no prompt, to the bit."""
    plain = FlatModel(build(name, FEATURES, CLASSES, 0, 0.0, {"hidden": HIDDEN}, task="graph"))
    model = FlatModel(make("none", name))
    assert torch.equal(model.initial(3), plain.initial(3))
    view = graph_view(pyg_graphs)
    logits = []
    for flat in (plain, model):
        graphs = graphs_of(view, flat)
        logits.append([flat(b).logits_NC for b in (graphs.all(), graphs.part("test"), graphs.some(torch.tensor([4])))])
    for ours, other in zip(*logits):
        assert torch.equal(ours, other)


def test_initial_values_of_vpg() -> None:
    model = FlatModel(build("gcn", 400, 3, 0, 0.0, {"prompt": {"name": "vpg", "candidates": 9}}, task="graph"))
    model.initial(5)
    values = torch.cat([p.detach().flatten() for p in model.module.prompt.parameters()])
    assert values.abs().max() <= 0.05
    assert values.std() == pytest.approx(0.05 / math.sqrt(3), rel=0.05)


def test_pre_defined_candidates_are_constants_of_the_seed() -> None:
    """No parameters; the same in every model that is built, whatever else is drawn, and others with another seed."""
    fixed = {"name": "vpg", "candidates": 9, "learnt": False}
    models = [FlatModel(build("gcn", 400, 3, 0, 0.0, {"prompt": each}, task="graph")) for each in (fixed, fixed)]
    models[1].initial(5)
    first, second = (model.module.prompt.candidates for model in models)
    assert torch.equal(first, second)
    assert [len(p) for p in models[0].module.prompt.parameters()] == [400]
    assert first.std() == pytest.approx(0.05 / math.sqrt(3), rel=0.05)
    assert not torch.equal(make({**fixed, "seed": 1}).prompt.candidates, make(fixed).prompt.candidates)


@pytest.mark.parametrize("prompt", sorted(PROMPTS))
def test_sparse_features_are_written_out(graph_view: MakeView, prompt: str) -> None:
    graphs = random_graphs(0)
    model = make(prompt)
    batch = graphs_of(graph_view(graphs), model).all()
    by_column = FlatModel(make(prompt), sparse=True)
    out = by_column(GraphBatch([sparse(batch.hops[0])], batch.operators, batch.first))
    torch.testing.assert_close(out.logits_NC, model(batch).logits_NC)


def test_batch_of_plain_graphs_restores_the_batch(graph_view: MakeView, pyg_graphs: list[Data]) -> None:
    model = make("none", "gin")
    batch = graphs_of(graph_view(pyg_graphs), model).all()
    again = batch_of(PlainGraphs(batch.hops[0], pairs_of(batch).flip(1), batch.first), model.backbone.backbone)
    assert len(again.operators) == 2
    assert torch.equal(again.operators[0].to_dense(), batch.operators[0].to_dense())
