"""Stacked training beside the loop: the same numbers to rounding, for clients of different sizes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.adapted import Adapted
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_training import BatchedTrainer, needed_to_batch
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.01},
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "momentum": {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
}


def module(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    return build(name, 4, 3, 0, 0.5, options)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "sgc": lambda: module("sgc"),
    "mlp": lambda: module("mlp", hidden=8, layers=3),
    "mlp, embedding not dropped": lambda: module("mlp", hidden=8, layers=3, head_dropout=False),
    "adapted": lambda: Adapted(module("mlp", hidden=6), 3, 3, 0.4),
    "s2gc": lambda: module("s2gc"),
    "gbp": lambda: module("gbp", hidden=8, layers=3),
    "sign": lambda: module("sign", hidden=6),
    "sign, three layers": lambda: module("sign", hidden=6, layers=2),
    "sign, embedding not dropped": lambda: module("sign", hidden=6, head_dropout=False),
    **{
        f"gamlp {kind}": lambda kind=kind: module("gamlp", hidden=8, attention=kind)  # type: ignore[misc]
        for kind in ("simple", "gate", "ori_ref", "jk", "recursive")
    },
}


@pytest.fixture
def views(make_view: Callable[..., View]) -> list[View]:
    rng = np.random.default_rng(0)
    sizes = {12: 7, 20: 1, 9: 9}
    return [
        make_view(n, [], rng.integers(3, size=n), range(train), 3, rng.standard_normal((n, 4)).astype(np.float32))
        for n, train in sizes.items()
    ]


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODULES)
def test_equals_the_loop_over_two_visits(
    name: str, optimizer: str, views: list[View], make_client: Callable[..., Client]
) -> None:
    options = TrainOptions(epochs=3, **{"weight_decay": 0.0, **OPTIMIZERS[optimizer]})
    made = MODULES[name]()
    alone = [make_client(view, copy.deepcopy(made)) for view in views]
    model = FlatModel(copy.deepcopy(made))
    stacked = [
        Client(client.info, view, {MODEL: ClientModel(model, view, client.random)}, {}, {}, client.random)
        for client, view in zip(alone, views)
    ]
    w_BP = torch.stack([client.model.w.clone() for client in alone])
    for _ in range(2):
        losses = [LocalTrainer({MODEL: client.model.flat}, options, Algorithm()).fit(client, {}) for client in alone]
        # As an evaluation leaves it.
        model.module.eval()
        assert BatchedTrainer(model, options).fit(stacked, w_BP).tolist() == pytest.approx(losses, rel=1e-4)
        for client, twin, w in zip(alone, stacked, w_BP):
            torch.testing.assert_close(w, client.model.w, rtol=1e-4, atol=1e-5)
            assert client.state.keys() == twin.state.keys()
            for entry, tensor in client.state.items():
                torch.testing.assert_close(twin.state[entry], tensor, rtol=1e-4, atol=1e-5)


Pair = tuple[list[Client], list[Client], FlatModel]


def side_by_side(
    made: nn.Module, views: list[View], make_client: Callable[..., Client], bfloat16: bool = False
) -> Pair:
    """The same clients twice: on models of their own, and on one that serves all."""
    flats = [FlatModel(copy.deepcopy(made), bfloat16) for _ in views]
    shared = FlatModel(copy.deepcopy(made), bfloat16)
    alone, stacked = [], []
    for number, (view, flat) in enumerate(zip(views, flats)):
        client = make_client(view, copy.deepcopy(made))
        random = partial(key, 0, 1, number)
        for clients, model in ((alone, flat), (stacked, shared)):
            own = {MODEL: ClientModel(model, view, random)}
            clients.append(Client(client.info, view, own, {}, {}, random))
    return alone, stacked, shared


def fit_alone(clients: list[Client], options: TrainOptions) -> list[float]:
    return [LocalTrainer({MODEL: client.model.flat}, options, Algorithm()).fit(client, {}) for client in clients]


def test_moments_that_are_reset_are_neither_kept_nor_used(
    views: list[View], make_client: Callable[..., Client]
) -> None:
    options = TrainOptions(epochs=2, opt_state="reset", **OPTIMIZERS["adam"])
    alone, stacked, model = side_by_side(MODULES["mlp"](), views, make_client)
    w_BP = torch.stack([client.model.w.clone() for client in alone])
    for _ in range(3):
        fit_alone(alone, options)
        BatchedTrainer(model, options).fit(stacked, w_BP)
        for client, twin, w in zip(alone, stacked, w_BP):
            torch.testing.assert_close(w, client.model.w, rtol=1e-4, atol=1e-5)
            assert twin.state == {}


def test_a_newcomer_without_moments_trains_beside_those_that_have_some(
    views: list[View], make_client: Callable[..., Client]
) -> None:
    options = TrainOptions(epochs=2, **OPTIMIZERS["adam"])
    alone, stacked, model = side_by_side(MODULES["mlp"](), views, make_client)
    w_BP = torch.stack([client.model.w.clone() for client in alone])
    trainer = BatchedTrainer(model, options)
    for present in (2, 1, 3):
        fit_alone(alone[:present], options)
        trainer.fit(stacked[:present], w_BP[:present])
    for client, twin, w, steps in zip(alone, stacked, w_BP, (6, 4, 2)):
        torch.testing.assert_close(w, client.model.w, rtol=1e-4, atol=1e-5)
        assert twin.state["model.opt.step"].item() == steps


def test_clients_draw_from_their_own_streams(views: list[View], make_client: Callable[..., Client]) -> None:
    """Twice the same data and parameters: only the streams differ, and the default one is not read."""
    options = TrainOptions(epochs=1, **OPTIMIZERS["sgd"])
    _, stacked, model = side_by_side(MODULES["mlp"](), [views[0]] * 2, make_client)
    w_BP = model.w.detach().repeat(2, 1)
    state = torch.get_rng_state()
    BatchedTrainer(model, options).fit(stacked, w_BP)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(w_BP[0], w_BP[1])


def test_a_label_of_any_number_is_learnt(make_view: Callable[..., View], make_client: Callable[..., Client]) -> None:
    """Padded rows have no label; what stands for none is the label of nobody."""
    rng = np.random.default_rng(0)
    label = [0, 99, 100, 101, 119]
    views = [make_view(n, [], label[:n], range(n), 120, rng.standard_normal((n, 4)).astype(np.float32)) for n in (5, 3)]
    torch.manual_seed(0)
    options = TrainOptions(epochs=2, **OPTIMIZERS["sgd"])
    alone, stacked, model = side_by_side(build("sgc", 4, 120, 0, 0.0, {}), views, make_client)
    w_BP = torch.stack([client.model.w.clone() for client in alone])
    assert BatchedTrainer(model, options).fit(stacked, w_BP).tolist() == pytest.approx(
        fit_alone(alone, options), rel=1e-4
    )
    for client, w in zip(alone, w_BP):
        torch.testing.assert_close(w, client.model.w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sgc", "mlp"])
def test_bfloat16_is_that_of_the_loop(name: str, views: list[View], make_client: Callable[..., Client]) -> None:
    """A step of SGD: nearer to the loop in bfloat16 than that is to float32 (what is fused rounds elsewhere)."""
    options = TrainOptions(epochs=1, weight_decay=0.0, **OPTIMIZERS["sgd"])
    made = MODULES[name]()
    ends = {}
    for bfloat16 in (False, True):
        alone, stacked, model = side_by_side(made, views, make_client, bfloat16)
        w_BP = torch.stack([client.model.w.clone() for client in alone])
        losses = fit_alone(alone, options)
        found = BatchedTrainer(model, options).fit(stacked, w_BP)
        assert found == pytest.approx(losses, rel=1e-4)
        ends[bfloat16] = torch.stack([client.model.w.clone() for client in alone]), w_BP
    rounding = (ends[True][0] - ends[False][0]).abs().max()
    assert rounding > 1e-5
    assert (ends[True][1] - ends[True][0]).abs().max() < 0.5 * rounding


def test_what_is_missing_to_train_in_one_batch_is_said() -> None:
    class Own(Algorithm):
        def loss(self, out: Output, y: Tensor, w: Tensor, received: Tree) -> Tensor:
            return out.logits_NC.sum()

    rows, edges = (FlatModel(build(name, 4, 3, 0, 0.0, {})) for name in ("mlp", "gcn"))
    whole, batch = TrainOptions(), TrainOptions(batch_size=4)
    assert needed_to_batch(Algorithm(), rows, whole) is None
    assert needed_to_batch(Algorithm(), edges, whole) is None
    assert needed_to_batch(Algorithm(), rows, batch) == "whole batches (train.batch_size: null)"
    assert needed_to_batch(Own(), rows, whole) == "a method of plain cross-entropy, which Own is not"


@pytest.mark.parametrize("method", ["fedavg", "fedgta", "local"])
def test_whole_runs(run: Callable[..., Server], method: str) -> None:
    """Clients that come and go, one without training rows among them, in cells of four."""
    keys = {"algorithm.name": method, "train.dropout": 0.3, "participation.ratio": 0.7, "engine.cell_size": 4}
    loop, stacked = run(keys), run({**keys, "engine.trainer": "batched"})
    assert loop.state.server.keys() == stacked.state.server.keys()
    for name, tensor in loop.state.server.items():
        torch.testing.assert_close(stacked.state.server[name], tensor, rtol=1e-3, atol=1e-4)
    for i, state in loop.state.clients.items():
        for name, tensor in state.items():
            torch.testing.assert_close(stacked.state.clients[i][name], tensor, rtol=1e-3, atol=1e-4)


def test_a_client_that_fails_is_named(start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    receive = ClientModel.load

    def load(model: ClientModel, w: Tensor) -> None:
        if model.data.client == 2:
            raise RuntimeError("no luck")
        receive(model, w)

    monkeypatch.setattr(ClientModel, "load", load)
    with pytest.raises(ShoalError, match="round 1, client 2: RuntimeError: no luck"):
        start({"engine.trainer": "batched"}).round()
    line = start({"engine.trainer": "batched", "engine.on_client_error": "skip"}).round()
    assert line["cohort"] == [0, 1, 3, 4, 5]


def test_a_batch_that_fails_is_the_failure_of_all_in_it(
    start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(self: BatchedTrainer, *received: Any) -> Tensor:
        self.stepped = True
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(BatchedTrainer, "fit", fit)
    line = (
        r"^round 1, client 0: in one batch with clients \[.*\]: OutOfMemoryError: no memory; .*smaller "
        r"engine.cell_size.*; engine.trainer=autograd trains them one by one$"
    )
    with pytest.raises(ShoalError, match=line):
        start({"engine.trainer": "batched", "engine.cell_size": 3}).round()
