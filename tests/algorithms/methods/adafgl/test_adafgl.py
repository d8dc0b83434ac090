"""AdaFGL in whole rounds against loops over pairs of nodes, its parts by hand, and who comes late."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import CountsOf, MakeClient, MakeView, ModuleOf, PlainClients, Start
from support.induced_parts import csr_rows
from support.plain_fedavg import row_counts
from support.written_rounds import require_mean_loss, require_model_bytes
from torch import Tensor, nn

from shoal.algorithms.client import Client
from shoal.algorithms.methods.adafgl import knowledge as adafgl_knowledge
from shoal.algorithms.methods.adafgl.adafgl import AdaFGL, Received
from shoal.algorithms.methods.adafgl.branch_losses import loss_of_branches
from shoal.algorithms.methods.adafgl.knowledge import Rows, knowledge, propagate_weighted
from shoal.algorithms.methods.adafgl.signed_messages import signed_messages
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.dropout import drop
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.shards.view import View


@pytest.mark.parametrize(("weight", "width"), [(None, 2), (3.0, 2), (None, 40)])
def test_knowledge_by_hand(make_view: MakeView, weight: float | None, width: int) -> None:
    """Hops of sparse features are written out unless they are wide."""
    x = np.zeros((3, width), dtype=np.float32)
    x[:, :2] = [[1.0, 0.0], [0.0, 2.0], [4.0, 4.0]]
    weights = None if weight is None else np.full((3, 3), weight, dtype=np.float32)
    view = make_view(3, [(0, 1)], [0, 1, 1], [0], 2, x if width == 2 else csr_rows(x), weights)
    edge = 0.25 * (weight or 1)
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = knowledge(view, p, 0.25, 1, 0.5)
    m = np.array([[1, edge, 0], [edge, 1, 0.75], [0, 0.75, 1]])
    root = m.sum(1) ** -0.5
    hops = np.concatenate([x, (root[:, None] * m * root) @ x], 1)
    if width == 2:
        np.testing.assert_allclose(found.hops_NG, hops, rtol=1e-6)
    assert bool(found.hops_NG.numel()) == (width == 2)
    w_HG = np.random.default_rng(0).standard_normal((3, 2 * width)).astype(np.float32)
    weights = [torch.from_numpy(times * w_HG).t().contiguous().t().requires_grad_() for times in (1, 2)]
    for w in weights:
        w.grad = torch.full_like(w, torch.nan)
    asked = Rows(torch.tensor([2, 0]), view.whole(0), found.hops_NG[[2, 0]] if width == 2 else found.hops_NG)
    first, second = propagate_weighted(found, view.whole(0), weights, asked)
    np.testing.assert_allclose(first.detach(), hops @ w_HG.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(second.detach(), 2 * hops[[2, 0]] @ w_HG.T, rtol=1e-4, atol=1e-5)
    along = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
    ((first + 0) * torch.from_numpy(along)).sum().add((second * torch.from_numpy(along[:2])).sum()).backward()
    np.testing.assert_allclose(weights[0].grad, along.T @ hops, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weights[1].grad, along[:2].T @ hops[[2, 0]], rtol=1e-4, atol=1e-5)


@pytest.fixture
def client(make_view: MakeView, make_client: MakeClient) -> Client:
    torch.manual_seed(0)
    view = make_view(4, [(0, 1), (1, 2)], [0, 1, 0, 1], [0, 1], 2)
    return make_client(view, build("gcn", 4, 2, 0, 0.3, {"hidden": 8}))


def test_what_was_predicted_is_forgotten_by_training(client: Client) -> None:
    method, received = AdaFGL(hidden=5), Received()
    trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(), method)
    method.train(client, received, trainer, "personal")
    before = method.predict(client, received, "all")
    method.train(client, received, trainer, "personal")
    assert not torch.equal(method.predict(client, received, "all"), before)


def test_a_host_that_knows_another_models_answers_does_not_take_these(client: Client) -> None:
    """As hosts do that stay warm from one run to the next."""
    method = AdaFGL(hidden=5)
    first = method._knowledge(client)
    assert method._knowledge(client) is first
    client.model.load(client.model.w * 2)
    assert not torch.equal(method._knowledge(client).p_NC, first.p_NC)
    torch.testing.assert_close(method._knowledge(client).p_NC, client.model.logits().softmax(1))


DROPOUT = 0.3
DEFAULTS: dict[str, Any] = {"alpha": 0.5, "beta": 0.2, "cut": 0.999, "steps": 3, "hidden": 64, "preserve": 1.0}


def cosine_table(p: np.ndarray, cut: float) -> np.ndarray:
    s = np.zeros((len(p), len(p)))
    for i in range(len(p)):
        for j in range(len(p)):
            if i != j:
                s[i, j] = p[i] @ p[j] / np.linalg.norm(p[i]) / np.linalg.norm(p[j])
                s[i, j] = s[i, j] > cut if cut else s[i, j]
    return s


def messages(y: Tensor, s: Tensor, beta: float) -> Tensor:
    """By a table of all pairs."""
    q = y.softmax(1)
    unit = q / q.norm(dim=1, keepdim=True)
    off = 1 - torch.eye(len(y))
    r = beta * s + (1 - beta) * (unit @ unit.t()) * off
    mean = r.sum() / (len(y) * (len(y) - 1))
    most = r.max()
    weights = torch.where(r > mean, (r - mean) / (most - mean), (r - mean) / mean) * off + torch.eye(len(y))
    near, far = weights.clamp_min(0) @ y, (-weights).clamp_min(0) @ y
    return (y + near.softmax(1) - far.softmax(1)) / 2


@pytest.mark.parametrize("cut", [0.0, 0.8])
def test_rows_at_a_time_equal_a_table_of_all_pairs(
    make_view: MakeView, monkeypatch: pytest.MonkeyPatch, cut: float
) -> None:
    """Messages, their gradients, and products by P~, of more nodes than examples and rows at a time."""
    torch.manual_seed(3)
    monkeypatch.setattr(adafgl_knowledge, "PAIRS_AT_A_TIME", 200)
    monkeypatch.setattr(adafgl_knowledge, "EXAMPLES", 4)
    nodes, beta = 60, 0.3
    view = make_view(nodes, [(i, (7 * i + 3) % nodes) for i in range(0, nodes, 2)], [0] * nodes, [0], 5)
    p = (2 * torch.randn(nodes, 5)).softmax(1)
    known, s = knowledge(view, p, 0.4, 1, cut), torch.from_numpy(cosine_table(p.double().numpy(), cut)).float()
    mixed = 0.4 * view.adjacency.to_dense() + 0.6 * s + torch.eye(nodes)
    root = mixed.sum(1).rsqrt()
    x = torch.randn(nodes, 3)
    torch.testing.assert_close(known.mixing.times(x), root[:, None] * (mixed @ (root[:, None] * x)))
    rows, y = torch.tensor([40, 3, 17, 59, 4, 5, 6]), torch.randn(nodes, 5, requires_grad=True)
    found, expected = signed_messages(y, known, beta, rows), messages(y, s, beta)
    torch.testing.assert_close(found, expected[rows], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(signed_messages(y, known, beta), expected, rtol=1e-4, atol=1e-5)
    along = torch.randn(len(rows), 5)
    gradients = [torch.autograd.grad((of * along).sum(), y)[0] for of in (found, expected[rows])]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("preserve", [0.0, 1.5])
def test_one_call_has_the_loss_and_gradients_of_torch(preserve: float) -> None:
    torch.manual_seed(1)
    rows, label, p = torch.tensor([4, 0, 7]), torch.tensor([2, 4, 0]), torch.randn(9, 5).softmax(1)
    branches = [3 * torch.randn(count, 5) for count in (9, 3, 3, 3)]
    results = []
    for kind in (torch.float32, torch.float64):
        homo, *others = (x.to(kind).clone().requires_grad_() for x in branches)
        loss = loss_of_branches(homo, others, rows, label, p.to(kind), preserve)
        results.append([loss.double(), *(x.double() for x in torch.autograd.grad(2 * loss, [homo, *others]))])
    for one, wanted in zip(*results):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-7)


class Perceptron:
    """Linear layers with one PReLU for all; weights Xavier-uniform for ReLU."""

    def __init__(self, widths: list[int]) -> None:
        self.layers = []
        for n_in, n_out in pairwise(widths):
            weight = nn.Parameter(torch.empty(n_out, n_in))
            nn.init.xavier_uniform_(weight, gain=math.sqrt(2))
            self.layers.append((weight, nn.Parameter(torch.zeros(n_out))))
        self.slope = nn.Parameter(torch.tensor([0.25]))

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for layer in self.layers for p in layer] + [self.slope]

    def __call__(self, x: Tensor, training: bool) -> Tensor:
        for number, (weight, bias) in enumerate(self.layers):
            if number:
                x = drop(torch.where(x > 0, x, self.slope * x), DROPOUT, training)
            x = x @ weight.t() + bias
        return x


class Personal:
    """The second phase of a client."""

    def __init__(self, number: int, view: View, module: nn.Module, round_number: int, options: dict[str, Any]) -> None:
        self.number, self.view, self.options = number, view, options
        self.train_rows, self.y = view.train, view.label[view.train]
        module.eval()
        with torch.no_grad():
            self.p = module([view.hop(k) for k in module.inputs]).logits_NC.double().softmax(1)  # type: ignore
        if not len(self.y):
            return
        a = view.adjacency.to_dense().double().numpy()
        self.s = cosine_table(self.p.numpy(), options["cut"])
        mixed = options["alpha"] * a + (1 - options["alpha"]) * self.s + np.eye(len(a))
        root = mixed.sum(1) ** -0.5
        hops = [view.hop(0).double().numpy()]
        for _ in range(options["steps"]):
            hops.append((root[:, None] * mixed * root) @ hops[-1])
        self.x, self.wide = (torch.from_numpy(found).float() for found in (hops[0], np.concatenate(hops, 1)))
        self.hcs = self.homophily(a, round_number)
        torch.manual_seed(key(0, round_number, number, "branches"))
        h, f, w, c = options["hidden"], self.x.shape[1], self.wide.shape[1], self.p.shape[1]
        self.branches = [Perceptron(w) for w in ([w, h, c], [f, h, h, c], [w, h, h, c], [w, h, h, c])]
        parameters = [p for branch in self.branches for p in branch.parameters]
        self.optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)

    def homophily(self, a: np.ndarray, round_number: int) -> float:
        n, classes = len(self.y), self.p.shape[1]
        if n < 2:
            return 0.5
        order = torch.randperm(
            n, generator=torch.Generator().manual_seed(key(0, round_number, self.number, "homophily"))
        )
        known, asked = order[: n // 2].tolist(), order[n // 2 :].tolist()
        loops = a + np.eye(len(a))
        root = loops.sum(1) ** -0.5
        first = np.full((len(a), classes), 1 / classes)
        for place in known:
            first[self.train_rows[place]] = np.eye(classes)[self.y[place]]
        told = first
        for _ in range(10):
            told = 0.5 * first + 0.5 * (root[:, None] * loops * root) @ told
        right = 0
        for place in asked:
            row, truth = told[self.train_rows[place]], int(self.y[place])
            right += all(row[truth] > row[c] + 1e-7 for c in range(classes) if c != truth)
        return right / len(asked)

    def scores(self, training: bool) -> list[Tensor]:
        homo, own, smooth, message = self.branches
        found = [homo(self.wide, training), own(self.x, training), smooth(self.wide, training)]
        y = message(self.wide, training)
        return [*found, messages(y, torch.from_numpy(self.s).float(), self.options["beta"])]

    def visit(self, round_number: int, epochs: int) -> float:
        if not len(self.y):
            return float("nan")
        torch.manual_seed(key(0, round_number, self.number, "train branches"))
        loss = torch.zeros(())
        for _ in range(epochs):
            self.optimizer.zero_grad()
            scores = self.scores(True)
            loss = sum(F.cross_entropy(s[self.train_rows], self.y) for s in scores)  # type: ignore
            gap = scores[0].softmax(1) - self.p.float()
            loss = loss + self.options["preserve"] * (gap**2).sum() / gap.numel()
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())

    @property
    def flat(self) -> Tensor:
        return torch.cat([p.detach().flatten() for branch in self.branches for p in branch.parameters])

    def predicted(self) -> Tensor:
        with torch.no_grad():
            if not len(self.y):
                return self.p
            homo, own, smooth, message = (s.softmax(1) for s in self.scores(False))
        return self.hcs * (homo + self.p) / 2 + (1 - self.hcs) * (own + smooth + message) / 3

    def counts(self) -> np.ndarray:
        predicted = self.predicted().argmax(1).tolist()
        return row_counts(self.view, predicted)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"alpha": 0.2, "cut": 0.0, "beta": 0.7, "steps": 1, "hidden": 5, "preserve": 0.0},
        {"alpha": 0.9, "cut": 0.9, "preserve": 30.0, "hidden": 7},
    ],
    ids=["defaults", "soft", "preserving"],
)
def test_rounds_written_out(
    start: Start,
    unequal: dict[str, Any],
    torch_clients: PlainClients,
    module_of: ModuleOf,
    counts_of: CountsOf,
    options: dict[str, Any],
) -> None:
    """The second phase begins in round 3; client 4 comes as a newcomer, client 2 in the last round."""
    keys = {"algorithm.name": "adafgl", "algorithm.shared_rounds": 2, "train.dropout": DROPOUT}
    server = start({**unequal, **keys, **{f"algorithm.{name}": value for name, value in options.items()}})
    clients, w = torch_clients(server), server._initial.double()
    personal: dict[int, Personal] = {}
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        p = len(w)
        if number <= 2:
            total, count = torch.zeros_like(w), 0
            for i in cohort:
                clients[i].load(w)
                clients[i].train(number)
                n = clients[i].view.nodes * (len(clients[i].view.train) > 0)
                total, count = total + n * clients[i].w, count + n
            w = total / count
            require_model_bytes(line, p)
        else:
            new = [i for i in cohort if i not in personal]
            for i in new:
                module = module_of(server, server.state.server["w"])
                personal[i] = Personal(i, clients[i].view, module, number, {**DEFAULTS, **options})
            losses = {i: personal[i].visit(number, 2) for i in cohort}
            assert (line["bytes_up"], line["bytes_down"]) == (0, len(new) * 4 * p)
            require_mean_loss(line, losses, [client.view for client in clients])
        torch.testing.assert_close(server.state.server["w"].double(), w, rtol=1e-4, atol=1e-5)
        for i, client in enumerate(clients):
            expected = counts_of(server, client.view, server.state.server["w"])
            np.testing.assert_array_equal(server.state.scores["global"][i], expected)
            if i not in personal:
                continue
            kept = server.state.clients[i]
            assert torch.equal(kept["common"], server.state.server["w"])
            np.testing.assert_array_equal(server.state.scores["deployed"][i], personal[i].counts())
            if i in cohort:
                np.testing.assert_array_equal(server.state.scores["trained"][i], personal[i].counts())
            if len(client.view.train):
                assert float(kept["homophily"]) == pytest.approx(personal[i].hcs)
                torch.testing.assert_close(kept["branches"], personal[i].flat, rtol=1e-3, atol=1e-4)
            else:
                assert "branches" not in kept
    assert personal.keys() == set(range(6))
    assert len({person.hcs for person in personal.values() if len(person.y)}) > 1
