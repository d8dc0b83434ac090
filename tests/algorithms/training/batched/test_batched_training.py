"""Training in batches beside the loop: the same numbers to rounding, for clients of different sizes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import MakeClient, MakeView, Start, Views
from support.sparse_rows import sparse as sparse_of
from support.written_rounds import require_close_runs
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.methods.fedgl import FedGLMOON
from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.methods.fedproto import FedProto
from shoal.algorithms.methods.fpl import FPL
from shoal.algorithms.methods.moon import MOON
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import JoinedMatrices, numbers_of_row
from shoal.algorithms.training.batched.batched_training import BatchedTrainer, needed_to_batch
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.shards.view import View

FEATURES, CLASSES = 4, 3
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0},
}
DEEP: dict[str, Any] = {"hidden": 8, "layers": 3}
MODULES: dict[str, dict[str, Any]] = {
    "sgc": {},
    "mlp": DEEP,
    "mlp, embedding not dropped": {**DEEP, "head_dropout": False},
    "mlp, adapted": {"hidden": 6},
    "s2gc": {},
    "gbp": DEEP,
    "sign": {"hidden": 6},
    "sign, three layers": {"hidden": 6, "layers": 2},
    "sign, embedding not dropped": {"hidden": 6, "head_dropout": False},
    **{f"gamlp, {kind}": {"hidden": 8, "attention": kind} for kind in ("simple", "gate", "ori_ref", "jk", "recursive")},
}
# Adam makes roundings of next to nothing large in sums over neighbours.
COUPLED: dict[str, dict[str, Any]] = {
    "gcn": {"head": "conv"},
    "gcn, linear": {"layers": 3},
    "gcn, jumping": {"jumping": "max"},
    "sage": {"head": "conv"},
    "sage, linear": {},
    "gin": {"head": "conv"},
    "gin, linear": {"norm": "none"},
    "gcnii": {"head": "conv"},
    "gcnii, linear": {"layers": 3},
}
CASES = [
    *((name, optimizer, False) for name in MODULES for optimizer in OPTIMIZERS),
    *((name, "momentum", sparse) for name in COUPLED for sparse in (False, True)),
]
Pair = tuple[list[Client], list[Client], FlatModel]


def module(case: str) -> nn.Module:
    torch.manual_seed(1)
    options = MODULES[case] if case in MODULES else {"hidden": 8, **COUPLED[case]}
    embedding = 3 if "adapted" in case else None
    return build(case.partition(",")[0], FEATURES, CLASSES, 0, 0.5, options, embedding)


@pytest.fixture
def make_views(make_view: MakeView) -> Views:
    """Clients of several sizes: one without edges, one with a single node, one whose last node has no edge."""

    def make_views(weighted: bool = False) -> list[View]:
        rng = np.random.default_rng(0)
        found = []
        for nodes, edges, train in ((12, 30, 5), (6, 0, 6), (1, 0, 1), (20, 8, 2)):
            joined = rng.integers(max(nodes - 1, 1), size=(edges, 2))
            weight = rng.uniform(0.5, 2, (nodes, nodes)).astype(np.float32)
            x = rng.standard_normal((nodes, FEATURES)).astype(np.float32)
            rows, weights = rng.permutation(nodes)[:train], weight + weight.T if weighted else None
            found.append(make_view(nodes, joined, rng.integers(CLASSES, size=nodes), rows, CLASSES, x, weights))
        return found

    return make_views


def pairs(
    made: nn.Module, views: list[View], make_client: MakeClient, bfloat16: bool = False, sparse: bool = False
) -> Pair:
    """The same clients twice: on models of their own, and on one that serves all."""
    shared = FlatModel(copy.deepcopy(made), bfloat16, sparse)
    alone, batched = [], []
    for number, view in enumerate(views):
        info, random = make_client(view, copy.deepcopy(made)).info, partial(key, 0, 1, number)
        for clients, model in ((alone, FlatModel(copy.deepcopy(made), bfloat16, sparse)), (batched, shared)):
            clients.append(Client(info, view, {MODEL: ClientModel(model, view, random)}, {}, {}, random))
    return alone, batched, shared


def fit_alone(clients: list[Client], options: TrainOptions) -> list[float]:
    return [LocalTrainer({MODEL: client.model.flat}, options, Algorithm()).fit(client, {}) for client in clients]


def stacked(clients: list[Client]) -> Tensor:
    return torch.stack([client.model.w.clone() for client in clients])


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(("name", "optimizer", "sparse"), CASES)
def test_equals_the_loop_over_two_visits(
    name: str, optimizer: str, sparse: bool, make_views: Views, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sparse:
        whole = View.whole
        monkeypatch.setattr(View, "whole", lambda view, k: sparse_of(whole(view, k)))
    options = TrainOptions(epochs=3, **OPTIMIZERS[optimizer])
    views = make_views(weighted=name.startswith("gcn"))
    alone, batched, model = pairs(module(name), views, make_client, sparse=sparse)
    w_BP = stacked(alone)
    for _ in range(2):
        losses = fit_alone(alone, options)
        # As an evaluation leaves it.
        model.module.eval()
        assert BatchedTrainer(model, options).fit(batched, w_BP).tolist() == pytest.approx(losses, rel=1e-4)
        for client, twin, w in zip(alone, batched, w_BP):
            torch.testing.assert_close(w, client.model.w, rtol=1e-4, atol=1e-5)
            assert client.state.keys() == twin.state.keys()
            for entry, tensor in client.state.items():
                torch.testing.assert_close(twin.state[entry], tensor, rtol=1e-4, atol=1e-5)


def test_moments_that_are_reset_are_neither_kept_nor_used(make_views: Views, make_client: MakeClient) -> None:
    options = TrainOptions(epochs=2, opt_state="reset", **OPTIMIZERS["adam"])
    alone, batched, model = pairs(module("mlp"), make_views(), make_client)
    w_BP = stacked(alone)
    for _ in range(3):
        fit_alone(alone, options)
        BatchedTrainer(model, options).fit(batched, w_BP)
    torch.testing.assert_close(w_BP, stacked(alone), rtol=1e-4, atol=1e-5)
    assert all(client.state == {} for client in batched)


def test_a_newcomer_without_moments_trains_beside_others(make_views: Views, make_client: MakeClient) -> None:
    options = TrainOptions(epochs=2, **OPTIMIZERS["adam"])
    alone, batched, model = pairs(module("mlp"), make_views()[:3], make_client)
    w_BP = stacked(alone)
    trainer = BatchedTrainer(model, options)
    for present in (2, 1, 3):
        fit_alone(alone[:present], options)
        trainer.fit(batched[:present], w_BP[:present])
    torch.testing.assert_close(w_BP, stacked(alone), rtol=1e-4, atol=1e-5)
    assert [twin.state["model.opt.step"].item() for twin in batched] == [6, 4, 2]


def test_clients_draw_from_their_own_streams(make_views: Views, make_client: MakeClient) -> None:
    """Twice the same data and parameters: only the streams differ, and the default one is not read."""
    _, batched, model = pairs(module("mlp"), make_views()[:1] * 2, make_client)
    w_BP, state = model.w.detach().repeat(2, 1), torch.get_rng_state()
    BatchedTrainer(model, TrainOptions(epochs=1, **OPTIMIZERS["sgd"])).fit(batched, w_BP)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(w_BP[0], w_BP[1])


@pytest.mark.parametrize("name", ["sgc", "mlp"])
def test_bfloat16_is_that_of_the_loop(name: str, make_views: Views, make_client: MakeClient) -> None:
    """A step of SGD: nearer to the loop in bfloat16 than that is to float32."""
    options = TrainOptions(epochs=1, **OPTIMIZERS["sgd"])
    ends = {}
    for bfloat16 in (False, True):
        alone, batched, model = pairs(module(name), make_views(), make_client, bfloat16)
        w_BP = stacked(alone)
        losses = fit_alone(alone, options)
        assert BatchedTrainer(model, options).fit(batched, w_BP).tolist() == pytest.approx(losses, rel=1e-4)
        ends[bfloat16] = stacked(alone), w_BP
    rounding = (ends[True][0] - ends[False][0]).abs().max()
    assert rounding > 1e-5
    assert (ends[True][1] - ends[True][0]).abs().max() < 0.5 * rounding


class Own(Algorithm):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Tree) -> Tensor:
        return out.logits_NC.sum()


class OwnTerm(FPL):
    def loss(self, out: Output, y: Tensor, w: Tensor, received: Any) -> Tensor:
        return super().loss(out, y, w, received) + w.square().sum()


class SameTerm(FPL):
    def receive(self, client: Client, down: Tree) -> Any:
        return super().receive(client, down)


@pytest.mark.parametrize(
    ("name", "options", "method", "train", "missing"),
    [
        ("mlp", {}, Algorithm, {}, None),
        ("gcn", {}, Algorithm, {}, None),
        ("gcn", {"norm": "batch"}, Algorithm, {}, "a decoupled model"),
        ("gcn", {"fanouts": [2, 2]}, Algorithm, {}, "a decoupled model"),
        ("gat", {}, Algorithm, {}, "a decoupled model"),
        ("transformer", {}, Algorithm, {}, "a decoupled model"),
        ("mlp", {}, Algorithm, {"batch_size": 4}, "whole batches (train.batch_size: null)"),
        ("mlp", {}, Own, {}, "a method of cross-entropy and means over training rows, which Own is not"),
        ("mlp", {}, MOON, {}, None),
        ("mlp", {}, FPL, {}, None),
        ("gcn", {}, FedProto, {}, None),
        ("mlp", {}, FedPG, {}, None),
        ("gcn", {}, FedPG, {}, "a decoupled model (one that reads hops, such as sgc), as FedPG reads further rows"),
        ("mlp", {}, partial(FedPG, alignment="prototype"), {}, "a method of cross-entropy and means"),
        ("mlp", {}, partial(FedPG, cross_entropy="sum"), {}, "a method of cross-entropy and means"),
        ("mlp", {}, partial(MOON, rows="all"), {}, "a method of cross-entropy and means"),
        ("mlp", {}, OwnTerm, {}, "a method of cross-entropy and means"),
        ("mlp", {}, FedGLMOON, {}, "a method of cross-entropy and means"),
        ("mlp", {}, SameTerm, {}, None),
    ],
)
def test_needed_to_batch_names_what_is_missing(
    name: str, options: dict[str, Any], method: Callable[[], Algorithm], train: dict[str, Any], missing: str | None
) -> None:
    model = FlatModel(build(name, FEATURES, CLASSES, 0, 0.0, options))
    found = needed_to_batch(method(), model, TrainOptions(**train))
    assert found is None if missing is None else found is not None and found.startswith(missing)


def test_products_of_joined_matrices() -> None:
    """Of matrices that are not their own transposes, with gradients."""
    draws = torch.Generator().manual_seed(0)
    shapes = (3, 4), (1, 1), (2, 3)
    dense = [torch.randn(shape, generator=draws) * (torch.rand(shape, generator=draws) < 0.5) for shape in shapes]
    x_BNH = torch.randn(3, 4, 2, generator=draws).requires_grad_()
    joined = JoinedMatrices([SparseMatrix(matrix.to_sparse_csr()) for matrix in dense])
    out_BNH = torch.vmap(lambda x: joined @ x)(x_BNH)
    weight_BNH = torch.randn(3, 3, 2, generator=draws)
    (out_BNH * weight_BNH).sum().backward()
    assert x_BNH.grad is not None
    for matrix, x_NH, out_NH, w_NH, gradient_NH in zip(dense, x_BNH.detach(), out_BNH, weight_BNH, x_BNH.grad):
        n, m = matrix.shape
        torch.testing.assert_close(out_NH[:n], matrix @ x_NH[:m])
        torch.testing.assert_close(gradient_NH[:m], matrix.T @ w_NH[:n])
        assert not out_NH[n:].any()
        assert not gradient_NH[m:].any()
    with pytest.raises(RuntimeError, match="expected batched clients"):
        _ = joined @ x_BNH[0]


def test_what_a_row_takes() -> None:
    """What is read three times, and six numbers for what each layer computes."""
    x_NF = torch.ones(5, FEATURES)
    assert numbers_of_row([x_NF, x_NF], None) == (5, 3 * 2 * FEATURES)
    gcn = FlatModel(build("gcn", FEATURES, CLASSES, 0, 0.0, {"hidden": 8, "layers": 3})).coupled
    assert numbers_of_row(Neighbourhood(x_NF, ()), gcn) == (5, 3 * FEATURES + 6 * 3 * 8)


# A colder contrast makes roundings a hundred times as large.
OF_ROWS: list[dict[str, Any]] = [
    {"algorithm.name": "moon"},
    {"algorithm": {"name": "fpl", "tau": 0.2, "cluster_from": 1}},
    {"algorithm": {"name": "fpl", "cpcl": 0.0}},
    {"algorithm": {"name": "fpl", "tau": 0.2, "upcr": 0.0}},
    {"algorithm.name": "fedproto"},
    {"algorithm.name": "fedproto_averaged"},
    {"algorithm": {"name": "fedtgp", "server_steps": 5}},
]


OF_FURTHER_ROWS: list[dict[str, Any]] = [
    {"algorithm.mu": 2.0},
    {"algorithm.hops": 0},
    {"algorithm.embedding": "raw", "algorithm.mu": 0.1},
    {"algorithm.targets": "own"},
    {"algorithm.pseudo_centres": 0.3},
]


@pytest.mark.parametrize("keys", OF_ROWS, ids=lambda keys: "-".join(map(str, keys.values())))
@pytest.mark.parametrize("model", ["sgc", "gcn"])
def test_terms_of_training_rows(run: Start, keys: dict[str, Any], model: str) -> None:
    """Some clients have a term and some have none: MOON's are without at their first visit."""
    keys = {**keys, "model.name": model, "train.optimizer": "sgd", "train.lr": 0.1, "train.dropout": 0.3}
    keys |= {"participation.ratio": 0.7, "engine.cell_size": 4}
    loop, batched = (run({**keys, "engine.trainer": trainer}, rounds=4) for trainer in ("autograd", "batched"))
    require_close_runs(loop, batched, rtol=1e-5, atol=2e-6)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("keys", OF_FURTHER_ROWS, ids=lambda keys: "-".join(map(str, keys)))
