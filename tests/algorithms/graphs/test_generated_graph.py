"""A graph with edges to near rows against sets of pairs; FGGP's view against a dense one and counts of many draws."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from support.dense_graphs import join, rows_of, smoothing
from support.other_device.device import load
from torch import Tensor

from shoal.algorithms.graphs import generated_graph as operator_module
from shoal.algorithms.graphs import pairs as pairs_module
from shoal.algorithms.graphs.completed_graph import CompletedGraph, complete_graph, draw_candidates
from shoal.algorithms.graphs.generated_graph import EdgeOptions, GeneratedGraph, draw_edges, edge_scores
from shoal.algorithms.graphs.pairs import PairDots, cross_dots
from shoal.algorithms.models.inputs.neighbourhood import operator_over

CPU = torch.device("cpu")
NODES, WIDTH = 11, 6
# Enough draws to meet every pair of so few nodes.
ALL = 400


def graph_of(pairs: list[tuple[int, int]], nodes: int = NODES) -> CompletedGraph:
    return complete_graph(*rows_of(join(nodes, pairs)), torch.empty(nodes, 0, dtype=torch.int32), CPU)


# Node 10 has no edge.
PAIRS = [(0, 1), (0, 2), (1, 2), (1, 5), (2, 3), (3, 4), (4, 9), (5, 6), (6, 7), (7, 8), (8, 9)]


def rows(seed: int = 0, nodes: int = NODES) -> Tensor:
    """F out of a ReLU; node 3 is dead."""
    f = torch.randn(nodes, WIDTH, generator=rng(seed)).relu()
    f[3:4] = 0
    return f


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense_view(
    graph: CompletedGraph, f: Tensor, options: EdgeOptions, u: dict[tuple[int, int], float]
) -> tuple[Tensor, Tensor]:
    """The normalised matrix of the view and L_reg, written with n x n matrices in float64; u as it was drawn."""
    n = len(f)
    known = torch.zeros(n, n, dtype=torch.float64)
    low, high = graph.pairs_2M.long()
    known[low, high] = known[high, low] = 1
    gram = f @ f.T
    if options.similarity == "cosine":
        unit = f / f.norm(dim=1, keepdim=True).clamp_min(1e-8)
        omega = (unit @ unit.T).relu()
    elif options.similarity == "sigmoid":
        omega = 1 / (1 + (-gram).exp())
    else:
        omega = gram / gram[~torch.eye(n, dtype=torch.bool)].max()
    b = (options.lam * known + (1 - options.lam) * omega).clamp(1e-6, 1 - 1e-6)
    uniform = torch.full((n, n), 0.5, dtype=torch.float64)
    for (i, j), value in u.items():
        uniform[i, j] = uniform[j, i] = value
    if options.draw == "logistic":
        soft = torch.sigmoid((b.log() - (1 - b).log() + uniform.log() - (1 - uniform).log()) / options.temperature)
    else:
        soft = torch.sigmoid((b.log() - (-uniform.log()).log()) / options.temperature)
    chosen = (soft + 0.5).floor().detach() + soft - soft.detach()
    chosen = chosen * (1 - torch.eye(n, dtype=torch.float64))
    loops = chosen + torch.eye(n, dtype=torch.float64)
    root = torch.diag(loops.sum(1) ** -0.5)
    terms: dict[bool, list[Tensor]] = {True: [], False: []}
    for i, j in itertools.combinations(range(n), 2):
        level = gram[i, j] / math.sqrt(f.shape[1])
        chance = soft[i, j] if options.reg_form == "literal" else torch.sigmoid(level)
        is_known = bool(known[i, j])
        terms[is_known].append(-torch.log(chance if is_known else 1 - chance))
    parts = [terms[True] + terms[False]] if options.reg_form == "literal" else terms.values()
    means = [torch.stack(part).mean() for part in parts if part]
    return root @ loops @ root, sum(means) / len(means)  # type: ignore[return-value]


def drawn_uniforms(view: GeneratedGraph, options: EdgeOptions, seed: int) -> dict[tuple[int, int], float]:
    """The uniform numbers behind a view: what its generator gave after the candidates."""
    again = rng(seed)
    if options.random_pairs != "all":
        torch.randint(NODES - 1, (options.random_pairs * NODES,), generator=again)
    numbers = torch.rand(view.candidates.pairs_2S.shape[1], generator=again).tolist()
    return {(i, j): u for (i, j), u in zip(view.candidates.pairs_2S.T.tolist(), numbers)}


OPTIONS = [
    {},
    {"lam": 0.0},
    {"lam": 0.8, "temperature": 0.4},
    {"lam": 1.0},
    {"similarity": "max"},
    {"draw": "gumbel", "similarity": "sigmoid", "random_pairs": "all", "reg_form": "literal"},
    {"reg_form": "literal", "temperature": 0.4},
    {"draw": "gumbel", "similarity": "max", "temperature": 2.0, "lam": 0.3},
]


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("keys", OPTIONS, ids=str)
@pytest.mark.parametrize("pairs", [PAIRS, [], list(itertools.combinations(range(NODES), 2))], ids=["some", "no", "all"])
@pytest.mark.parametrize("kernels", ["numba", "torch"])
def test_on_all_pairs_it_is_the_dense_one(
    keys: dict[str, Any], pairs: list[tuple[int, int]], kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers and L_reg: values, and gradients with respect to F and to what is multiplied."""
    if kernels == "torch":
        by_torch(monkeypatch)
    options = EdgeOptions(**{"random_pairs": ALL, **keys})
    graph = graph_of(pairs)
    f, x = rows().requires_grad_(), torch.randn(NODES, 3, generator=rng(5)).requires_grad_()
    direction = torch.randn(NODES, 3, generator=rng(6))
    view = GeneratedGraph(graph, f, rng(7), options)
    assert view.candidates.pairs_2S.T.tolist() == [list(p) for p in itertools.combinations(range(NODES), 2)]
    out = view.operator @ torch.tanh(view.operator @ x)
    ((out * direction).sum() + 3 * view.regularizer()).backward()

    f64, x64 = (t.detach().double().requires_grad_() for t in (f, x))
    matrix, regularizer = dense_view(graph, f64, options, drawn_uniforms(view, options, 7))
    wanted = matrix @ torch.tanh(matrix @ x64)
    ((wanted * direction).sum() + 3 * regularizer).backward()
    torch.testing.assert_close(view.operator.to_dense().double(), matrix.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(view.regularizer().double(), regularizer, rtol=1e-5, atol=1e-6)
    assert x.grad is not None
    assert f.grad is not None
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(f.grad.double(), f64.grad, rtol=1e-3, atol=1e-5)


def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes every path that a GPU takes, in blocks of a few pairs."""
    monkeypatch.setattr(pairs_module, "BLOCK", 4)
    for module in (pairs_module, operator_module):
        monkeypatch.setattr(module, "on_processor", lambda tensor: False)


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.95])
@pytest.mark.parametrize(("draw", "temperature"), [("logistic", 1.0), ("logistic", 0.2), ("gumbel", 1.0)])
def test_how_often_an_edge_is_there(chance: float, draw: Any, temperature: float) -> None:
    """P = B, and 1 - exp(-B) for equation 7 as it is written; within five standard errors of 200,000 draws."""
    count = 200_000
    options = EdgeOptions(draw=draw, temperature=temperature)
    score = edge_scores(torch.full((count,), chance), torch.rand(count, generator=rng(3)), options)
    edges = draw_edges(score, score / temperature)
    wanted = chance if draw == "logistic" else 1 - math.exp(-chance)
    assert set(edges.tolist()) == {0.0, 1.0}
    assert abs(float(edges.mean()) - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / count)


@pytest.mark.parametrize("draw", ["logistic", "gumbel"])
def test_a_uniform_number_of_zero_is_no_edge(draw: Any) -> None:
    """One of the 55 numbers of this seed is zero."""
    seed, f = 194_552, rows().requires_grad_()
    zero = torch.rand(NODES * (NODES - 1) // 2, generator=rng(seed)).argmin()
    options = EdgeOptions(random_pairs="all", similarity="sigmoid", draw=draw, reg_form="literal")
    view = GeneratedGraph(graph_of(PAIRS), f, rng(seed), options)
    view.regularizer().backward()
    assert f.grad is not None
    assert bool(view.regularizer().isfinite() & f.grad.isfinite().all())
    assert float(view.operator.numbers.detach()[zero]) == 0


def test_candidates() -> None:
    """Those of the graph always, others at random, each once, ascending, and all equally often."""
    graph = graph_of(PAIRS)
    counts = np.zeros((NODES, NODES))
    for seed in range(600):
        found = draw_candidates(graph, 1, rng(seed))
        pairs = [tuple(pair) for pair in found.pairs_2S.T.tolist()]
        assert pairs == sorted(set(pairs))
        assert all(i < j for i, j in pairs)
        assert [pair for pair, known in zip(pairs, found.known_S.tolist()) if known] == PAIRS
        assert len(pairs) <= len(PAIRS) + NODES
        for i, j in pairs:
            counts[i, j] += 1
    free = [counts[p] for p in itertools.combinations(range(NODES), 2) if p not in PAIRS]
    # A pair is met unless both of its nodes drew others.
    chance = 1 - (1 - 1 / (NODES - 1)) ** 2
    error = math.sqrt(chance * (1 - chance) * 600)
    assert all(abs(count - 600 * chance) < 5 * error for count in free)
    assert abs(np.mean(free) - 600 * chance) < 5 * error / math.sqrt(len(free))
    none = draw_candidates(graph, 0, rng(0))
    assert none.pairs_2S.T.tolist() == [list(pair) for pair in PAIRS]


@pytest.mark.parametrize("random_pairs", [0, 1, 4])
@pytest.mark.parametrize("pairs", [PAIRS, []])
def test_candidates_by_torch(random_pairs: int, pairs: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    one = draw_candidates(graph_of(pairs), random_pairs, rng(4))
    by_torch(monkeypatch)
    other = draw_candidates(graph_of(pairs), random_pairs, rng(4))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other))


@pytest.mark.parametrize("keys", [{}, {"random_pairs": "all", "reg_form": "literal"}], ids=str)
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_without_any_edge(nodes: int, keys: dict[str, Any]) -> None:
    """Nodes alone hear themselves; L_reg of no pairs is zero, and has a gradient, of zeros."""
    f = torch.zeros(nodes, WIDTH).requires_grad_()
    x = torch.randn(nodes, 3)
    view = GeneratedGraph(graph_of([], nodes), f, rng(1), EdgeOptions(**{**keys, "random_pairs": 0}))
    out = view.operator @ x
    assert torch.equal(out, x)
    (out.sum() + view.regularizer()).backward()
    assert not view.regularizer()
    assert f.grad is not None
    assert not f.grad.any()
    drawn = GeneratedGraph(graph_of([], nodes), f, rng(1), EdgeOptions(**keys))
    assert drawn.candidates.pairs_2S.shape[1] <= nodes * (nodes - 1) // 2
    drawn.regularizer().backward()
    assert bool(f.grad.isfinite().all())


def test_wide_rows_and_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels prefetch: rows of any width, more pairs than are fetched ahead; torch's blocks beside them."""
    for width in (1, 16, 33, 128):
        x, y = torch.randn(300, width, generator=rng(1)), torch.randn(300, width, generator=rng(2))
        pairs = torch.combinations(torch.arange(300))[::7].T.int().contiguous()
        weight = torch.randn(pairs.shape[1], generator=rng(3))
        i, j = pairs.long()
        wide, found = x.double().requires_grad_(), x.clone().requires_grad_()
        ((wide[i] * wide[j]).sum(1) * weight).sum().backward()
        dots = PairDots.apply(found, pairs)
        (dots * weight).sum().backward()
        torch.testing.assert_close(dots.double(), (wide[i] * wide[j]).sum(1).detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.grad.double(), wide.grad, rtol=1e-4, atol=1e-4)
        cross = (x[i] * y[j] + x[j] * y[i]).double().sum(1)
        torch.testing.assert_close(cross_dots(x, y, pairs).double(), cross, rtol=1e-4, atol=1e-4)


def test_on_another_device() -> None:
    """Every tensor stays there, and the numbers are those of the processor."""
    there = load()
    found = []
    for device in (CPU, there):
        graph = graph_of(PAIRS)._replace(pairs_2M=graph_of(PAIRS).pairs_2M.to(device))
        f, x = (t.to(device).requires_grad_() for t in (rows(), torch.randn(NODES, 3, generator=rng(5))))
        with torch.autograd.set_multithreading_enabled(False):
            view = GeneratedGraph(graph, f, rng(1), EdgeOptions(random_pairs=2))
            ((view.operator @ (view.operator @ x).tanh()).square().sum() + view.regularizer()).backward()
        assert view.operator.device == device
        found.append([view.operator.to_dense().cpu(), view.regularizer().cpu(), f.grad, x.grad])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other.cpu())


