"""Prompts against loops over graphs, nodes and edges, and gradients against differences."""

from itertools import pairwise
from math import ceil, exp, floor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.backbones import build
from algorithms.backbones.graph_batch import GraphBatch
from algorithms.backbones.plain_graphs import PlainGraphs
from algorithms.backbones.prompted import Prompted
from algorithms.backbones.prompts import GPF, VPG, GPFPlus, NoPrompt, PromptChoice, build_prompt
from algorithms.flat_model import FlatModel
from storage.errors import ShoalError
from storage.sparse_matrix import SparseMatrix

FEATURES = 5
SIZES = (6, 1, 4, 9, 2)
Plain = tuple[np.ndarray, list[tuple[int, int]]]


def drawn(seed: int, sizes: tuple[int, ...] = SIZES) -> list[Plain]:
    """Graphs; the second has one node, the third no edge."""
    rng = np.random.default_rng(seed)
    found = []
    for number, size in enumerate(sizes):
        pairs = [(i, j) for i in range(size) for j in range(i + 1, size) if number != 2 and rng.random() < 0.6]
        found.append((rng.standard_normal((size, FEATURES)).astype(np.float32), pairs))
    return found


def batch_of(graphs: list[Plain], sparse: bool = False) -> GraphBatch:
    first = np.cumsum([0, *(len(x) for x, _ in graphs)])
    dense = torch.zeros(first[-1], first[-1])
    for (_, pairs), start in zip(graphs, first):
        for i, j in pairs:
            dense[start + i, start + j] = dense[start + j, start + i] = 1
    csr = dense.to_sparse_csr()
    adjacency = SparseMatrix.of(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), len(dense))
    x: Any = torch.from_numpy(np.concatenate([x for x, _ in graphs]))
    if sparse:
        rows = x.to_sparse_csr()
        x = SparseMatrix.of(rows.crow_indices().int(), rows.col_indices().int(), rows.values(), FEATURES)
    return GraphBatch([x], (adjacency,), torch.from_numpy(first))


def by_loops(prompt: VPG, x: np.ndarray, pairs: list[tuple[int, int]]) -> Plain:
    p = prompt.p.detach().numpy().astype(np.float64)
    x = x.astype(np.float64)
    if prompt.candidates is not None:
        added = prompt.candidates.detach().numpy().astype(np.float64)
        joins = [
            (i, len(x) + c) for i in range(len(x)) for c in range(len(added)) if 1 / (1 + exp(-x[i] @ added[c])) >= 0.6
        ]
        x, pairs = np.concatenate([x, added]), pairs + joins
    w = x @ p / np.sqrt(p @ p)
    kept = sorted(sorted(range(len(x)), key=lambda i: (-w[i], i))[: ceil(prompt.nodes * len(x))])
    left = [(a, b) for a, b in pairs if a in kept and b in kept]
    chosen = sorted(left, key=lambda e: -abs(w[e[0]] - w[e[1]]))[: floor(prompt.edges * len(left))]
    place = {node: row for row, node in enumerate(kept)}
    return x[kept] * np.tanh(w[kept])[:, None], sorted((place[a], place[b]) for a, b in chosen)


def parts(graphs: PlainGraphs) -> list[Plain]:
    """Every graph apart."""
    found = []
    for a, b in pairwise(graphs.first.tolist()):
        inside = (graphs.pairs_2E[0] >= a) & (graphs.pairs_2E[0] < b)
        pairs = sorted((int(i), int(j)) for i, j in (graphs.pairs_2E[:, inside] - a).T)
        found.append((graphs.x_NF[a:b].detach().numpy(), pairs))
    return found


def vpg(**options: Any) -> VPG:
    torch.manual_seed(3)
    prompt = build_prompt(PromptChoice(name="vpg", gamma=0.6, **options), FEATURES)
    assert isinstance(prompt, VPG)
    return prompt


@pytest.mark.parametrize("candidates", [0, 3])
@pytest.mark.parametrize(("nodes", "edges"), [(0.5, 0.9), (0.6, 0.5), (1.0, 1.0), (0.01, 0.01)])
@pytest.mark.parametrize("seed", range(2))
def test_vpg_is_that_of_the_loops(nodes: float, edges: float, candidates: int, seed: int) -> None:
    prompt, graphs = vpg(nodes=nodes, edges=edges, candidates=candidates), drawn(seed)
    if prompt.candidates is not None:
        prompt.candidates.data.mul_(6)
    found = prompt(batch_of(graphs))
    assert found.pairs_2E.dtype == torch.int32
    for (x, pairs), (expected_x, expected_pairs) in zip(
        parts(found), (by_loops(prompt, *g) for g in graphs), strict=True
    ):
        np.testing.assert_allclose(x, expected_x, rtol=1e-5, atol=1e-6)
        assert pairs == expected_pairs


