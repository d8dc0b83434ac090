"""FedTGP's server on hand-made uploads, and its rounds through the engine."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Context, Output, Tree
from shoal.algorithms.methods.fedtgp import FedTGP
from shoal.algorithms.protocol import Replies
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server

Run = Callable[..., Server]
Keys = Mapping[str, Any]
PlainClients = Callable[[Server], list[Any]]
AssertHolds = Callable[[Server, list[Any]], None]
Step = Callable[..., tuple[Tree, dict[str, float]]]
# Two clients with classes 0 and 1, one with class 1 only; nobody has class 2.
PROTO = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0, 0]], [[0.8, 0.1], [0.1, 1.2], [0, 0]], [[0, 0], [0.0, 0.9], [0, 0]]])
COUNTS = torch.tensor([[5, 1, 0], [2, 2, 0], [0, 9, 0]], dtype=torch.int32)


@pytest.fixture
def server_step(make_context: Callable[..., Context]) -> Step:
    """Gives a round on hand-made uploads: what was sent, and the notes."""

    def server_step(server: Tree, proto: Tensor, counts: Tensor, **options: Any) -> tuple[Tree, dict[str, float]]:
        ctx = make_context(3, 3)
        steps = FedTGP(**options).round(server, ctx, range(len(proto)))
        ask = next(steps)
        with pytest.raises(StopIteration):
            steps.send(Replies(list(range(len(proto))), {"proto": proto, "counts": counts}, {}))
        return dict(ask.shared), ctx.notes  # type: ignore[union-attr]

    return server_step


def test_anchors_come_to_lie_at_their_classes(server_step: Step) -> None:
    server: Tree = {}
    sent, notes = server_step(server, PROTO, COUNTS, server_steps=300)
    assert sent == {}
    # Means (.9, .05) and (1/30, 31/30), not divided by the number of clients once a class.
    assert notes["margin"] == pytest.approx(((0.9 - 1 / 30) ** 2 + (0.05 - 31 / 30) ** 2) ** 0.5, rel=1e-5)
    assert server["known"].tolist() == [True, True, False]
    nearest = torch.cdist(PROTO[COUNTS > 0], server["proto"][:2]).argmin(1)
    assert nearest.tolist() == [0, 1, 0, 1, 1]
    sent, _ = server_step(server, PROTO, COUNTS)
    assert len(sent["proto.rows"]) == 2


def test_the_margin_of_far_prototypes_is_capped(server_step: Step) -> None:
    assert server_step({}, 1000 * PROTO, COUNTS, server_steps=1)[1]["margin"] == 100
    assert server_step({}, 1000 * PROTO, COUNTS, server_steps=1, margin_cap=5.0)[1]["margin"] == 5


def test_padding_is_never_read(server_step: Step) -> None:
    clean: Tree = {}
    server_step(clean, PROTO, COUNTS)
    poisoned = PROTO.clone()
    poisoned[COUNTS == 0] = float("nan")
    dirty: Tree = {}
    server_step(dirty, poisoned, COUNTS)
    for name, tensor in clean.items():
        assert torch.equal(dirty[name], tensor), name


def test_the_order_of_clients_changes_nothing(server_step: Step) -> None:
    left: Tree = {}
    right: Tree = {}
    server_step(left, PROTO, COUNTS)
    server_step(right, PROTO.flip(0), COUNTS.flip(0))
    torch.testing.assert_close(left["proto"], right["proto"], rtol=1e-4, atol=1e-5)


def test_round_without_a_class_keeps_it_known(server_step: Step) -> None:
    server: Tree = {}
    server_step(server, PROTO, COUNTS)
    server_step(server, PROTO[2:], COUNTS[2:])
    assert server["known"].tolist() == [True, True, False]
    before = server["proto"].clone()
    server_step(server, PROTO[:1], torch.zeros(1, 3, dtype=torch.int32))
    assert torch.equal(server["proto"], before)


def test_round_without_uploads_changes_nothing(server_step: Step) -> None:
    server: Tree = {}
    server_step(server, PROTO, torch.zeros_like(COUNTS))
    sent, _ = server_step(server, PROTO, torch.zeros_like(COUNTS))
    assert sent == {}


@pytest.mark.parametrize("options", [{"server_steps": 0}, {"server_lr": 0.0}, {"margin_cap": -1.0}, {"lam": -1.0}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        FedTGP(**options)


def test_the_generator_is_part_of_the_state(run: Run) -> None:
    server = run({"algorithm.name": "fedtgp"}, rounds=2)
    assert {"generator", "generator.step", "generator.exp_avg", "generator.exp_avg_sq"} <= server.state.server.keys()
    assert float(server.state.server["generator.step"]) == 200


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
    start: Run, patchy: Keys, plain_clients: PlainClients, assert_holds: AssertHolds, own: dict[str, Any]
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
