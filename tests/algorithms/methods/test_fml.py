"""FML and FedKD by hand on three nodes, and in whole rounds written out with two modules a client."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Check, Keys, Make, MakeClient, Start
from torch import Tensor, nn

from shoal.algorithms.base import Output, Tree, Upload
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.methods.fedkd import FedKD, projection
from shoal.algorithms.methods.fml import FML
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key, random_of
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.shards.view import View

ME = {"algorithm.name": "fml"}
# Of the copilot: SGC's 6 x 5 + 6 and 4 x 6 + 4.
P = 64

# What the two say of three nodes; node 0 is the one to train on, and of class 1.
OWN = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]])
COPILOT = torch.tensor([[0.2, 0.6, 0.2], [0.25, 0.5, 0.25], [0.3, 0.3, 0.4]])
TRUE = torch.tensor([0.0, 1.0, 0.0])


@pytest.fixture
def pair_of(pair_of_tables: MakeClient) -> Callable[[list[int]], Client]:
    return partial(pair_of_tables, own_NC=OWN, copilot_NC=COPILOT)


def step(method: FML, client: Client) -> tuple[float, Tensor, Tensor]:
    """The loss, and by how much a step of length one lowers the tables of both models, row by row of the nodes."""
    flats = {name: model.flat for name, model in client.models.items()}
    trainer = LocalTrainer(flats, TrainOptions(1, "sgd", 1.0, 0.0), method)
    before = [client.models[name].w.clone() for name in (MODEL, "copilot")]
    loss = method.train(client, {}, trainer, "train")
    after = [client.models[name].w for name in (MODEL, "copilot")]
    own, copilot = ((a - b)[:9].view(3, 3).t() for a, b in zip(before, after))
    return loss, own, copilot


def assert_rows(found: Tensor, *expected: Tensor) -> None:
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-6)


def test_alpha_one_still_teaches_the_copilot(pair_of: MakeClient) -> None:
    """alpha = 1: the own model is trained first, then teaches."""
    client = pair_of([0])
    loss, own, copilot = step(FML(alpha=1.0, beta=0.2), client)
    assert loss == pytest.approx(np.log(4), rel=1e-5)
    nothing = torch.zeros(3)
    assert_rows(own, OWN[0] - TRUE, nothing, nothing)
    pull = 0.8 / 3 * (COPILOT - client.model.logits().softmax(1))
    assert_rows(copilot, 0.2 * (COPILOT[0] - TRUE) + pull[0], pull[1], pull[2])


def mutual(method: FML, view: View, out: dict[str, Output]) -> dict[str, Tensor]:
    """Losses node by node."""
    losses = {}
    train = view.train.tolist()
    for learner, teacher, labels in (("model", "copilot", method.alpha), ("copilot", "model", method.beta)):
        student, said = out[learner].logits_NC.log_softmax(1), out[teacher].logits_NC.softmax(1)
        answered = train if method.rows == "train" else list(range(view.nodes))
        heard = [(p * (p.log() - q)).sum() for p, q in zip(said, student)]
        loss = (1 - labels) * torch.stack(heard).mean()
        if train:
            own = [-student[answered.index(i)][view.label[i]] for i in train]
            loss = loss + labels * torch.stack(own).mean()
        if train or labels < 1:
            losses[learner] = loss
    return losses


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("options", [{}, {"alpha": 0.8, "beta": 0.3, "rows": "train"}, {"alpha": 0.0, "beta": 1.0}])
def test_fml(start: Start, with_copilots: Keys, plain_pairs: Make, assert_holds: Check, options: Keys) -> None:
    """Half of all activations are dropped. Rounds 3 and 4 have a cohort of one, that of round 4 nothing to train on."""
    server = start({**with_copilots, **ME, **{f"algorithm.{name}": value for name, value in options.items()}})
    method, clients = FML(**options), plain_pairs(server)
    w = server.state.server["w"]
    assert torch.equal(w, server._build("copilot").w.detach())
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        sizes = []
        for i in cohort:
            pair = clients[i]
            pair.receive(w)
            trains = len(pair.y) or method.rows != "train"
            if trains:
                pair.train(number, method.rows, partial(mutual, method, pair.view))
            sizes.append(14 if len(pair.y) or (method.rows != "train" and method.beta < 1) else 0)
            held = server.state.clients[i]
            torch.testing.assert_close(held["copilot.w"], pair.copilot_w, rtol=1e-3, atol=1e-5)
            assert sum(".opt." in entry for entry in held) == 3 * sum(bool(o.state) for o in pair.optimizers.values())
        assert (line["bytes_up"], line["bytes_down"]) == (4 * (P + 1) * len(cohort), 4 * P * len(cohort))
        if sum(sizes):
            w = sum(size * clients[i].copilot_w for i, size in zip(cohort, sizes)) / sum(sizes)
            torch.testing.assert_close(server.state.server["w"], w, rtol=1e-3, atol=1e-5)
        else:
            assert torch.equal(server.state.server["w"], w)
        if len(cohort) == 1 and sum(sizes):
            # Times its weight, and divided by it.
            back = server.state.clients[cohort[0]]["copilot.w"]
            torch.testing.assert_close(server.state.server["w"], back, rtol=2e-7, atol=0)
        w = server.state.server["w"]
        assert_holds(server, clients)


KD_ME = {"algorithm.name": "fedkd"}
# Shapes of the copilot's parameters, and how many there are.
SHAPES = [(6, 5), (6,), (4, 6), (4,)]


def trainer_of(client: Client, options: TrainOptions) -> LocalTrainer:
    return LocalTrainer({name: model.flat for name, model in client.models.items()}, options, FedKD())


def kd_step(method: FedKD, client: Client, scale: float = 1.0) -> tuple[float, Tensor, Tensor, Tensor]:
    """The loss, and by how much a kd_step of length one lowers both tables and the projection, from `scale` * I."""
    client.state["projection"] = scale * torch.eye(3)
    before = [client.models[name].w.clone() for name in (MODEL, "copilot")]
    loss = method.train(client, {}, trainer_of(client, TrainOptions(1, "sgd", 1.0, 0.0)), "train")
    after = [client.models[name].w for name in (MODEL, "copilot")]
    own, copilot = ((a - b)[:9].view(3, 3).t() for a, b in zip(before, after))
    return loss, own, copilot, scale * torch.eye(3) - client.state["projection"]


def test_where_both_are_certain_the_loss_is_finite(pair_of_tables: MakeClient) -> None:
    """Cross-entropy is 0 to rounding, and nothing can be divided by it."""
    sure = torch.exp(torch.tensor([[0.0, 60.0, 0.0]] * 3))
    loss, own, copilot, _ = kd_step(FedKD(), pair_of_tables([0], sure, sure))
    assert loss == pytest.approx(0, abs=1e-6)
    assert own.abs().max() < 1e-6
    assert copilot.abs().max() < 1e-6


def with_widths(make_view: Make, make_client: MakeClient, own: int, copilot: int) -> Client:
    view = make_view(4, [(0, 1)], [0, 1, 0, 1], [0, 1], 2, np.eye(4, 5, dtype=np.float32))
    client = make_client(view, build("mlp", 5, 2, 0, 0.0, {"hidden": own}))
    flat = FlatModel(build("mlp", 5, 2, 0, 0.0, {"hidden": copilot}))
    second = ClientModel(flat, view, random_of(client.random, "copilot"))
    return Client(client.info, view, {MODEL: client.model, "copilot": second}, {}, {}, client.random)


@pytest.mark.parametrize("kept", ["keep", "reset"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_projection_s_steps(make_view: Make, make_client: MakeClient, optimizer: Any, kept: Any) -> None:
    """Two visits of two steps, by the optimizer of the config, on a loss of its own."""
    client = with_widths(make_view, make_client, 3, 3)
    momentum = 0.9 if optimizer == "sgd" else 0.0
    options = TrainOptions(2, optimizer, 0.05, 0.01, momentum, opt_state=kept)
    twin = nn.Parameter(torch.eye(3))
    plain: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "adam": lambda: torch.optim.Adam([twin], lr=0.05, weight_decay=0.01),
        "sgd": lambda: torch.optim.SGD([twin], lr=0.05, weight_decay=0.01, momentum=0.9),
    }
    theirs = plain[optimizer]()
    for _ in range(2):
        with projection(client, trainer_of(client, options)) as (w, ours):
            for _ in range(2):
                ours.zero_grad()
                (w**3).sum().backward()
                ours.step()
        theirs = plain[optimizer]() if kept == "reset" else theirs
        for _ in range(2):
            theirs.zero_grad()
            (twin**3).sum().backward()
            theirs.step()
        torch.testing.assert_close(client.state["projection"], twin.detach())
        assert not client.state["projection"].requires_grad
    moments = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "sgd": {"momentum_buffer"}}[optimizer]
    expected = {f"projection.opt.{moment}" for moment in moments} if kept == "keep" else set()
    assert set(client.state) == {"projection", *expected}


# Whole rounds


def low_rank(change: np.ndarray, energy: float) -> tuple[np.ndarray, int]:
    """A change as the other side has it, and the scalars that it takes, parameter by parameter."""
    rest, parts, scalars = np.asarray(change, dtype=np.float64), [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        part, rest = rest[:size].reshape(shape), rest[size:]
        if len(shape) == 2:
            left, s, right = np.linalg.svd(part, full_matrices=False)
            rank = next(r for r in range(len(s) + 1) if (s[:r] ** 2).sum() >= energy * (s**2).sum())
            if rank * (sum(shape) + 1) < size:
                part, size = (left[:, :rank] * s[:rank]) @ right[:rank], rank * (sum(shape) + 1)
        parts.append(part.reshape(-1))
        scalars += size
    return np.concatenate(parts), scalars


def taught(pair: Any, rows: str, w: Tensor, out: dict[str, Output]) -> dict[str, Tensor]:
    """Losses of mentor and mentee."""
    answered = pair.view.train.tolist() if rows == "train" else list(range(pair.view.nodes))
    own = [answered.index(i) for i in pair.view.train.tolist()]
    log_p = {name: o.logits_NC.log_softmax(1) for name, o in out.items()}
    label = {name: -torch.stack([p[i, c] for i, c in zip(own, pair.y.tolist())]).mean() for name, p in log_p.items()}
    both = (label["model"] + label["copilot"]).item()
    z_m, z_s = out["model"].embedding_NH, out["copilot"].embedding_NH
    distance = (z_m - torch.stack([w @ z for z in z_s])).square().sum() / z_m.numel()
    losses = {}
    for learner, teacher in (("model", "copilot"), ("copilot", "model")):
        heard = (log_p[teacher].exp() * (log_p[teacher] - log_p[learner])).sum() / len(answered)
        losses[learner] = label[learner] + heard / both + distance / both
    return losses


class PlainProjection:
    """W of one client, and Adam on it."""

    def __init__(self, number: int, round_number: int, rows: int, columns: int) -> None:
        if rows == columns:
            start = torch.eye(rows)
        else:
            random = torch.Generator().manual_seed(key(0, round_number, number, "projection"))
            bound = float(np.sqrt(6 / (rows + columns)))
            start = torch.empty(rows, columns).uniform_(-bound, bound, generator=random)
        self.w = nn.Parameter(start)
        self.adam = torch.optim.Adam([self.w], lr=0.05, weight_decay=0.01)
        self.gradient = torch.zeros(rows, columns)

    def before_steps(self, losses: dict[str, Tensor]) -> None:
        """Its gradient is the sum of those of both losses, with the parameters as they were when both answered."""
        self.adam.zero_grad()
        gradients = [torch.autograd.grad(loss, self.w, retain_graph=True)[0] for loss in losses.values()]
        self.w.grad = sum(gradients, start=torch.zeros(()))

    def train(self, pair: Any, round_number: int, rows: str) -> None:
        """Of pair and projection: the projection steps at the end of every epoch."""
        pending: list[bool] = []

        def losses(out: dict[str, Output]) -> dict[str, Tensor]:
            if pending:
                self.adam.step()
            pending.append(True)
            return taught(pair, rows, self.w, out)

        pair.train(round_number, rows, losses, self.before_steps)
        self.adam.step()


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model.hidden": 6, "algorithm.rows": "train", "algorithm.energy_start": 0.5, "algorithm.energy_end": 0.9},
        {"algorithm.energy_start": 1.0, "algorithm.energy_end": 1.0},
    ],
)
def test_fedkd(start: Start, with_copilots: Keys, plain_pairs: Make, assert_holds: Check, more: Keys) -> None:
    """Half of all activations are dropped; clients come and go, one has nothing to train on and is once alone."""
    server = start({**with_copilots, **KD_ME, **more})
    clients, projections = plain_pairs(server), dict[int, PlainProjection]()
    rows = more.get("algorithm.rows", "all")
    first, last = more.get("algorithm.energy_start", 0.95), more.get("algorithm.energy_end", 0.98)
    w, scalars, before = server.state.server["w"], 0, set[int]()
    for number in range(1, 8):
        line, cohort, changes, up = server.round(), server.cohort(number), [], 0
        energy = first + (last - first) * number / 7
        for i in cohort:
            pair, held = clients[i], server.state.clients[i]
            # Whether it was sent as a change or as a whole, it is what the server had.
            assert torch.equal(held["base"], w)
            pair.receive(w)
            if len(pair.y):
                own = projections.setdefault(i, PlainProjection(i, number, server._models["model"][0].width, 6))
                own.train(pair, number, rows)
                torch.testing.assert_close(held["projection"], own.w.detach(), rtol=1e-3, atol=1e-5)
                assert int(held["projection.opt.step"]) == int(held["model.opt.step"]) == int(held["copilot.opt.step"])
            torch.testing.assert_close(held["copilot.w"], pair.copilot_w, rtol=1e-3, atol=1e-5)
            change, size = low_rank((pair.copilot_w - w).numpy(), energy)
            up += 4 * (size + 1)
            if len(pair.y):
                changes.append(change)
        down = sum(4 + 4 * (scalars if i in before else P) for i in cohort)
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        # All have 14 nodes.
        change, scalars = low_rank(np.mean(changes, 0) if changes else np.zeros(P), energy)
        expected = w + torch.from_numpy(change).float()
        w, before = server.state.server["w"], set(cohort)
        torch.testing.assert_close(w, expected, rtol=1e-3, atol=1e-5)
        assert_holds(server, clients)


@dataclass(frozen=True)
class Failing(FedKD):
    """Client 2 fails whenever it is sent a change."""

    def upload(self, client: Client, received: Tree, phase: str) -> Upload:
        if client.info.client == 2 and "w" not in received:
            raise ValueError
        return super().upload(client, received, phase)


def test_server_and_clients_hold_the_same_to_the_bit(start: Start) -> None:
    """Who is sent changes, who comes back, and who failed, is as it was, and is then sent the whole."""
    more = {"engine.on_client_error": "skip", "participation.ratio": 0.84, "rounds": 8, "engine.cell_size": 2}
    server = start({"algorithm.name": f"{__file__}:Failing", **more})
    before, size, changes, failures = set[int](), 0, 0, 0
    for number in range(1, 9):
        held, w, cohort = dict(server.state.clients), server.state.server["w"], server.cohort(number)
        line = server.round()
        failed = {int(i) for i in line.get("failures", {})}
        assert failed == {2} & before & set(cohort)
        for i in cohort:
            assert torch.equal(server.state.clients[i]["base"], held[i]["base"] if i in failed else w)
        assert line["bytes_down"] == sum(4 + (size if i in before else 4 * len(w)) for i in cohort)
        changes, failures = changes + len(before & set(cohort) - failed), failures + len(failed)
        before = set(cohort) - failed
        current = server.state.server["current"]
        assert current.dtype == torch.bool
        assert current.tolist() == [i in before for i in range(6)]
        sent = [t for name, t in server.state.server.items() if name.startswith("change.")]
        size = sum(t.nbytes for t in sent)
        # Factors of the largest matrix, at least, take less than it does.
        assert 0 < size < 4 * len(w)
    assert changes > 10
    assert failures > 1
