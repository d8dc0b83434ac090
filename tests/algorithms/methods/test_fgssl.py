"""FGSSL in whole rounds against dense matrices and loops, without its terms, and what it refuses."""

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView, ModuleOf, Start, Views
from support.plain_clients import TorchClient
from support.plain_dropout import reached
from support.small_fedgkc import answer, as_sparse, dense_operator
from support.written_rounds import require_mean_loss, require_model_bytes
from torch import Tensor

from shoal.algorithms.methods.fgssl import FGSSL, likeness_distilled
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.rng import key

DEFAULTS = asdict(FGSSL())


def cosines(own_H: Tensor, others_NH: Tensor) -> Tensor:
    """Of one row with others, `[N]`; with a row of zeros, which has no direction, it is zero and has no gradient."""
    found = []
    for other_H in others_NH:
        known = own_H.detach().any() and other_H.detach().any()
        found.append(own_H @ other_H / own_H.norm() / other_H.norm() if known else torch.zeros(()))
    return torch.stack(found)


@dataclass
class Plain(TorchClient):
    """A client whose graph is a dense matrix."""

    options: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.a_NN, self.x_NF = self.view.adjacency.to_dense().double(), self.view.whole(0)
        self.edges = np.argwhere(np.triu(self.a_NN.numpy(), 1))

    def altered(self, shares: tuple[float, float]) -> Output:
        kept_F = torch.rand(self.x_NF.shape[1], generator=self.views) >= shares[1]
        kept_M = torch.rand(len(self.edges), generator=self.views) >= shares[0]
        a_NN = torch.zeros_like(self.a_NN)
        for i, j in self.edges[kept_M.numpy()]:
            a_NN[i, j] = a_NN[j, i] = 1
        return answer(self.module, a_NN, self.x_NF * kept_F)

    def labels(self) -> Tensor:
        if hasattr(self.module, "convs"):
            operator = dense_operator(self.module.operator, self.a_NN)  # type: ignore
            levels = reached(self.a_NN, self.view.train, len(self.module.convs))  # type: ignore
            matrices = [as_sparse(operator[after][:, before]) for before, after in pairwise(levels)]
            out = self.module(Neighbourhood(self.x_NF[levels[0]], tuple(matrices)))
        else:
            out = self.module([self.view.hop(k)[self.view.train] for k in self.module.inputs])  # type: ignore
        return F.cross_entropy(out.logits_NC, self.y)

    def semantic(self, sent: Output, own: Output) -> Tensor:
        rows, y = self.view.train, self.y
        if len(rows) > self.options["anchors"]:
            chosen = torch.randperm(len(rows), generator=self.drawn)[: self.options["anchors"]]
            rows, y = rows[chosen], y[chosen]
        terms = []
        for v, c in zip(rows, y):
            scores = cosines(own.embedding_NH[v], sent.embedding_NH[rows])
            e = (scores / self.options["tau"]).exp()
            others = e[y != c].sum()
            terms.append(torch.stack([-(e[p] / (e[p] + others)).log() for p in (y == c).nonzero()[:, 0]]).mean())
        return torch.stack(terms).mean()

    def structure(self, sent: Output, own: Output) -> Tensor:
        terms = []
        for i, row in enumerate(self.a_NN):
            near = row.nonzero()[:, 0]
            if len(near):
                q, p = (
                    (cosines(out.logits_NC[i], out.logits_NC[near]) / self.options["omega"]).softmax(0)
                    for out in (sent, own)
                )
                terms.append((q * (q.log() - p.log())).sum())
        return torch.stack(terms).mean() if terms else torch.zeros(())

    def visit(self, round_number: int) -> float:
        if not len(self.y):
            return float("nan")
        self.views, self.drawn = (
            torch.Generator().manual_seed(key(0, round_number, self.number, purpose))
            for purpose in ("views", "anchors")
        )
        self.module.eval()
        with torch.no_grad():
            sent = self.altered(self.options["weak"])
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        loss = torch.zeros(())
        for _ in range(2):
            self.optimizer.zero_grad()
            loss = self.labels()
            own = self.altered(self.options["strong"])
            loss = loss + self.options["contrast"] * self.semantic(sent, own)
            loss = loss + self.options["structure"] * self.structure(sent, own)
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"name": "gamlp", "hidden": 8}, {}),
        ({"name": "gcn", "hidden": 8}, {"structure": 2.0, "omega": 0.2, "weak": (0.1, 0.2), "strong": (0.5, 0.3)}),
        ({"name": "sgc", "layers": 2, "hidden": 8}, {"contrast": 0.3, "tau": 0.5, "anchors": 4, "strong": (0.2, 0.3)}),
        ({"name": "sage", "hidden": 8}, {"contrast": 0.0, "structure": 3.0}),
    ],
    ids=["defaults", "structure", "few anchors", "structure alone"],
)
def test_rounds_written_out(
    start: Start,
    views: Views,
    module_of: ModuleOf,
    unequal: dict[str, Any],
    model: dict[str, Any],
    options: dict[str, Any],
) -> None:
    algorithm = {"algorithm.name": "fgssl", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.3})
    clients = [
        Plain(i, view, module_of(server, server._initial), {**DEFAULTS, **options})
        for i, view in enumerate(views(server))
    ]
    w = server._initial.double()
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), server.cohort(number)
        losses, total, count = {}, torch.zeros_like(w), 0
        for client in (clients[i] for i in cohort):
            client.load(w)
            losses[client.number] = client.visit(number)
            n = client.view.nodes * (len(client.y) > 0)
            total, count = total + n * client.w, count + n
        w = total / count if count else w
        require_mean_loss(line, losses, [client.view for client in clients])
        torch.testing.assert_close(server.state.server["w"].double(), w, rtol=1e-3, atol=1e-4)
        assert not any(not name.startswith("model.opt.") for kept in server.state.clients.values() for name in kept)
        require_model_bytes(line, len(w))


def test_likeness_in_compiled_code_and_in_torch(make_view: MakeView) -> None:
    """Torch takes float64; a row of zeros and a node without neighbours are among those of either."""
    generator = torch.Generator().manual_seed(5)
    edges = [(i, j) for i in range(9) for j in range(i) if (i * j + i) % 3]
    view = make_view(10, edges, [0] * 10, [0], 4)
    rows = [torch.randn(10, 4, generator=generator) for _ in range(2)]
    rows[0][2] = rows[1][3] = 0
    found = []
    for dtype in (torch.float32, torch.float64):
        teacher, student = (y.to(dtype, copy=True) for y in rows)
        loss = likeness_distilled(view, teacher, student.requires_grad_(), 0.3)
        (3 * loss).backward()
        assert student.grad is not None
        found.append((loss.detach().double(), student.grad.double()))
    for compiled, by_torch in zip(*found):
        torch.testing.assert_close(compiled, by_torch, rtol=1e-5, atol=1e-6)
    assert found[1][0] > 0.1


def test_very_small_temperatures_and_zero_rows(make_view: MakeView) -> None:
    view = make_view(6, [(0, 1), (0, 2), (0, 3), (1, 2), (3, 4)], [0] * 6, [0], 3)
    student = torch.zeros(6, 3, requires_grad=True)
    found = likeness_distilled(view, torch.eye(3).repeat(2, 1), student, 1e-3)
    found.backward()
    assert found.isfinite()
    assert student.grad is not None
    assert student.grad.isfinite().all()