def by_sets(nodes: int, edges: set[tuple[int, int]], near: list[list[int]]) -> list[tuple[int, int]]:
    added = {(min(i, j), max(i, j)) for i, row in enumerate(near) for j in row if j >= 0}
    return sorted(edges | added)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("nodes", "k", "share"), [(12, 2, 0.2), (7, 0, 0.5), (9, 3, 0.0), (1, 2, 0.0), (4, 3, 1.0)])
def test_edges_of_both_kinds_once_both_ways(nodes: int, k: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = np.triu(rng.random((nodes, nodes)) < share, 1)
    edges = {(int(i), int(j)) for i, j in np.argwhere(a)}
    near = [[int(j) if j != i else -1 for j in rng.integers(nodes, size=k)] for i in range(nodes)]
    graph = complete_graph(*rows_of(a | a.T), torch.tensor(near, dtype=torch.int32).reshape(nodes, k), CPU)
    wanted = by_sets(nodes, edges, near)
    assert graph.nodes == nodes
    assert [tuple(pair) for pair in graph.pairs_2M.T.tolist()] == wanted
    dense = join(nodes, wanted)
    assert all(part.dtype == torch.int32 for part in graph)
    np.testing.assert_array_equal(graph.indptr, np.concatenate([[0], dense.sum(1).cumsum()]))
    np.testing.assert_array_equal(graph.indices, np.nonzero(dense)[1])
    operator = operator_over("symmetric", graph.indptr.numpy(), graph.indices.numpy())
    np.testing.assert_allclose(operator.to_dense(), smoothing(dense), rtol=1e-6)