@pytest.mark.parametrize("candidates", [0, 2])
def test_a_graph_alone_is_what_it_is_among_others(candidates: int) -> None:
    prompt, graphs = vpg(candidates=candidates), drawn(4)
    together = parts(prompt(batch_of(graphs)))
    for graph, (x, pairs) in zip(graphs, together, strict=True):
        ((x_alone, pairs_alone),) = parts(prompt(batch_of([graph])))
        np.testing.assert_array_equal(x_alone, x)
        assert pairs_alone == pairs


def test_shares_are_of_counts_and_not_of_their_rounding() -> None:
    """0.55 * 100 is 55.00000000000001, 0.29 * 100 is 28.999999999999996."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, FEATURES)).astype(np.float32)
    assert len(vpg(nodes=0.55)(batch_of([(x, [])])).x_NF) == 55
    star = [(0, i) for i in range(1, 100)] + [(1, 2)]
    assert vpg(nodes=1.0, edges=0.29)(batch_of([(x, star)])).pairs_2E.shape == (2, 29)


def test_the_first_of_equals_stay() -> None:
    x = np.ones((5, FEATURES), dtype=np.float32)
    prompt = vpg(nodes=0.4, edges=0.5)
    ((kept, pairs),) = parts(prompt(batch_of([(x, [(0, 1), (0, 4), (3, 4)])])))
    assert len(kept) == 2
    assert pairs == []
    ((kept, pairs),) = parts(vpg(nodes=1.0, edges=0.5)(batch_of([(x, [(0, 1), (1, 2), (3, 4), (2, 3)])])))
    assert pairs == [(0, 1), (1, 2)]


def test_gradients_of_vpg_are_those_of_the_spec_and_of_differences() -> None:
    prompt, batch = vpg(nodes=0.6), batch_of(drawn(1))
    g = torch.randn(prompt(batch).x_NF.shape, generator=torch.Generator().manual_seed(0))
    (prompt(batch).x_NF * g).sum().backward()
    assert prompt.p.grad is not None
    numbers = []
    for entry in range(FEATURES):
        step = torch.zeros(FEATURES)
        step[entry] = 1e-3
        ends = []
        for sign in (1, -1):
            other = vpg(nodes=0.6)
            other.p.data = prompt.p.data + sign * step
            ends.append(float((other(batch).x_NF.detach() * g).sum()))
        numbers.append((ends[0] - ends[1]) / 2e-3)
    np.testing.assert_allclose(prompt.p.grad, numbers, rtol=2e-2, atol=2e-2)
    # Its length does not matter.
    assert float(prompt.p.grad @ prompt.p.detach()) == pytest.approx(0.0, abs=1e-5)


def test_candidates_learn_where_they_stay() -> None:
    prompt, batch = vpg(nodes=1.0, candidates=2), batch_of(drawn(1))
    prompt(batch).x_NF.sum().backward()
    assert prompt.candidates is not None
    assert prompt.candidates.grad is not None
    assert bool((prompt.candidates.grad != 0).any(dim=1).all())


def test_no_prompt_leaves_graphs_as_they_are() -> None:
    graphs = drawn(2)
    for (x, pairs), (expected_x, expected_pairs) in zip(parts(NoPrompt()(batch_of(graphs))), graphs, strict=True):
        np.testing.assert_array_equal(x, expected_x)
        assert pairs == sorted(expected_pairs)


def test_gpf_adds_one_vector_and_gpf_plus_a_mixture() -> None:
    torch.manual_seed(0)
    graphs = drawn(3)
    one, mixture = GPF(FEATURES), GPFPlus(FEATURES, 4)
    x = np.concatenate([x for x, _ in graphs]).astype(np.float64)
    found = one(batch_of(graphs))
    np.testing.assert_allclose(found.x_NF.detach(), x + one.p.detach().numpy(), rtol=1e-5, atol=1e-6)
    a, b = (part.detach().numpy().astype(np.float64) for part in (mixture.a, mixture.b))
    for row, given in zip(mixture(batch_of(graphs)).x_NF.detach().numpy(), x, strict=True):
        weight = np.exp(a @ given)
        np.testing.assert_allclose(row, given + weight / weight.sum() @ b, rtol=1e-4, atol=1e-5)
    for prompt in (one, mixture):
        assert [pairs for _, pairs in parts(prompt(batch_of(graphs)))] == [sorted(pairs) for _, pairs in graphs]


def test_sparse_features_are_read_as_dense_ones() -> None:
    graphs = drawn(5)
    for name in ("vpg", "gpf", "gpf_plus", "none"):
        torch.manual_seed(0)
        prompt = build_prompt(PromptChoice(name=name), FEATURES)  # type: ignore[arg-type]
        assert torch.equal(prompt(batch_of(graphs)).x_NF, prompt(batch_of(graphs, sparse=True)).x_NF)


@pytest.mark.parametrize("name", ["gcn", "gin", "sage", "gat", "gcnii", "transformer"])
@pytest.mark.parametrize("prompt", ["vpg", "none"])
def test_a_prompted_model_reads_what_the_prompt_made(name: str, prompt: str) -> None:
    """Prompt, GNN and classifier, one after the other; the GNN reads graphs as a model without a prompt does."""
    options = {"hidden": 8, "head_dropout": False}
    torch.manual_seed(0)
    model = build(name, FEATURES, 3, 0, 0.0, {**options, "prompt": prompt}, task="graph").eval()
    assert isinstance(model, Prompted)
    torch.manual_seed(1)
    plain = build(name, FEATURES, 3, 0, 0.0, options, task="graph").eval()
    plain.load_state_dict(model.backbone.state_dict())
    batch = batch_of(drawn(0))
    changed = model.prompt(batch)
    out = model(batch)
    expected = plain(changed.batch(plain.backbone))
    torch.testing.assert_close(out.logits_NC, expected.logits_NC)
    torch.testing.assert_close(model.answer(changed), expected.embedding_NH)
    if prompt == "none":
        pairs = [pair for _, pairs in drawn(0) for pair in pairs]
        assert changed.pairs_2E.shape == (2, len(pairs))
    flat = FlatModel(model)
    assert flat.prompted
    assert flat.coupled is model.backbone.backbone
    names = [parameter for parameter, _ in model.named_parameters()]
    assert names[: 1 if prompt == "vpg" else 0] == (["prompt.p"] if prompt == "vpg" else [])
    assert not any(parameter.startswith("prompt.") for parameter in names[1:])


def test_a_fresh_model_is_one_that_is_drawn_anew() -> None:
    for prompt in ("gpf", "gpf_plus", {"name": "vpg", "candidates": 2}):
        drawn_twice = []
        for _ in range(2):
            model: nn.Module = build("gcn", FEATURES, 3, 0, 0.0, {"prompt": prompt}, task="graph")
            drawn_twice.append(FlatModel(model).initial(7))
        assert torch.equal(*drawn_twice)
        bound = FEATURES**-0.5
        of_prompt: list[Tensor] = list(model.prompt.parameters())  # type: ignore[union-attr, operator]
        assert all(float(p.abs().max()) <= bound for p in of_prompt)
        assert max(float(p.abs().max()) for p in of_prompt) > bound / 2


@pytest.mark.parametrize(
    ("name", "options", "task", "line"),
    [
        ("gcn", {"prompt": "pgp"}, "graph", r"model\.prompt\.name: Input should be 'vpg', 'gpf', .*, found 'pgp'"),
        (
            "gcn",
            {"prompt": {"name": "vpg", "nodes": 0}},
            "graph",
            r"model\.prompt\.nodes: Input should be greater than 0",
        ),
        ("gcn", {"prompt": {"name": "vpg", "node": 1}}, "graph", r"model\.prompt\.node: Unexpected keyword argument"),
        ("gcn", {"prompt": {"nodes": 0.5}}, "graph", r"model\.prompt\.name: Field required"),
        ("gcn", {"prompt": 3}, "graph", r"model\.prompt: must be of type"),
        ("sgc", {"prompt": "vpg"}, "graph", r"model\.prompt: is for models that pass messages .*, sgc is none"),
        ("star", {"prompt": "vpg"}, "graph", r"model\.prompt: is for models that pass messages .*, star is none"),
        ("gcn", {"prompt": "vpg"}, "node", r"model\.prompt: is for graph tasks .*, a node task has no small graphs"),
        ("gcn", {"prompt": "vpg"}, "edge", r"model\.prompt: is for graph tasks .*, an edge task has no small graphs"),
    ],
)
def test_what_no_model_can_have(name: str, options: dict[str, Any], task: str, line: str) -> None:
    with pytest.raises(ShoalError, match=line):
        build(name, FEATURES, 3, 2, 0.5, options, task=task)
