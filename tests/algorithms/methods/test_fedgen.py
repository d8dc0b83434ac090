"""FedGen in whole rounds written out in plain torch: its clients, its server, its bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Keys, PlainClients, Start
from support.written_rounds import cohorts_of
from torch import Tensor, nn

from shoal.algorithms.methods import fedgen as fedgen_module
from shoal.algorithms.methods.fedgen import ensemble_cross_entropy, sameness
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.rng import key

SMALL = {"server_batch": 9, "noise": 3, "hidden": 5}
DEFAULTS = {"alpha": 10.0, "beta": 10.0, "decay": 0.98, "server_lr": 3e-4, "diversity_weight": 1.0, **SMALL}
OWN: list[dict[str, Any]] = [
    {"server_steps": 4},
    {"server_steps": 3, "alpha": 0.7, "beta": 2.0, "decay": 0.6, "server_lr": 0.03, "diversity_weight": 5.0},
    {"server_steps": 2, "alpha": 0.0, "diversity_weight": 0.0, "server_lr": 0.03},
    {"server_steps": 2, "beta": 0.0, "server_lr": 0.03, "weight": "uniform"},
]


def hot(y: Tensor) -> Tensor:
    return torch.eye(4)[y]


class PlainGenerator:
    """The server's network, its optimizer and what it learns from."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.own, self.known = own, set[int]()
        torch.manual_seed(key(0, 1, "server", "generator"))
        hidden, noise = own["hidden"], own["noise"]
        self.network = nn.Sequential(nn.Linear(noise + 4, hidden), nn.ReLU(), nn.Linear(hidden, 8))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=own["server_lr"])

    def draw(self, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.randn(len(y), self.own["noise"], generator=rng)
        return noise, self.network(torch.cat([noise, hot(y)], 1))

    def train(self, number: int, tops: list[nn.Linear], labels: list[Tensor]) -> float | None:
        """On the classifiers of a cohort and the labels of its training rows."""
        classes = sorted({c for y in labels for c in y.tolist()})
        if not classes:
            return None
        self.known |= set(classes)
        rng = torch.Generator().manual_seed(key(0, number, "server", "noise"))
        for _ in range(self.own["server_steps"]):
            y = torch.tensor(classes)[torch.randint(len(classes), (self.own["server_batch"],), generator=rng)]
            noise, g = self.draw(y, rng)
            value = self.loss(noise, g, y, tops, labels)
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
        return value.item()

    def loss(self, noise: Tensor, g: Tensor, y: Tensor, tops: list[nn.Linear], labels: list[Tensor]) -> Tensor:
        total = torch.zeros(())
        for row, c in zip(g, y.tolist()):
            counts = [int((own == c).sum()) for own in labels]
            for top, count in zip(tops, counts):
                logits = top.weight.detach() @ row + top.bias.detach()
                total = total + count / sum(counts) * F.cross_entropy(logits, torch.tensor(c)) / len(y)
        apart = (noise[:, None] - noise).square().sum(2).sqrt() * (g[:, None] - g).abs().mean(2)
        return total + self.own["diversity_weight"] * (-apart.mean()).exp()


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("own", OWN)
def test_rounds_written_out(start: Start, patchy: Keys, plain_clients: PlainClients, own: dict[str, Any]) -> None:
    keys = {f"algorithm.{name}": value for name, value in {**SMALL, **own}.items()}
    server = start({**patchy, "algorithm.name": "fedgen", "model.hidden": 8, "train.batch_size": 3, **keys})
    own, clients = {**DEFAULTS, **own}, plain_clients(server)
    tops = [client.module.head.linears[-1] for client in clients]
    generator = PlainGenerator(own)
    weight, bias = tops[0].weight.detach().clone(), tops[0].bias.detach().clone()

    def loss_of(i: int, number: int) -> Callable[[Output, Tensor], Tensor]:
        known, factor = torch.tensor(sorted(generator.known)), own["decay"] ** (number - 1)
        drawn, same = (torch.Generator().manual_seed(key(0, number, i, f"{name} classes")) for name in ("drawn", "own"))

        def loss(out: Output, y: Tensor) -> Tensor:
            total = F.cross_entropy(out.logits_NC, y)
            if not len(known):
                return total
            if own["alpha"]:
                other = known[torch.randint(len(known), (len(y),), generator=drawn)]
                g = generator.draw(other, drawn)[1].detach()
                total = total + own["alpha"] * factor * F.cross_entropy(tops[i](g), other)
            rows = [row for row, c in enumerate(y.tolist()) if c in generator.known]
            if own["beta"] and rows:
                p = tops[i](generator.draw(y[rows], same)[1]).detach().softmax(1)
                kl = (p * (p.log() - out.logits_NC[rows].log_softmax(1))).sum(1)
                total = total + own["beta"] * factor * kl.mean()
            return total

        return loss

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        sent = 4 * 4 * 9 + (4 * ((own["noise"] + 5) * own["hidden"] + (own["hidden"] + 1) * 8 + 1) + 1) * (number > 1)
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (4 * 9 + 1 + 4), len(cohort) * sent)
        for i in cohort:
            with torch.no_grad():
                tops[i].weight.copy_(weight)
                tops[i].bias.copy_(bias)
            clients[i].train(number, loss_of(i, number), 3)
            torch.testing.assert_close(server.state.clients[i]["model.w"], clients[i].w, rtol=1e-3, atol=1e-4)
        value = generator.train(number, [tops[i] for i in cohort], [clients[i].y for i in cohort])
        assert line.get("notes", {}) == pytest.approx({} if value is None else {"server loss": value}, rel=1e-3)
        if counted := [i for i in cohort if len(clients[i].y)]:
            weight = torch.stack([tops[i].weight.detach() for i in counted]).mean(0)
            bias = torch.stack([tops[i].bias.detach() for i in counted]).mean(0)
        held = server.state.server
        assert held["known"].nonzero()[:, 0].tolist() == sorted(generator.known)
        torch.testing.assert_close(held["w"], torch.cat([*weight, bias]), rtol=1e-3, atol=1e-4)
        mine = nn.utils.parameters_to_vector(generator.network.parameters()).detach()
        torch.testing.assert_close(held["generator"], mine, rtol=1e-3, atol=1e-4)


