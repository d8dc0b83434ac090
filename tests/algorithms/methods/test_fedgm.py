"""FedGM in whole rounds written out in plain torch: gradients by autograd, edges pair by pair, all matrices dense."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.dense_clients import DenseClient
from support.fixtures import MakeView, ModuleOf, Start, Views
from support.plain_clients import LR, sgd
from support.plain_fedavg import row_counts
from support.small_fedgkc import answer, dense_operator
from support.written_rounds import cohorts_of, require_counts, require_mean_loss
from torch import Tensor, nn

from shoal.algorithms.methods.fedgm.condensation import (
    EdgeMaker,
    class_gradients,
    condensed_counts,
    smoothed_training_rows,
)
from shoal.algorithms.methods.fedgm.joined_graph import edges_of, joined, smoothing_of
from shoal.algorithms.rng import CPU, key

CLASSES, FEATURES = 4, 5
DEFAULTS: dict[str, Any] = {"condense_lr": 0.01, "edge_steps": 5, "node_steps": 15, "match_steps": 1}


def drawn_weights(rng: torch.Generator) -> Tensor:
    """Draws weights and biases of an SGC, `[C, F + 1]`."""
    return (torch.rand(CLASSES, FEATURES + 1, generator=rng).double() * 2 - 1) / FEATURES**0.5


def gradients(z: Tensor, y: Tensor, theta: Tensor) -> dict[int, Tensor]:
    """Differentiates the mean cross-entropy of every class that there is."""
    theta = theta.requires_grad_()
    found = {}
    for c in sorted(set(y.tolist())):
        loss = F.cross_entropy(z[y == c] @ theta[:, :-1].T + theta[:, -1], y[y == c])
        (found[c],) = torch.autograd.grad(loss, theta, create_graph=True)
    return found


def distance(found: dict[int, Tensor], wanted: dict[int, Tensor], counts: dict[int, float]) -> Tensor:
    most = max(counts.values())
    return sum((counts[c] / most * (found[c] - wanted[c]).square().sum() for c in wanted), torch.zeros(()))


def smooth_twice(a: Tensor, x: Tensor) -> Tensor:
    s = dense_operator("symmetric", a)
    return s @ (s @ x)


class Maker(nn.Module):
    """The MLP of the features of both ends."""

    def __init__(self, rng: torch.Generator) -> None:
        super().__init__()
        layers = []
        for inputs, outputs in ((2 * FEATURES, 128), (128, 128), (128, 1)):
            linear = nn.Linear(inputs, outputs).double()
            drawn = (torch.rand(inputs + 1, outputs, generator=rng).double() * 2 - 1) / inputs**0.5
            linear.weight.data, linear.bias.data = drawn[:-1].T.contiguous(), drawn[-1]
            layers += [linear] if outputs == 1 else [linear, nn.BatchNorm1d(outputs).double(), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        count = len(x)
        if count == 1:
            return torch.zeros(1, 1).double()
        pairs = torch.cat([x.repeat_interleave(count, 0), x.repeat(count, 1)], 1)
        score = self.layers(pairs).view(count, count)
        return torch.sigmoid((score + score.T) / 2) * (1 - torch.eye(count))


class Condensing(DenseClient):
    """A client that condenses its graph, and answers with gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        order = sorted(range(len(self.y)), key=lambda place: int(self.y[place]))
        rows = self.view.train[order]
        self.labels, x = self.y[order], self.x_NF.double()
        self.x, self.z = x[rows], smooth_twice(self.a_NN, x)[rows]

    def counts(self, ratio: float) -> dict[int, float]:
        real = np.bincount(self.y, minlength=CLASSES)
        return {c: max(1, int(ratio * n)) for c, n in enumerate(real) if n}

    def condense(self, number: int, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, float]:
        """Gives features, edges, labels, and the least loss."""
        rng, counts = (
            torch.Generator().manual_seed(key(0, number, self.number, "condense")),
            self.counts(options["ratio"]),
        )
        chosen = []
        for c, count in counts.items():
            rows = (self.labels == c).nonzero()[:, 0]
            chosen += rows[torch.randperm(len(rows), generator=rng)][:count].tolist()
        y, x = self.labels[chosen], nn.Parameter(self.x[chosen].clone())
        maker = Maker(rng)
        optimizers = [torch.optim.Adam(turn, lr=options["condense_lr"]) for turn in (maker.parameters(), [x])]
        best = None
        for step in range(options["steps"]):
            theta = drawn_weights(rng)
            wanted = {c: g.detach() for c, g in gradients(self.z, self.labels, theta).items()}
            a = maker(x)
            loss = distance(gradients(smooth_twice(a, x), y, theta), wanted, counts)
            if best is None or loss.item() < best[3]:
                best = x.detach().clone(), a.detach(), y, loss.item()
            maker.zero_grad()
            x.grad = None
            loss.backward()
            late = step % (options["edge_steps"] + options["node_steps"]) >= options["edge_steps"]
            optimizers[late].step()
        assert best is not None
        return best

    def guesses(self, module: nn.Module) -> list[int]:
        with torch.no_grad():
            return answer(module.eval(), self.a_NN, self.x_NF).logits_NC.argmax(1).tolist()