@pytest.mark.parametrize("model", ["mlp", "sign"])
def test_terms_of_further_rows(run: Start, keys: dict[str, Any], model: str) -> None:
    """No client has a term in the first round; there is a client without training rows, and one with a single node."""
    keys = {"algorithm.name": "fedpg", "algorithm.server_steps": 3, **keys, "model.name": model}
    keys |= {"train.optimizer": "sgd", "train.lr": 0.1, "train.dropout": 0.3}
    keys |= {"participation.ratio": 0.7, "engine.cell_size": 4}
    loop, batched = (run({**keys, "engine.trainer": trainer}, rounds=4) for trainer in ("autograd", "batched"))
    require_close_runs(loop, batched, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    "keys", [{"algorithm.name": name} for name in ("fedavg", "fedgta", "local")] + [{"model.name": "gcn"}]
)
def test_whole_runs(run: Start, keys: dict[str, Any]) -> None:
    """Clients that come and go, one without training rows among them, in cells of four."""
    keys = {**keys, "train.dropout": 0.3, "participation.ratio": 0.7, "engine.cell_size": 4}
    loop, batched = (run({**keys, "engine.trainer": trainer}, rounds=4) for trainer in ("autograd", "batched"))
    require_close_runs(loop, batched, rtol=1e-3, atol=1e-4)


def test_a_client_that_fails_is_named(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ClientModel.load

    def load(model: ClientModel, w: Tensor) -> None:
        if model.data.client == 2:
            raise RuntimeError("no luck")
        receive(model, w)

    monkeypatch.setattr(ClientModel, "load", load)
    with refused("round 1, client 2", says="RuntimeError: no luck"):
        start({"engine.trainer": "batched"}).round()
    line = start({"engine.trainer": "batched", "engine.on_client_error": "skip"}).round()
    assert line["cohort"] == [0, 1, 3, 4, 5]


def test_a_batch_that_fails_is_the_failure_of_all_in_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(self: BatchedTrainer, *received: Any) -> Tensor:
        self.stepped = True
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(BatchedTrainer, "fit", fit)
    with refused("round 1, client 0", says="OutOfMemoryError: no memory"):
        start({"engine.trainer": "batched", "engine.cell_size": 3}).round()
