"""FedTGP's server on hand-made uploads, and its rounds through the engine."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, PlainClients, Start
from torch import Tensor, nn

from shoal.algorithms.base import Output
from shoal.algorithms.rng import key


class Anchors(nn.Module):
    """An anchor for each of four classes, of width 8, and the optimizer that goes on from round to round."""

    def __init__(self, seed: int, lr: float, weight_decay: float) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Parameter(torch.randn(4, 8))
        self.network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=lr, weight_decay=weight_decay)

    def forward(self) -> Tensor:
        return self.network(self.table)


def margin_of(uploads: list[tuple[int, Tensor]], cap: float) -> float:
    """The largest distance of a class's mean upload to the nearest mean of another class, at most `cap`."""
    own = {c: torch.stack([p for d, p in uploads if d == c]).mean(0) for c, _ in uploads}
    nearest = [min(float((own[c] - own[d]).norm()) for d in own if d != c) for c in own if len(own) > 1]
    return min(max(nearest, default=0.0), cap)


def server_loss(uploads: list[tuple[int, Tensor]], anchors: Tensor, known: set[int], margin: float) -> Tensor:
    """Every upload is a sample: the softmax over known classes of -distance, its own class's longer by the margin."""
    losses = []
    for c, p in uploads:
        far = {d: (p - anchors[d]).square().sum().sqrt() + margin * (d == c) for d in sorted(known)}
        losses.append(far[c] + torch.stack([-distance for distance in far.values()]).exp().sum().log())
    return torch.stack(losses).mean()


DEFAULTS = {"lam": 1.0, "server_lr": 0.01, "server_weight_decay": 5e-4, "margin_cap": 100.0}
OWN = [
    {"server_steps": 6},
    {"server_steps": 5, "lam": 2.0, "server_lr": 0.03, "server_weight_decay": 0.2, "margin_cap": 0.4},
    {"server_steps": 1, "margin_cap": 0.0},
]


@pytest.mark.parametrize("own", OWN)
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, own: dict[str, Any]
) -> None:
    """The server's network learns from the cohort's uploads alone; clients train towards all classes known by then."""
    more = {"model.hidden": 8, **{f"algorithm.{name}": value for name, value in own.items()}}
    server = start({**patchy, "algorithm.name": "fedtgp", **more})
    own, clients, known, margins = {**DEFAULTS, **own}, plain_clients(server), set[int](), []
    generator = Anchors(key(0, 1, "server", "generator"), own["server_lr"], own["server_weight_decay"])

    def loss(out: Output, y: Tensor) -> Tensor:
        pairs = [(z - anchors[c]).square().sum() for z, c in zip(out.embedding_NH, y.tolist()) if c in sent]
        plain = F.cross_entropy(out.logits_NC, y)
        return plain + own["lam"] / 8 * torch.stack(pairs).mean() if pairs else plain

    anchors = torch.zeros(4, 8)
    for number in range(1, 8):
        line = server.round()
        uploads, sent = [], set(known)
        for i in server.cohort(number):
            clients[i].train(number, loss)
            means = {c: torch.from_numpy(z.mean(0)).float() for c, z in clients[i].embeddings().items()}
            uploads += means.items()
        counted = {"bytes_up": 4 * (8 * len(uploads) + 4 * len(server.cohort(number)))}
        counted["bytes_down"] = len(server.cohort(number)) * (4 * 8 * len(sent) + 1) if number > 1 else 0
        assert counted.items() <= line.items()
        known |= {c for c, _ in uploads}
        margin = margin_of(uploads, own["margin_cap"])
        for _ in range(own["server_steps"] if uploads else 0):
            generator.optimizer.zero_grad()
            value = server_loss(uploads, generator(), known, margin)
            value.backward()
            generator.optimizer.step()
        anchors = generator().detach()
        margins.append(margin)
        notes = {"server loss": value.item(), "margin": margin} if uploads else {}
        assert line.get("notes", {}) == pytest.approx(notes, rel=1e-3)
        assert server.state.server["known"].nonzero()[:, 0].tolist() == sorted(known)
        np.testing.assert_allclose(server.state.server["proto"].numpy(), anchors.numpy(), rtol=1e-3, atol=1e-4)
        assert_holds(server, clients)
    assert margins[2:4] == [0, 0]
    assert (max(margins) == own["margin_cap"]) == (own["margin_cap"] < 1)
