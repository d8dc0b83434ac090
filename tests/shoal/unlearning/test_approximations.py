"""Approximations on small runs of FedAvg with a multilayer perceptron, against plain torch over whole rounds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refused
from support.plain_fedavg import dense_sgc
from support.small_runs import run_small
from support.user_graph import user_graph
from torch import Tensor

from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.past.rewind import PastRun
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED
from shoal.storage.shards.view import Cache
from shoal.unlearning.approximations import (
    Ball,
    FedEraser,
    FineTune,
    ForgettingHead,
    GradientAscent,
    OrthogonalAscent,
    climb,
    make_orthogonal,
)
from shoal.unlearning.removal import Removal, remove_class, remove_clients, remove_nodes
from shoal.unlearning.rest import Approximation, History, Rest
from shoal.unlearning.retraining import Retraining
from shoal.unlearning.scoring import Scorer
from shoal.unlearning.targets import Asked
from shoal.unlearning.unlearn import unlearn

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

    def of_rest(self, w: Tensor, clients: list[int], without: int | None) -> tuple[float, Tensor]:
        """Loss and gradient of all training items of the rest in one batch."""
        keep = {i: self.left(i, without) for i in clients}
        return self.gradient(w, *(torch.cat([t[i][keep[i]] for i in clients]) for t in (self.x, self.y)))

    def of_forgotten(self, client: int, without: int | None) -> tuple[Tensor, Tensor]:
        gone = torch.ones(len(self.y[client]), dtype=torch.bool) if without is None else self.y[client] == without
        return self.x[client][gone], self.y[client][gone]

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


def rest_of(run: Path, removal: Removal) -> Rest:
    retraining = Retraining(PastRun(run))
    scorer = Scorer(retraining.past, retraining.model(retraining.final))
    return Rest(retraining, removal, scorer.forgotten(removal), scorer.host, lambda: History(retraining))


def approximate(run: Path, method: Approximation, removal: Removal) -> tuple[Tensor, Rest]:
    rest = rest_of(run, removal)
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


def without_part(gradient: Tensor, other: Tensor) -> Tensor:
    """The residual of the least squares of one vector by another."""
    a, b = other.numpy()[:, None], gradient.numpy()
    return torch.from_numpy(b - a @ np.linalg.lstsq(a, b, rcond=None)[0])


@pytest.mark.parametrize(
    ("climbs", "steps", "lr"), [(1, 3, 0.05), (6, 3, 0.05), (200, 1, 0.05), (200, 50, 0.5), (4, 50, 5.0)]
)
def test_an_orthogonal_ascent_takes_the_gradient_of_the_rest_in_every_phase(
    climbs: int, steps: int, lr: float, run: Path, plain: Plain, every: list[Tensor], case: Case
) -> None:
    removal, clients, without = case
    found, rest = approximate(run, OrthogonalAscent(1, climbs, steps, lr, 1.0), removal)
    centre, forgotten = every[-1], [CLIENT] if without is None else [i for i in range(4) if (plain.y[i] == CLASS).any()]
    radius = sum(float((w - centre).norm()) for w in plain.drawn) / 10 / 3
    begin, phases = centre, 0
    for _ in range(climbs):
        other = plain.of_rest(begin, clients, without)[1]
        climbed, known, counts = torch.zeros(1), 0.0, 0
        for client in forgotten:
            w, items = begin, plain.of_forgotten(client, without)
            known += len(items[1]) * plain.gradient(begin, *items)[0]
            for _ in range(steps):
                loss, gradient = plain.gradient(w, *items)
                if loss >= math.log(CLASSES):
                    break
                gradient = without_part(gradient, other)
                w = w + lr * gradient / max(1.0, float(gradient.norm()))
                if (away := float((w - centre).norm())) > radius:
                    w = centre + (w - centre) * radius / away
            climbed, counts = climbed + w * len(items[1]), counts + len(items[1])
        phases += 1
        if known / counts >= math.log(CLASSES):
            break
        begin = climbed / counts
    # Of two hundred phases the last is that which finds that nothing is known.
    assert climbs < 200 or 1 < phases < climbs
    same(found, plain.round(begin, clients, without))
    visits = phases * (len(plain.training(clients, without)) + len(forgotten))
    assert (rest.rounds, rest.visits) == (phases + 1, visits + len(clients))


def test_steps_are_orthogonal_to_the_gradient_of_the_rest_whose_loss_stays(run: Path, plain: Plain, case: Case) -> None:
    removal, clients, without = case
    rest = rest_of(run, removal)
    # Only a step: the change of the loss of the rest is that of the second order.
    options, centre = OrthogonalAscent(1, 1, 1, 0.05, 1.0), rest.model
    ball = Ball.around(centre, rest)
    other = rest.gradient_of_rest(centre)
    loss, expected = plain.of_rest(centre.double(), clients, without)
    torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-7)
    step, plainly = (climb(rest, centre, ball, options, g)[0] - centre for g in (other, None))
    angle = float(step.double() @ expected) / float(step.double().norm() * expected.norm())
    assert abs(angle) < 1e-5
    assert abs(float(plainly.double() @ expected) / float(plainly.double().norm() * expected.norm())) > 1e-2
    changes = [abs(plain.of_rest((centre + by).double(), clients, without)[0] - loss) for by in (step, plainly)]
    assert changes[0] < changes[1] / 3
    of_all = [torch.cat(parts) for parts in zip(*(plain.of_forgotten(i, without) for i in rest.forgotten))]
    assert plain.gradient((centre + step).double(), *of_all)[0] > plain.gradient(centre.double(), *of_all)[0] + 1e-4


vectors = st.lists(st.floats(-1e3, 1e3, width=32, allow_subnormal=False), min_size=3, max_size=3)


@given(vectors, vectors)
def test_what_is_orthogonal_is_shorter_and_stays_so(first: list[float], second: list[float]) -> None:
    gradient, other = (torch.tensor(values) for values in (first, second))
    left = make_orthogonal(gradient, other)
    bound = 1e-6 * float(gradient.double().norm())
    assert abs(float(left.double() @ other.double())) <= bound * float(other.double().norm()) + 1e-30
    assert float(left.double().norm()) <= float(gradient.double().norm()) * (1 + 1e-6)
    torch.testing.assert_close(make_orthogonal(left, other), left, rtol=1e-5, atol=bound + 1e-30)
    # A length of the other does not matter.
    torch.testing.assert_close(make_orthogonal(gradient, 1e-12 * other.double()), left, rtol=1e-4, atol=bound + 1e-30)


def test_of_equal_gradients_and_of_none_no_number_breaks() -> None:
    gradient = torch.tensor([0.3, -2.0, 1e-20])
    assert torch.equal(make_orthogonal(gradient, torch.zeros(3, dtype=torch.float64)), gradient)
    assert float(make_orthogonal(gradient, -7 * gradient).norm()) < 1e-6
    assert torch.equal(make_orthogonal(torch.zeros(3), gradient), torch.zeros(3))


NODES, CLIENTS = 48, 3


def made(folder: Path, code: np.ndarray, clients: int = CLIENTS, **keys: Any) -> tuple[Path, dict[str, np.ndarray]]:
    """A run of SGC with a hop on a drawn graph, whose node n is at client n % clients, and the graph."""
    rng = np.random.default_rng(3)
    edges = np.unique(np.sort(rng.integers(NODES // clients, size=(2, 12)), axis=0), axis=1)
    edges = np.concatenate([edges * clients + client for client in range(clients)], axis=1)
    arrays = {"edge_index": edges[:, edges[0] != edges[1]], "x": rng.standard_normal((NODES, 4)).astype(np.float32)}
    arrays["y"] = arrays["x"][:, :3].argmax(1)
    place = np.arange(NODES) % clients
    path = user_graph(folder, NODES, assignment=place, split=code.astype(np.int8), **arrays)
    data = {"dataset": "files", "path": path, "split": "public", "options": {}}
    plain = {"data": data, "partition": {"method": "file", "clients": clients}, "propagation": {"hops": 2}}
    train = {"optimizer": "sgd", "lr": 0.3, "weight_decay": 0.0, "epochs": 1, "dropout": 0.0}
    return run_small(folder, **plain, train=train, **keys), {**arrays, "place": place, "code": code}


def by_hand(
    graph: dict[str, np.ndarray], w: Tensor, clients: list[int], gone: tuple[int, ...] = ()
) -> tuple[float, np.ndarray]:
    """Mean loss of the training items of some clients, on their subgraphs without some nodes, and its gradient."""
    keep = ~np.isin(graph["edge_index"], gone).any(0)
    x = graph["x"].astype(np.float64).copy()
    x[list(gone)] = 0
    train = (graph["code"] == TRAIN) & np.isin(graph["place"], clients) & ~np.isin(np.arange(NODES), gone)
    # No edge is between clients, so that the hops of the whole graph are theirs.
    edges = graph["edge_index"][:, keep].T
    hops = np.stack([dense_sgc(edges, x, np.eye(15)[i], 3)[:, 0] for i in range(4)], axis=1)
    logits = dense_sgc(edges, x, w.double().numpy(), 3)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    error = (p - np.eye(3)[graph["y"]])[train] / max(train.sum(), 1)
    loss = -np.log(p[np.arange(NODES), graph["y"]])[train].sum() / max(train.sum(), 1)
    return float(loss), np.concatenate([(error.T @ hops[train]).ravel(), error.sum(0)])


def test_the_gradient_of_the_rest_sees_nothing_of_nodes_that_go_and_no_client_without_items(tmp_path: Path) -> None:
    code = np.where(np.arange(NODES) % 4 == 3, TEST, TRAIN)
    # Client 2 has no training item from the start, and client 0 loses all of its own.
    code[np.arange(NODES) % CLIENTS == 2] = TEST
    whole, graph = made(tmp_path, code)
    past = PastRun(whole)
    all_of_0 = tuple(np.flatnonzero((code == TRAIN) & (np.arange(NODES) % CLIENTS == 0)).tolist())
    everything = tuple(np.flatnonzero(code == TRAIN).tolist())
    for gone, visits in (((4, 21, 9), 2), (all_of_0, 1), (everything, 0)):
        removal = remove_nodes(past.store, past.config.data.split_name, np.array(gone), "nodes")[0]
        rest = rest_of(whole, removal)
        found = rest.gradient_of_rest(rest.model)
        expected = by_hand(graph, rest.model, [0, 1], gone)[1]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert (rest.rounds, rest.visits) == (1, visits)
        assert bool(found.any()) == bool(visits)
    # With no rest, the ascent is plain.
    options = OrthogonalAscent(1, 1, 3)
    ball = Ball.around(rest.model, rest)
    assert torch.equal(climb(rest, rest.model, ball, options, found)[0], climb(rest, rest.model, ball, options)[0])


def test_where_as_much_is_forgotten_more_of_the_rest_stays_than_behind_plain_ascent(tmp_path: Path) -> None:
    # Longer training ends where both gradients are opposite, so that plain ascent helps the rest.
    whole, graph = made(tmp_path, np.where(np.arange(NODES) % 4 == 3, TEST, TRAIN), rounds=10)
    rest = rest_of(whole, remove_clients([0]))
    ball, options, known, lost = Ball(rest.model, math.inf), OrthogonalAscent(1, 1, 1), math.log(3), list[float]()
    for orthogonal in (True, False):
        w, steps = rest.model, 0
        while by_hand(graph, w, [0])[0] < known:
            other = rest.gradient_of_rest(w) if orthogonal else None
            w, steps = climb(rest, w, ball, options, other)[0], steps + 1
            assert steps < 2000
        lost.append(by_hand(graph, w, [1, 2])[0] - by_hand(graph, rest.model, [1, 2])[0])
    assert by_hand(graph, rest.model, [0])[0] < known
    assert 0 < lost[0] < lost[1] / 5


def test_a_rest_of_one_client_is_enough_and_a_client_without_items_is_refused(tmp_path: Path) -> None:
    code = np.where(np.arange(NODES) % 4 == 3, TEST, TRAIN)
    code[np.arange(NODES) % CLIENTS == 2] = UNASSIGNED
    code[5] = TEST
    whole, graph = made(tmp_path, code)
    rest = rest_of(whole, remove_clients([0]))
    expected = by_hand(graph, rest.model, [1])[1]
    np.testing.assert_allclose(rest.gradient_of_rest(rest.model), expected, rtol=1e-4, atol=1e-6)
    found = unlearn([PastRun(whole)], Asked(client="0"), "orthogonal_ascent").scored[-1]
    assert found.model == "orthogonal_ascent"
    assert all(number is None or math.isfinite(number) for number in vars(found.figures).values())
    nothing = rest_of(whole, remove_clients([2]))
    assert nothing.forgotten == ()
    with refused("--methods", says="orthogonal_ascent climbs"):
        OrthogonalAscent().unlearn(nothing)
    # A command says so, and goes on.
    done = unlearn([PastRun(whole)], Asked(edges="-".join(map(str, graph["edge_index"][:, 0]))), "orthogonal_ascent")
    assert [each.model for each in done.scored] == ["exact", "original"]
    assert any("orthogonal_ascent" in note for note in done.notes)


def test_an_orthogonal_ascent_has_the_same_bits_again(run: Path, case: Case) -> None:
    first, again = (approximate(run, OrthogonalAscent(), case[0]) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert (first[1].rounds, first[1].visits) == (again[1].rounds, again[1].visits)
    assert not torch.equal(first[0], approximate(run, FineTune(1), case[0])[0])