def test_before_anybody_has_a_training_node_there_is_no_generator(start: Start, patchy: Keys, tmp_path: Any) -> None:
    keys = {**cohorts_of(tmp_path, [[3], [3], [0]]), "model.hidden": 8}
    server = start({**patchy, **keys, "algorithm.name": "fedgen", "algorithm.server_steps": 1})
    for _ in range(2):
        line = server.round()
        assert line["bytes_down"] == 4 * 4 * 9
        assert "notes" not in line
    assert server.state.server.keys() == {"w", "known"}
    server.round()
    assert server.state.server["known"].tolist() == [True, True, False, False]


def test_sameness_in_compiled_code_and_in_torch() -> None:
    """Torch takes float64; two of the embeddings are equal."""
    generator = torch.Generator().manual_seed(3)
    noise, rows = (torch.randn(7, width, generator=generator) for width in (3, 5))
    rows[4] = rows[2]
    values, gradients = [], []
    for dtype in (torch.float32, torch.float64):
        g = rows.to(dtype, copy=True).requires_grad_()
        value = sameness(noise.to(dtype), g)
        (3 * value).backward()
        assert g.grad is not None
        values.append(value.item())
        gradients.append(g.grad.double())
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
    assert gradients[1].abs().max() > 1e-3


def test_sameness_pushes_equal_embeddings_nowhere_and_others_apart() -> None:
    g = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 1.0]], requires_grad=True)
    sameness(torch.tensor([[0.0], [1.0], [3.0]]), g).backward()
    assert g.grad is not None
    assert g.grad.isfinite().all()
    # Down the gradient, the third goes further right, the other two further left.
    assert g.grad[:, 0].sign().tolist() == [1, 1, -1]


@pytest.mark.parametrize("logits", [1, 2**17])
def test_loss_of_the_classifiers_and_its_gradient_as_in_float64(logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedgen_module, "LOGITS", logits)
    random = torch.Generator().manual_seed(3)
    weight_BCH, bias_BC = torch.randn(4, 5, 6, generator=random), torch.randn(4, 5, generator=random)
    # The last client has no rows, and nobody has any of class 4.
    count_BC = torch.tensor([[3, 0, 1, 2, 0], [0, 2, 1, 0, 0], [5, 0, 0, 4, 0], [0, 0, 0, 0, 0]])
    share_BC = count_BC / count_BC.sum(0).clamp_min(1)
    g_NH, y_N = torch.randn(7, 6, generator=random, requires_grad=True), torch.tensor([3, 0, 1, 3, 2, 0, 0])
    loss = ensemble_cross_entropy(g_NH, y_N, weight_BCH, bias_BC, share_BC)
    (of_g_NH,) = torch.autograd.grad(3 * loss, g_NH)

    exact_NH = g_NH.detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for weight, bias, share in zip(weight_BCH.double(), bias_BC.double(), share_BC.double()):
        for g, y in zip(exact_NH, y_N):
            total = total + share[y] * F.cross_entropy(weight @ g + bias, y) / len(y_N)
    (expected_NH,) = torch.autograd.grad(3 * total, exact_NH)
    torch.testing.assert_close(loss, total.float())
    torch.testing.assert_close(of_g_NH, expected_NH.float())
