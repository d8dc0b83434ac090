"""FedTAD in whole rounds written out in plain torch: reliability by loops and dense powers, and the server."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.dense_clients import DenseClient, average
from support.fixtures import MakeView, ModuleOf, Start, Views
from support.small_fedgkc import answer
from support.written_rounds import cohorts_of, require_mean_loss
from torch import Tensor, nn

from shoal.algorithms.methods.fedtad.pseudo_graph import even_labels
from shoal.algorithms.methods.fedtad.reliability import class_reliability, return_chances
from shoal.algorithms.rng import key

CLASSES, FEATURES = 4, 5
DEFAULTS = {
    "server_epochs": 5, "generator_steps": 1, "distil_steps": 5, "generator_lr": 1e-3, "distil_lr": 1e-3, "nodes": 100,
    "neighbours": 5, "noise": 32, "walks": 5, "semantic": 1.0, "diversity": 1.0,
}  # fmt: skip


def reliability(client: DenseClient, walks: int) -> Tensor:
    a, total = client.a_NN, torch.zeros(CLASSES).double()
    walk = a / a.sum(0).clamp_min(1)
    back = [torch.linalg.matrix_power(walk, k).diagonal() for k in range(1, walks + 1)]
    rows = torch.cat([client.x_NF.double(), torch.stack(back, 1)], 1)
    for v, c in zip(client.view.train.tolist(), client.y.tolist()):
        near = a[v].nonzero()[:, 0].tolist()
        cosines = [float(rows[v] @ rows[u] / rows[v].norm() / rows[u].norm()) for u in near]
        total[c] += (1 + sum(cosines)) / (1 + len(near))
    return total.clamp_min(0)


class PlainServer:
    """G, its optimizer and that of the averaged model."""

    def __init__(self, options: dict[str, Any], student: nn.Module) -> None:
        self.options, self.student, self.generator = options, student, None
        self.optimizer = torch.optim.Adam(student.parameters(), lr=options["distil_lr"])

    def begin(self, number: int) -> None:
        torch.manual_seed(key(0, number, "server", "generator"))
        table, widths = torch.randn(CLASSES, CLASSES), (self.options["noise"] + CLASSES, 64, 128, 256, FEATURES)
        linears = [nn.Linear(*pair) for pair in pairwise(widths)]
        tanhs = [part for linear in linears[:-1] for part in (linear, nn.Tanh())]
        self.table, self.generator = nn.Parameter(table), nn.Sequential(*tanhs, linears[-1])
        parameters = [self.table, *self.generator.parameters()]
        self.generator_optimizer = torch.optim.Adam(parameters, lr=self.options["generator_lr"])

    def graph(self, x: Tensor) -> Tensor:
        u = x.detach().double() / x.detach().double().norm(dim=1, keepdim=True)
        likeness = (u @ u.t()).fill_diagonal_(-2)
        a = torch.zeros(len(x), len(x)).double()
        for i, row in enumerate(likeness):
            for j in row.argsort(descending=True)[: self.options["neighbours"]].tolist():
                a[i, j] = a[j, i] = 1
        return a

    def terms(self, x: Tensor, y: Tensor, teachers: list[nn.Module], share: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropies of the teachers, and their distance to the student, class by class."""
        a = self.graph(x)
        entropy = distance = torch.zeros(())
        own = answer(self.student.eval(), a, x).logits_NC
        for teacher, of_client in zip(teachers, share):
            theirs = answer(teacher.eval(), a, x).logits_NC
            for c in y.unique():
                rows = y == c
                entropy = entropy + of_client[c] * F.cross_entropy(theirs[rows], y[rows])
                distance = distance + of_client[c] * (own[rows] - theirs[rows].detach()).abs().mean(1).mean()
        return entropy, distance

    def distil(self, number: int, teachers: list[nn.Module], known: list[Tensor]) -> dict[str, float]:
        total = torch.stack(known).sum(0)
        classes = total.nonzero()[:, 0].tolist()
        if sum(bool(r.any()) for r in known) < 2:
            return {}
        if self.generator is None:
            self.begin(number)
        each = max(self.options["nodes"] // len(classes), 1)
        y = torch.tensor([classes[min(i // each, len(classes) - 1)] for i in range(self.options["nodes"])])
        share = torch.stack([(r / total.clamp_min(1e-30)).float() for r in known])
        rng, notes = torch.Generator().manual_seed(key(0, number, "server", "noise")), {}
        for _ in range(self.options["server_epochs"]):
            z = torch.randn(len(y), self.options["noise"], generator=rng)
            for _ in range(self.options["generator_steps"]):
                x = self.generator(torch.cat([self.table[y], z], 1))
                entropy, distance = self.terms(x, y, teachers, share)
                loss = self.options["semantic"] * entropy - distance
                apart = (z[:, None] - z).square().sum(2).sqrt() * (x[:, None] - x).abs().mean(2)
                loss = loss + self.options["diversity"] * (-apart.mean()).exp()
                self.generator_optimizer.zero_grad()
                loss.backward()
                self.generator_optimizer.step()
                notes["generator loss"] = loss.item()
            x = self.generator(torch.cat([self.table[y], z], 1)).detach()
            for _ in range(self.options["distil_steps"]):
                _, distance = self.terms(x, y, teachers, share)
                self.optimizer.zero_grad()
                distance.backward()
                self.optimizer.step()
                notes["distance"] = distance.item()
        return notes


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        (
            {"name": "gcn", "hidden": 8, "head": "linear"},
            {"nodes": 26, "server_epochs": 2, "distil_lr": 0.01, "generator_lr": 0.01},
        ),
        (
            {"name": "gamlp", "hidden": 8},
            {"nodes": 9, "neighbours": 2, "noise": 3, "walks": 2, "server_epochs": 1, "generator_steps": 2}
            | {"distil_steps": 2, "semantic": 0.5, "diversity": 3.0, "distil_lr": 0.02},
        ),
        ({"name": "mlp", "hidden": 8}, {"nodes": 12, "diversity": 0.0, "server_epochs": 2, "walks": 1}),
    ],
    ids=["GCN", "hops", "features"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "fedtad", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.0})
    w, options = server._initial.double(), {**DEFAULTS, **options}
    clients = [DenseClient(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]
    plain = PlainServer(options, module_of(server, server._initial))
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        taking_part, losses = [clients[i] for i in cohort], {}
        for client in taking_part:
            client.load(w)
            losses[client.number] = client.visit()
        w = average(taking_part, w)
        nn.utils.vector_to_parameters(w.float(), plain.student.parameters())
        known = [reliability(client, options["walks"]) for client in taking_part]
        notes = plain.distil(number, [client.module for client in taking_part], known)
        w = nn.utils.parameters_to_vector(plain.student.parameters()).detach().double()
        assert line.get("notes", {}) == pytest.approx(notes, rel=2e-3)
        torch.testing.assert_close(server.state.server["w"].double(), w, rtol=1e-3, atol=2e-4)
        require_mean_loss(line, losses, [client.view for client in clients])
        sent = len(cohort) * (len(w) + 1 + CLASSES), len(cohort) * len(w)
        assert (line["bytes_up"], line["bytes_down"]) == tuple(4 * count for count in sent)


def test_walks_that_are_back(make_view: MakeView) -> None:
    """Of a triangle with a tail of two nodes, and a node alone: by powers of the dense matrix."""
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4)]
    view = make_view(6, edges, [0] * 6, [0], 2)
    a = view.adjacency.to_dense().double().numpy()
    walk = a / np.maximum(a.sum(0), 1)
    rows = np.array([5, 0, 2, 4])
    expected = [[np.linalg.matrix_power(walk, k)[v, v] for k in range(1, 8)] for v in rows]
    np.testing.assert_allclose(return_chances(*view.csr, rows, 7), expected, atol=1e-12)
    assert return_chances(*view.csr, rows, 3)[1].tolist() == pytest.approx([0, 5 / 12, 1 / 6])


def test_reliability_of_a_graph_by_hand(make_view: MakeView) -> None:
    """Of one-hot features a neighbour is like a node by chances to be back alone, which are zero after one step."""
    view = make_view(4, [(0, 1), (0, 2)], [1, 0, 0, 1], [0, 1, 3], 3)
    assert class_reliability(view, 1).tolist() == pytest.approx([1 / 2, 1 / 3 + 1, 0])
    # After two steps: node 0 is back for sure, its neighbours with probability 1/2.
    like = 1 / 2 / (2 * 5 / 4) ** 0.5
    assert class_reliability(view, 2).tolist() == pytest.approx([(1 + like) / 2, (1 + 2 * like) / 3 + 1, 0])


@pytest.mark.parametrize(("nodes", "expected"), [(7, [1, 1, 2, 2, 5, 5, 5]), (2, [1, 2]), (3, [1, 2, 5])])
def test_labels_are_even(nodes: int, expected: list[int]) -> None:
    assert even_labels(torch.tensor([1, 2, 5]), nodes).tolist() == expected


def test_a_cohort_of_one_that_knows_a_class_leaves_the_average_as_it_is(
    start: Start, unequal: Any, tmp_path: Any
) -> None:
    server = start(
        {**unequal, **cohorts_of(tmp_path, [[5], [0, 5], [0, 1]]), "algorithm.name": "fedtad", "model.name": "sgc"}
    )
    for _ in range(2):
        assert "notes" not in server.round()
        assert server.state.server.keys() == {"w"}
    assert {"generator loss", "distance"} == server.round()["notes"].keys()