class PlainServer:
    """All condensed graphs, and the model that is trained on them."""

    def __init__(self, options: dict[str, Any], module: nn.Module) -> None:
        self.options, self.initial, self.module = options, module, module
        self.x, self.a, self.y = torch.zeros(0, FEATURES).double(), torch.zeros(0, 0).double(), torch.zeros(0).long()
        self.moments: list[Tensor] = [torch.zeros(()), self.x, self.x]

    def add(self, x: Tensor, a: Tensor, y: Tensor) -> None:
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        self.a = torch.block_diag(self.a, a)
        self.moments[1:] = [torch.cat([moment, 0 * x]) for moment in self.moments[1:]]

    def match(self, theta: Tensor, sent: list[tuple[dict[int, Tensor], dict[int, float]]]) -> float:
        total = {c: sum(counts.get(c, 0) for _, counts in sent) for c in range(CLASSES)}
        total = {c: count for c, count in total.items() if count}
        wanted = {c: sum(counts[c] / total[c] * of[c] for of, counts in sent if c in of) for c in total}
        loss = torch.zeros(())
        for _ in range(self.options["match_steps"]):
            x = self.x.clone().requires_grad_()
            loss = distance(gradients(smooth_twice(self.a, x), self.y, theta), wanted, total)
            (g,) = torch.autograd.grad(loss, x)
            step, mean, square = self.moments
            step, mean, square = step + 1, 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
            self.moments = [step, mean, square]
            unbiased = (square / (1 - 0.999**step)).sqrt() + 1e-8
            self.x = self.x - self.options["condense_lr"] * mean / (1 - 0.9**step) / unbiased
        return loss.item()

    def train(self) -> float:
        self.module = deepcopy(self.initial).train()
        epochs = self.options["server_epochs"]
        loss = torch.zeros(())
        for rate, steps in ((LR, epochs - epochs // 2), (LR / 10, epochs // 2)):
            optimizer = sgd(self.module.parameters())
            optimizer.param_groups[0]["lr"] = rate
            for _ in range(steps):
                optimizer.zero_grad()
                loss = F.cross_entropy(answer(self.module, self.a, self.x.float()).logits_NC, self.y)
                loss.backward()
                optimizer.step()
        return loss.item()


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (
            {"name": "gcn", "hidden": 8, "head": "linear"},
            {"ratio": 0.5, "steps": 9, "edge_steps": 2, "node_steps": 3, "server_epochs": 5, "condense_lr": 0.03},
        ),
        (
            {"name": "gamlp", "hidden": 8},
            {"ratio": 1.0, "steps": 5, "edge_steps": 0, "server_epochs": 4, "match_steps": 3},
        ),
        ({"name": "mlp", "hidden": 8}, {"ratio": 0.01, "steps": 12, "server_epochs": 1, "condense_lr": 0.1}),
        (
            {"name": "gcnii", "hidden": 8},
            {"ratio": 0.3, "steps": 3, "edge_steps": 1, "server_epochs": 3, "match_steps": 0},
        ),
    ],
    ids=["gcn", "hops", "one node a class", "no matching"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "fedgm", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.0, "evaluation.every": 1})
    options = {**DEFAULTS, **options}
    clients = [Condensing(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]
    plain, met, sizes = PlainServer(options, module_of(server, server._initial)), set[int](), FEATURES + 1
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        notes, losses, up, down = {}, {}, 0, 0
        if options["match_steps"] and len(plain.y) and (known := [clients[i] for i in cohort if i in met]):
            theta = drawn_weights(torch.Generator().manual_seed(key(0, number, "server", "surrogate")))
            sent = [(gradients(client.z, client.labels, theta), client.counts(options["ratio"])) for client in known]
            down += len(known) * sizes * CLASSES
            up += sum(len(of) * sizes * CLASSES + CLASSES for of, _ in sent)
            if any(counts for _, counts in sent):
                detached = [({c: g.detach() for c, g in of.items()}, counts) for of, counts in sent]
                notes["distance"] = plain.match(theta, detached)
        for client in (clients[i] for i in cohort if i not in met):
            up += CLASSES
            losses[client.number] = float("nan")
            if len(client.y):
                x, a, y, losses[client.number] = client.condense(number, options)
                plain.add(x, a, y)
                up += x.numel() + len(x) * (len(x) - 1) // 2
        if notes or any(len(clients[i].y) for i in losses):
            notes["server loss"] = plain.train()
        met |= set(cohort)
        held, near = server.state.server, {"rtol": 1e-3, "atol": 5e-4}
        assert line.get("notes", {}) == pytest.approx(notes, rel=2e-3)
        require_mean_loss(line, losses, [client.view for client in clients])
        torch.testing.assert_close(held["nodes"].view(-1, FEATURES).double(), plain.x, **near)
        sizes_of = held["counts"].sum(1).tolist()
        smoothing = smoothing_of(joined(sizes_of, held["edges"]), torch.device("cpu")).to_dense()
        torch.testing.assert_close(smoothing.double(), dense_operator("symmetric", plain.a), **near)
        w = nn.utils.parameters_to_vector(plain.module.parameters()).detach()
        torch.testing.assert_close(held["w"], w, **near)
        guesses = {i: client.guesses(plain.module) for i, client in enumerate(clients)}
        require_counts(server, "global", {i: row_counts(clients[i].view, found) for i, found in guesses.items()})
        assert (line["bytes_up"], line["bytes_down"]) == (4 * up, 4 * down)
        assert held["met"].nonzero()[:, 0].tolist() == sorted(met)
        assert not any(server.state.clients.values())


def test_a_cohort_without_training_nodes_changes_nothing(start: Start, unequal: Any, tmp_path: Any) -> None:
    keys = {**unequal, **cohorts_of(tmp_path, [[5], [5], [0], [5]]), "algorithm": {"name": "fedgm", "steps": 1}}
    server = start({**keys, "model.name": "gcn", "model.head": "linear"})
    for number in (1, 2):
        assert server.round()["loss"] is None
        torch.testing.assert_close(server.state.server["w"], server._initial, rtol=0, atol=0)
        assert server.state.server["met"].tolist() == [False] * 5 + [True], number
    assert server.round()["loss"] is not None
    before = server.state.server
    server.round()
    for name, tensor in before.items():
        assert torch.equal(server.state.server[name], tensor), name


def test_edges_of_pairs_by_hand() -> None:
    """The product with both ends' features is that of the concatenation."""
    rng = torch.Generator().manual_seed(1)
    maker, plain = EdgeMaker(FEATURES, rng, CPU), Maker(torch.Generator().manual_seed(1))
    x = torch.randn(4, FEATURES)
    torch.testing.assert_close(maker(x).double(), plain(x.double()), rtol=1e-4, atol=1e-5)
    assert maker(x[:1]).tolist() == [[0.0]]


def test_edges_are_joined_in_order() -> None:
    first = torch.tensor([[0, 0.1, 0.2], [0.1, 0, 0.3], [0.2, 0.3, 0]])
    edges = torch.cat([edges_of(first), edges_of(torch.zeros(1, 1)), edges_of(torch.tensor([[0, 0.9], [0.9, 0]]))])
    assert edges.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.9])
    starts, columns, weights = joined([3, 0, 1, 2], edges)
    assert starts.tolist() == [0, 2, 4, 6, 6, 7, 8]
    assert columns.tolist() == [1, 2, 0, 2, 0, 1, 5, 4]
    assert weights.tolist() == pytest.approx([0.1, 0.2, 0.1, 0.3, 0.2, 0.3, 0.9, 0.9])


def test_counts_of_classes() -> None:
    y = torch.tensor([0] * 30 + [2] * 9 + [3])
    assert condensed_counts(y, 5, 0.1).tolist() == [3, 0, 1, 1, 0]
    assert condensed_counts(y, 5, 1.0).tolist() == [30, 0, 9, 1, 0]


def test_gradients_of_a_class_that_has_no_node_are_zero() -> None:
    theta = torch.randn(3, FEATURES + 1)
    found = class_gradients(torch.randn(4, FEATURES + 1), [1, 0, 3], theta)
    assert not found[1].any()
    assert bool(found[0].any())
    assert bool(found[2].any())


def test_rows_are_smoothed_by_weights_of_edges(make_view: MakeView) -> None:
    view = make_view(4, [(0, 1), (1, 2)], [1, 0, 0, 1], [0, 1, 3], 2)
    z, x = smoothed_training_rows(view)
    whole = view.whole(0)
    expected = smooth_twice(view.adjacency.to_dense().double(), whole.double())[[1, 0, 3]]
    torch.testing.assert_close(z.double(), F.pad(expected, (0, 1), value=1.0), rtol=1e-5, atol=1e-6)
    assert torch.equal(x, whole[[1, 0, 3]])
