"""FedTGP's server on hand-made uploads, and its rounds through the engine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.base import Context, Tree
from algorithms.client import ClientInfo
from algorithms.methods.fedtgp import FedTGP
from algorithms.protocol import Replies
from algorithms.train_options import TrainOptions
from engine.rounds.server import Server

Run = Callable[..., Server]
# Two clients with classes 0 and 1, one with class 1 only; nobody has class 2.
PROTO = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0, 0]], [[0.8, 0.1], [0.1, 1.2], [0, 0]], [[0, 0], [0.0, 0.9], [0, 0]]])
COUNTS = torch.tensor([[5, 1, 0], [2, 2, 0], [0, 9, 0]], dtype=torch.int32)


def context(round_number: int) -> Context:
    infos = [ClientInfo(i, 9, 3, 3) for i in range(3)]
    return Context(
        clients=infos,
        classes=3,
        features=2,
        hops=0,
        train=TrainOptions(),
        models={},
        initial=torch.zeros(1),
        build=lambda name, number: pytest.fail("no model is asked for"),
        device=torch.device("cpu"),
        round=round_number,
        rounds=2,
        seed=0,
        random=lambda purpose: 1,
    )


def server_step(server: Tree, proto: Tensor, counts: Tensor, **options: Any) -> tuple[Tree, dict[str, float]]:
    """A round on hand-made uploads: what was sent, and the notes."""
    ctx = context(1)
    steps = FedTGP(**options).round(server, ctx, range(len(proto)))
    ask = next(steps)
    with pytest.raises(StopIteration):
        steps.send(Replies(list(range(len(proto))), {"proto": proto, "counts": counts}, {}))
    return dict(ask.shared), ctx.notes  # type: ignore[union-attr]


def test_anchors_come_to_lie_at_their_classes() -> None:
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


def test_padding_is_never_read() -> None:
    clean: Tree = {}
    server_step(clean, PROTO, COUNTS)
    poisoned = PROTO.clone()
    poisoned[COUNTS == 0] = float("nan")
    dirty: Tree = {}
    server_step(dirty, poisoned, COUNTS)
    for name, tensor in clean.items():
        assert torch.equal(dirty[name], tensor), name


def test_the_order_of_clients_changes_nothing() -> None:
    left: Tree = {}
    right: Tree = {}
    server_step(left, PROTO, COUNTS)
    server_step(right, PROTO.flip(0), COUNTS.flip(0))
    torch.testing.assert_close(left["proto"], right["proto"], rtol=1e-4, atol=1e-5)


def test_a_class_nobody_trains_on_this_time_stays_known() -> None:
    server: Tree = {}
    server_step(server, PROTO, COUNTS)
    server_step(server, PROTO[2:], COUNTS[2:])
    assert server["known"].tolist() == [True, True, False]
    before = server["proto"].clone()
    server_step(server, PROTO[:1], torch.zeros(1, 3, dtype=torch.int32))
    assert torch.equal(server["proto"], before)


def test_nobody_has_anything() -> None:
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
