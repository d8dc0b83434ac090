"""FPL: its loss and its server by hand, and whole rounds written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, Start
from torch import Tensor, nn

from shoal.algorithms.losses.prototypes import bits
from shoal.algorithms.methods.fpl import FPL
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import Ask, Reduce, Replies

Centres = dict[int, list[np.ndarray]]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())


def terms(z_NH: Tensor, y: Tensor, centres: Centres, tau: float) -> tuple[Tensor, Tensor]:
    """The contrast and the pull of a batch, row by row."""
    apart, pulls = [], []
    for z, c in zip(z_NH, y.tolist()):
        if c not in centres:
            continue
        mean = torch.from_numpy(np.mean(centres[c], 0)).float()
        pulls.append((z - mean).square().mean())
        exps = {
            k: [(cosine(z, torch.from_numpy(m).float()) / tau).exp() for m in found] for k, found in centres.items()
        }
        if len(centres) > 1:
            own, all_ = torch.stack(exps[c]).sum(), torch.stack([e for found in exps.values() for e in found]).sum()
            apart.append(-(own / all_).log())
    zero = torch.zeros(())
    return torch.stack(apart).mean() if apart else zero, torch.stack(pulls).mean() if pulls else zero


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    "more",
    [
        {"algorithm.tau": 0.3},
        {"algorithm.tau": 0.5, "algorithm.cpcl": 2.0, "algorithm.upcr": 3.0, "algorithm.cluster_from": 1},
        {"algorithm.cpcl": 0.0, "train.batch_size": 2, "algorithm.weight": "train"},
        {"algorithm.upcr": 0.0, "algorithm.tau": 0.4, "model.name": "gamlp"},
    ],
)
def test_whole_rounds(start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, more: Keys) -> None:
    server = start({**patchy, "algorithm.name": "fpl", "model.hidden": 8, **more})
    plain = plain_average(server, more.get("algorithm.weight", "nodes"))
    o = {name: more.get(f"algorithm.{name}", value) for name, value in {"cpcl": 1, "upcr": 1, "tau": 0.02}.items()}
    centres: Centres = {}

    def loss(module: nn.Module, out: Output, y: Tensor) -> Tensor:
        apart, pull = terms(out.embedding_NH, y, centres, o["tau"])
        return F.cross_entropy(out.logits_NC, y) + o["cpcl"] * apart + o["upcr"] * pull

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        plain.round(number, cohort, loss, more.get("train.batch_size", 100))
        p, bank, up = len(plain.w), sum(map(len, centres.values())), 0
        fresh: Centres = {}
        for i in cohort:
            found = plain.clients[i].embeddings()
            up += 4 * (p + 1 + 8 * len(found)) + 1
            for c, rows in found.items():
                fresh.setdefault(c, []).append(rows.mean(0))
        # No class has more than three prototypes in a cohort: they are one cluster, or kept apart.
        assert max(map(len, fresh.values()), default=0) <= 3
        if "algorithm.cluster_from" in more:
            fresh = {c: [np.mean(found, 0)] for c, found in fresh.items()}
        centres |= fresh
        assert (line["bytes_up"], line["bytes_down"]) == (up, len(cohort) * 4 * (p + 9 * bank))
        assert_averaged(server, plain)
        held = server.state.server
        assert held["bank.class"].tolist() == [c for c in sorted(centres) for _ in centres[c]]
        expected = np.stack([m for c in sorted(centres) for m in centres[c]])
        np.testing.assert_allclose(held["bank"], expected, rtol=2e-3, atol=1e-5)


def replies(proto: list[list[list[float] | None]]) -> Replies:
    """Of clients whose prototype of every class is given; None: a class that a client lacks."""
    rows = torch.tensor([[row or [9.0, 9.0] for row in client] for client in proto])
    present = torch.stack([bits(torch.tensor([row is not None for row in client])) for client in proto])
    weight = torch.tensor(1.0)
    return Replies(list(range(len(proto))), {"w": torch.ones(2), "proto": rows, "present": present}, {"w": weight})


def test_the_bank_by_hand(make_context: Make) -> None:
    method, server = FPL(), {"w": torch.zeros(2)}

    def send(proto: list[list[list[float] | None]]) -> Ask:
        ctx = make_context(len(proto), 3)
        steps = method.round(server, ctx, range(len(proto)))
        ask = next(steps)
        assert isinstance(ask, Ask)
        with pytest.raises(StopIteration):
            steps.send(replies(proto))
        told = any(row is not None for client in proto for row in client)
        assert ctx.notes == ({"clusters": float(len(server["bank"]))} if told else {})
        return ask

    ask = send([[None, None, None]])
    assert ask.up == {"w": Reduce.MEAN, "proto": Reduce.STACK, "present": Reduce.STACK}
    assert ask.phase == "train"
    assert list(server) == ["w"]
    # Class 2: two directions of two clients each. Class 0: too few to cluster.
    four = [[1.0, 0.0], [3.0, 0.2], [0.0, 1.0], [0.2, 5.0]]
    ask = send([[[2.0, i], None, row] if i < 2 else [None, None, row] for i, row in enumerate(four)])
    assert ask.shared.keys() == {"w"}
    assert server["bank.class"].tolist() == [0, 0, 2, 2]
    torch.testing.assert_close(server["bank"], torch.tensor([[2, 0], [2, 1], [2, 0.1], [0.1, 3]]))
    assert server["bank.class"].dtype == torch.int32
    before = server["bank"]
    # Class 0 is told anew, class 1 for the first time, class 2 by nobody.
    ask = send([[[7.0, 7.0], [1.0, 1.0], None]])
    assert torch.equal(ask.shared["bank"], before)
    assert server["bank.class"].tolist() == [0, 1, 2, 2]
    torch.testing.assert_close(server["bank"], torch.tensor([[7, 7], [1, 1], [2, 0.1], [0.1, 3]]))
    held = dict(server)
    send([[None, None, None]])
    assert torch.equal(server["bank"], held["bank"])
