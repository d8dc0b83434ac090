"""Approximations on small runs of FedAvg with a multilayer perceptron, against plain torch over whole rounds."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.small_runs import run_small
from torch import Tensor

from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.past.rewind import PastRun
from shoal.storage.shards.view import Cache
from shoal.unlearning.approximations import FedEraser, FineTune, ForgettingHead, GradientAscent
from shoal.unlearning.removal import Removal, remove_class, remove_clients
from shoal.unlearning.rest import Approximation, History, Rest
from shoal.unlearning.retraining import Retraining
from shoal.unlearning.scoring import Scorer

HIDDEN, FEATURES, CLASSES, ROUNDS, EPOCHS, LR = 5, 8, 3, 5, 4, 0.2
CLIENT, CLASS = 1, 2


class Plain:
    """The clients of a run as arrays, and FedAvg on them."""

    def __init__(self, run: Path) -> None:
        job = PastRun(run).job
        store = job.open_store()
        views = [job.view(store, client, Cache(0)) for client in range(store.clients)]
        self.size = [view.nodes for view in views]
        self.x = [torch.as_tensor(view.x)[view.train].double() for view in views]
        self.y = [view.label[view.train] for view in views]
        # Class 2 is all that some clients have.
        assert any((y == CLASS).all() for y in self.y)
        flat = job.build_models(store, job.algorithm())[MODEL][0].flat
        self.first = flat.initial(key(0, "init")).double()
        self.drawn = [flat.initial(key(0, "unlearn", MODEL, n)).double() for n in range(10)]

    def loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        first, bias, last, end = w.split([HIDDEN * FEATURES, HIDDEN, CLASSES * HIDDEN, CLASSES])
        hidden = F.relu(x @ first.view(HIDDEN, FEATURES).T + bias)
        return F.cross_entropy(hidden @ last.view(CLASSES, HIDDEN).T + end, y)

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
        free = w.clone().requires_grad_()
        loss = self.loss(free, x, y)
        return loss.item(), torch.autograd.grad(loss, free)[0]

    def local(self, w: Tensor, client: int, epochs: int = EPOCHS, without: int | None = None) -> Tensor:
        keep = self.left(client, without)
        for _ in range(epochs):
            w = w - LR * self.gradient(w, self.x[client][keep], self.y[client][keep])[1]
        return w

    def left(self, client: int, without: int | None) -> Tensor:
        return self.y[client] != (-1 if without is None else without)

    def training(self, clients: list[int], without: int | None) -> list[int]:
        """Those of some clients that have items left."""
        return [i for i in clients if self.left(i, without).any()]

    def mean(self, models: dict[int, Tensor]) -> Tensor:
        return sum((self.size[i] * w for i, w in models.items()), torch.zeros(1)) / sum(self.size[i] for i in models)

    def round(self, w: Tensor, clients: list[int], without: int | None = None) -> Tensor:
        return self.mean({i: self.local(w, i, without=without) for i in self.training(clients, without)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    train = {"optimizer": "sgd", "lr": LR, "momentum": 0.0, "weight_decay": 0.0, "epochs": EPOCHS, "dropout": 0.0}
    keys = {"model": {"name": "mlp", "hidden": HIDDEN, "layers": 2}, "train": train, "rounds": ROUNDS}
    return run_small(tmp_path_factory.mktemp("approximations"), **keys)


@pytest.fixture(scope="module")
def plain(run: Path) -> Plain:
    return Plain(run)


@pytest.fixture(scope="module")
def every(plain: Plain) -> list[Tensor]:
    """The models before each round and after the last."""
    models = [plain.first]
    for _ in range(ROUNDS):
        models.append(plain.round(models[-1], [0, 1, 2, 3]))
    return models


def approximate(run: Path, method: Approximation, removal: Removal) -> tuple[Tensor, Rest]:
    retraining = Retraining(PastRun(run))
    scorer = Scorer(retraining.past, retraining.model(retraining.final))
    rest = Rest(retraining, removal, scorer.forgotten(removal), scorer.host, lambda: History(retraining))
    return method.unlearn(rest).double(), rest


@pytest.fixture(params=["client", "class"])
def case(request: pytest.FixtureRequest, run: Path) -> tuple[Removal, list[int], int | None]:
    """The removal, the clients of the rest, and the class that goes."""
    if request.param == "client":
        return remove_clients([CLIENT]), [0, 2, 3], None
    past = PastRun(run)
    return remove_class(past.store, past.config.data.split_name, CLASS), [0, 1, 2, 3], CLASS


Case = tuple[Removal, list[int], int | None]


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=2e-6)


def test_fine_tuning_goes_on_from_the_last_model_on_the_rest(
    run: Path, plain: Plain, every: list[Tensor], case: Case
) -> None:
    removal, clients, without = case
    found, rest = approximate(run, FineTune(2), removal)
    same(rest.model.double(), every[-1])
    w = every[-1]
    for _ in range(2):
        w = plain.round(w, clients, without)
    same(found, w)
    assert (rest.rounds, rest.visits) == (2, 2 * len(clients))
    assert approximate(run, FineTune(), removal)[1].rounds == 1


@pytest.mark.parametrize(("steps", "lr"), [(3, 0.05), (200, 0.2), (200, 5.0)])
def test_ascent_climbs_within_a_ball_until_nothing_is_known_and_then_trains(
    steps: int, lr: float, run: Path, plain: Plain, every: list[Tensor], case: Case
) -> None:
    removal, clients, without = case
    found, rest = approximate(run, GradientAscent(1, steps, lr, 1.0), removal)
    reference, forgotten = every[-1], [i for i in range(4) if (plain.y[i] == CLASS).any()]
    if without is None:
        reference, forgotten = plain.mean({i: plain.local(every[-2], i) for i in clients}), [CLIENT]
    radius = sum(float((w - reference).norm()) for w in plain.drawn) / 10 / 3
    climbed, counts = [], []
    for client in forgotten:
        keep = torch.ones(len(plain.y[client]), dtype=torch.bool) if without is None else plain.y[client] == without
        w = reference
        for _ in range(steps):
            loss, gradient = plain.gradient(w, plain.x[client][keep], plain.y[client][keep])
            if loss >= math.log(CLASSES):
                break
            w = w + lr * gradient / max(1.0, float(gradient.norm()))
            if (away := float((w - reference).norm())) > radius:
                w = reference + (w - reference) * radius / away
        climbed.append(w * int(keep.sum()))
        counts.append(int(keep.sum()))
    start = sum(climbed, torch.zeros(1)) / sum(counts)
    same(found, plain.round(start, clients, without))
    assert (rest.rounds, rest.visits) == (1, len(clients) + len(forgotten))


@pytest.mark.parametrize("every_round", [1, 2])
def test_federaser_has_recorded_norms_in_directions_of_the_rest(
    every_round: int, run: Path, plain: Plain, every: list[Tensor], case: Case
) -> None:
    removal, clients, without = case
    found, rest = approximate(run, FedEraser(every_round, 0.5), removal)
    w, rounds = plain.first, 0
    for number in range(1, ROUNDS + 1, every_round):
        training = plain.training(clients, without)
        recorded = {i: plain.local(every[number - 1], i) - every[number - 1] for i in training}
        changes = recorded
        if number > 1 or without is not None:
            own = {i: plain.local(w, i, EPOCHS // 2, without) - w for i in training}
            changes = {i: own[i] * float(recorded[i].norm() / own[i].norm()) for i in training}
            rounds += 1
        w = w + plain.mean(changes)
    same(found, w)
    assert (rest.rounds, rest.visits) == (rounds, rounds * len(clients))


def test_a_forgetting_head_is_drawn_anew_and_the_body_stays(
    run: Path, plain: Plain, every: list[Tensor], case: Case
) -> None:
    removal, clients, without = case
    found, rest = approximate(run, ForgettingHead(2), removal)
    body = HIDDEN * FEATURES + HIDDEN
    w = torch.cat([every[-1][:body], plain.drawn[0][body:]])
    for _ in range(2):
        w = torch.cat([every[-1][:body], plain.round(w, clients, without)[body:]])
    same(found, w)
    assert rest.rounds == 2
    assert not np.allclose(found[body:], every[-1][body:], atol=1e-3)
