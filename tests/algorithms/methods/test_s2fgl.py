"""S2FGL in whole rounds against dense inverses, numpy's eigenvectors and loops."""

from typing import Any

import numpy as np
import pytest
import torch
from support.dense_clients import DenseClient, average
from support.fixtures import MakeView, ModuleOf, Start, Views
from support.written_rounds import require_mean_loss
from torch import Tensor

from shoal.algorithms.methods.s2fgl.bands import likeness_bands
from shoal.algorithms.methods.s2fgl.centrality import central_nodes, label_centrality
from shoal.algorithms.rng import key

CLASSES = 4
DEFAULTS = {
    "semantic": 60.0, "spectral": 1.0, "slots": 4, "sampled": 0.7, "central": 1 / 3, "aligned": 0.2, "restart": 0.85,
    "tau": 1.0, "neighbours": 3, "vectors": 10,
}  # fmt: skip


def order_of(a_NN: Tensor, train: list[int], restart: float) -> list[int]:
    """Nodes, the most central first."""
    a = a_NN.double().numpy()
    inverse = np.linalg.inv(np.eye(len(a)) - (1 - restart) * a / np.maximum(a.sum(1, keepdims=True), 1))
    score = inverse[:, train].max(1, initial=0) + restart * inverse[:, train].sum(1)
    return np.argsort(-score.round(6), kind="stable").tolist()


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)


def bands(z: Tensor, neighbours: int, vectors: int) -> list[Tensor]:
    u = unit(z.detach().double())
    likeness, s = u @ u.t(), np.zeros((len(z), len(z)))
    for i in range(len(z)):
        near = [j for j in likeness[i].argsort(descending=True).tolist() if j != i and u[i].any() and u[j].any()]
        for j in near[:neighbours]:
            s[i, j] = s[j, i] = max(float(likeness[i, j]), 0)
    values, vector = map(torch.from_numpy, np.linalg.eigh(np.diag(s.sum(1)) - s))
    least, most = values[min(vectors, len(z)) - 1], values[max(len(z) - vectors, 0)]
    ends = [k for k, v in enumerate(values) if v < least + 1e-6], [k for k, v in enumerate(values) if v > most - 1e-6]
    return [sum((vector[:, [k]].float() @ vector[:, [k]].t().float() @ z for k in places), 0 * z) for places in ends]


