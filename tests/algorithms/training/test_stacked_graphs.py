"""Models that pass messages, trained for several clients at once beside the loop: the same numbers to rounding."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import JoinedMatrices, numbers_of_row
from shoal.algorithms.training.batched.batched_training import BatchedTrainer, needed_to_batch
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.store.view import View

FEATURES, CLASSES = 4, 3
MODULES: dict[str, dict[str, Any]] = {
    "gcn": {"head": "conv"},
    "gcn, linear": {"head": "linear", "layers": 3},
    "gcn, jumping": {"head": "linear", "jumping": "max"},
    "sage": {"head": "conv"},
    "sage, linear": {"head": "linear"},
    "gin": {"head": "conv"},
    "gin, linear": {"head": "linear", "norm": "none"},
    "gcnii": {"head": "conv"},
    "gcnii, linear": {"head": "linear", "layers": 3},
}


def views_of(make_view: Callable[..., View], weighted: bool) -> list[View]:
    """Of several sizes: one without edges, one with a single node, one whose last node has no edge."""
    rng = np.random.default_rng(0)
    found = []
    for nodes, edges, train in ((12, 30, 5), (6, 0, 6), (1, 0, 1), (9, 8, 2)):
        joined = rng.integers(max(nodes - 1, 1), size=(edges, 2))
        weight = rng.uniform(0.5, 2, (nodes, nodes)).astype(np.float32)
        x = rng.standard_normal((nodes, FEATURES)).astype(np.float32)
        rows = rng.permutation(nodes)[:train]
        weights = weight + weight.T if weighted else None
        found.append(make_view(nodes, joined, rng.integers(CLASSES, size=nodes), rows, CLASSES, x, weights))
    return found


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("sparse", [False, True], ids=["", "sparse"])
@pytest.mark.parametrize("case", MODULES)
def test_equals_the_loop_over_two_visits(
    case: str,
    sparse: bool,
    make_view: Callable[..., View],
    make_client: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By momentum, which does not make roundings of next to nothing large, as Adam does."""
    if sparse:
        whole = View.whole
        monkeypatch.setattr(View, "whole", lambda view, k: sparse_of(whole(view, k)))
    options = TrainOptions(epochs=3, optimizer="sgd", lr=0.1, momentum=0.9)
    torch.manual_seed(1)
    made = build(case.partition(",")[0], FEATURES, CLASSES, 0, 0.5, {"hidden": 8, **MODULES[case]})
    shared = FlatModel(copy.deepcopy(made), sparse=sparse)
    views = views_of(make_view, weighted=shared.coupled is not None and shared.coupled.weighs_edges)
    alone, stacked = [], []
    for view in views:
        client = make_client(view, copy.deepcopy(made))
        for clients, model in ((alone, FlatModel(copy.deepcopy(made), sparse=sparse)), (stacked, shared)):
            own = {MODEL: ClientModel(model, view, client.random)}
            clients.append(Client(client.info, view, own, {}, {}, client.random))
    w_BP = torch.stack([client.model.w.clone() for client in alone])
    for _ in range(2):
        losses = [LocalTrainer({MODEL: client.model.flat}, options, Algorithm()).fit(client, {}) for client in alone]
        shared.module.eval()
        assert BatchedTrainer(shared, options).fit(stacked, w_BP).tolist() == pytest.approx(losses, rel=1e-4)
        for client, twin, w in zip(alone, stacked, w_BP):
            torch.testing.assert_close(w, client.model.w, rtol=1e-4, atol=1e-5)
            assert client.state.keys() == twin.state.keys()
            for entry, tensor in client.state.items():
                torch.testing.assert_close(twin.state[entry], tensor, rtol=1e-4, atol=1e-5)


def sparse_of(x_NF: Any) -> SparseMatrix:
    """Features as a sparse store has them."""
    return x_NF if isinstance(x_NF, SparseMatrix) else SparseMatrix(x_NF.to_sparse_csr())


@pytest.mark.parametrize(
    ("name", "options", "stacks"),
    [
        ("gcn", {}, True),
        ("gcn", {"norm": "batch"}, False),
        ("gcn", {"fanouts": [2, 2], "head": "linear"}, False),
        ("gat", {}, False),
        ("transformer", {}, False),
    ],
)
def test_what_does_not_stack(name: str, options: dict[str, Any], stacks: bool) -> None:
    model = FlatModel(build(name, FEATURES, CLASSES, 0, 0.0, options))
    why = "a decoupled model (one that reads hops, such as sgc), or gcn, gin, sage or gcnii on the whole graph"
    assert needed_to_batch(Algorithm(), model, TrainOptions()) == (None if stacks else why)


def test_products_side_by_side() -> None:
    """Of matrices that are not their own transposes, with gradients."""
    draws = torch.Generator().manual_seed(0)
    dense = [torch.randn(n, n, generator=draws) * (torch.rand(n, n, generator=draws) < 0.5) for n in (4, 1, 3)]
    matrices = [SparseMatrix(matrix.to_sparse_csr()) for matrix in dense]
    x_BNH = torch.randn(3, 4, 2, generator=draws).requires_grad_()
    joined = JoinedMatrices(matrices, 4)
    assert len(joined) == 4
    out_BNH = torch.vmap(lambda x: joined @ x)(x_BNH)
    weight_BNH = torch.randn(3, 4, 2, generator=draws)
    (out_BNH * weight_BNH).sum().backward()
    assert x_BNH.grad is not None
    for matrix, x_NH, out_NH, w_NH, gradient_NH in zip(dense, x_BNH.detach(), out_BNH, weight_BNH, x_BNH.grad):
        n = len(matrix)
        torch.testing.assert_close(out_NH[:n], matrix @ x_NH[:n])
        torch.testing.assert_close(gradient_NH[:n], matrix.T @ w_NH[:n])
        assert not out_NH[n:].any()
        assert not gradient_NH[n:].any()
    with pytest.raises(RuntimeError, match="expected batched clients"):
        _ = joined @ x_BNH[0]


def test_symmetric_matrices_are_joined_once() -> None:
    csr = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).to_sparse_csr()
    symmetric, other = SparseMatrix(csr, csr), SparseMatrix(csr)
    both = JoinedMatrices([symmetric, symmetric], 2).matrix
    assert both.transposed is both.csr
    one = JoinedMatrices([symmetric, other], 2).matrix
    assert one.transposed is not one.csr


def test_what_a_row_takes() -> None:
    """What is read three times, and six numbers for what each layer computes."""
    x_NF = torch.ones(5, FEATURES)
    assert numbers_of_row([x_NF, x_NF], None) == (5, 3 * 2 * FEATURES)
    gcn = FlatModel(build("gcn", FEATURES, CLASSES, 0, 0.0, {"hidden": 8, "layers": 3})).coupled
    assert gcn is not None
    assert numbers_of_row(Neighbourhood(x_NF, ()), gcn) == (5, 3 * FEATURES + 6 * 3 * 8)


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_whole_runs(run: Callable[..., Server], model: str) -> None:
    keys = {"model.name": model, "train.dropout": 0.3, "participation.ratio": 0.7, "engine.cell_size": 4}
    loop, stacked = run({**keys, "engine.trainer": "autograd"}), run({**keys, "engine.trainer": "batched"})
    for name, tensor in loop.state.server.items():
        torch.testing.assert_close(stacked.state.server[name], tensor, rtol=1e-3, atol=1e-4)