class Plain(DenseClient):
    """A client that compares its model with the one that it received."""

    options: dict[str, Any]

    def chosen(self, share: float) -> list[int]:
        order = order_of(self.a_NN, self.view.train.tolist(), self.options["restart"])
        return sorted(order[: max(int(share * len(order)), 1)])

    def compared(self, number: int, known: list[Tensor]) -> float:
        if not known:
            return self.visit()
        own, p = self.options, unit(torch.stack(known))
        with torch.no_grad():
            sent = self.output().embedding_NH
        rows, teacher = self.chosen(own["aligned"]), (unit(sent) @ p.t() / own["tau"]).softmax(1)

        def term(out: Any) -> Tensor:
            z = out.embedding_NH
            student = (unit(z) @ p.t() / own["tau"]).log_softmax(1)
            kl = torch.stack([(q * (q.log() - s)).sum() for q, s in zip(teacher, student)]).mean()
            pairs = zip(*(bands(part[rows], own["neighbours"], own["vectors"]) for part in (z, sent)))
            return own["semantic"] * kl + own["spectral"] * sum((a - b).square().mean() for a, b in pairs)

        return self.visit(term)

    def prototypes(self) -> dict[int, tuple[Tensor, int]]:
        """Mean embeddings of central training nodes, and how many there are."""
        z, central = self.output().embedding_NH.detach(), set(self.chosen(self.options["central"]))
        of_class: dict[int, list[Tensor]] = {}
        for v, c in zip(self.view.train.tolist(), self.y.tolist()):
            if v in central:
                of_class.setdefault(c, []).append(z[v])
        return {c: (torch.stack(rows).mean(0), len(rows)) for c, rows in of_class.items()}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"name": "gcn", "hidden": 8}, {"aligned": 0.8, "vectors": 2, "spectral": 30.0}),
        (
            {"name": "gamlp", "hidden": 8},
            {"semantic": 5.0, "spectral": 0.0, "slots": 2, "sampled": 0.5, "central": 0.2, "restart": 0.3, "tau": 0.3},
        ),
        (
            {"name": "gamlp", "hidden": 8},
            {"semantic": 0.0, "spectral": 50.0, "aligned": 0.6, "neighbours": 2, "vectors": 1},
        ),
    ],
    ids=["both", "prototypes", "frequencies"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "s2fgl", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.0})
    w, options = server._initial.double(), {**DEFAULTS, **options}
    clients = [Plain(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]
    repository: dict[tuple[int, int], Tensor] = {}
    for client in clients:
        client.options = options
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        known, losses, sent = [repository[place] for place in sorted(repository)], {}, {}
        for i in cohort:
            clients[i].load(w)
            losses[i] = clients[i].compared(number, known)
            sent[i] = clients[i].prototypes()
        w = average([clients[i] for i in cohort], w)
        require_mean_loss(line, losses, [client.view for client in clients])
        torch.testing.assert_close(server.state.server["w"].double(), w, rtol=1e-3, atol=1e-4)
        rows = 8 * sum(map(len, sent.values()))
        assert line["bytes_up"] == 4 * (len(cohort) * (len(w) + 1 + CLASSES) + rows)
        bits = -(-CLASSES * options["slots"] // 8) if known else 0
        assert line["bytes_down"] == len(cohort) * (4 * (len(w) + 8 * len(known)) + bits)
        rng = torch.Generator().manual_seed(key(0, number, "server", "repository"))
        for slot in range(options["slots"]):
            drawn = torch.randperm(len(cohort), generator=rng)[: max(int(options["sampled"] * len(cohort)), 1)]
            for c in range(CLASSES):
                of_class = [sent[cohort[k]][c] for k in drawn.tolist() if c in sent[cohort[k]]]
                if of_class:
                    repository[c, slot] = sum(n * p for p, n in of_class) / sum(n for _, n in of_class)
        held = server.state.server
        assert held["known"].nonzero().tolist() == [list(place) for place in sorted(repository)]
        for place, p in repository.items():
            torch.testing.assert_close(held["proto"][place], p, rtol=1e-3, atol=1e-4)


def test_centrality_of_a_path_by_its_inverse(make_view: MakeView) -> None:
    view = make_view(5, [(0, 1), (1, 2), (2, 3)], [0] * 5, [0], 2)
    a = view.adjacency.to_dense().double().numpy()
    inverse = np.linalg.inv(np.eye(5) - 0.4 * a / np.maximum(a.sum(1, keepdims=True), 1))
    score = label_centrality(*view.csr, np.array([0, 2]), 0.6)
    np.testing.assert_allclose(score, inverse[:, [0, 2]].max(1) + 0.6 * inverse[:, [0, 2]].sum(1), rtol=1e-6)
    assert score[4] == 0
    # One node at least, the lowest number of equals, and in ascending order.
    assert central_nodes(*view.csr, np.array([4, 0]), 0.85, 0.1).tolist() == [0]
    assert central_nodes(*view.csr, np.array([4]), 0.85, 0.9).tolist() == [0, 1, 2, 4]
    assert central_nodes(*view.csr, np.array([0, 2]), 0.85, 1.0, 2).tolist() == [0, 2]
    assert central_nodes(*view.csr, np.array([], dtype=np.int64), 0.85, 0.4).tolist() == [0, 1]


def test_bands_of_two_pairs() -> None:
    """Two likenesses of two rows each: what is smooth is the mean of a pair, what is not its difference."""
    z = torch.tensor([[1.0, 0, 0.2], [1, 0, 0], [0, 1, 0.5], [0, 1, 0]], requires_grad=True)
    low, high = likeness_bands(z, 1, 2)
    mean = torch.stack([z[:2].mean(0)] * 2 + [z[2:].mean(0)] * 2)
    torch.testing.assert_close(low, mean)
    torch.testing.assert_close(high, z - mean)
    low[0, 0].backward()
    assert z.grad is not None
    torch.testing.assert_close(z.grad[:, 0], torch.tensor([0.5, 0.5, 0.0, 0.0]))


def test_bands_of_rows_that_have_no_likeness() -> None:
    for rows in (torch.zeros(3, 2), torch.ones(1, 2)):
        low, high = likeness_bands(rows, 3, 10)
        torch.testing.assert_close(low, rows)
        torch.testing.assert_close(high, rows)
