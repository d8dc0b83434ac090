"""FedDistill by hand on clients that lack classes, in whole rounds written out, and against Local."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Client, Output
from shoal.algorithms.methods.feddistill import FedDistill
from shoal.algorithms.models.build import build
from shoal.engine.rounds.reduction import upload_bytes
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

Run = Callable[..., Server]
Keys = Mapping[str, Any]
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5], [1.0, 1.0, 3.0]])


@pytest.fixture
def client(make_view: Callable[..., View], make_client: Callable[..., Client]) -> Client:
    """Rows 0 and 1 are of class 0, row 2 of class 1; class 2 is not trained on."""
    torch.manual_seed(0)
    return make_client(make_view(5, [], [0, 0, 1, 2, 2], [0, 1, 2], 3), build("mlp", 5, 3, 0, 0.5, {"hidden": 4}))


def test_mean_logits_by_hand(client: Client) -> None:
    sent = FedDistill().upload(client, None, "train")
    client.model.module.eval()
    with torch.no_grad():
        logits = client.model.module([torch.eye(5)]).logits_NC
    torch.testing.assert_close(
        sent.entries["proto"], torch.stack([(logits[0] + logits[1]) / 2, logits[2], 0 * logits[0]])
    )
    assert sent.weight["proto"].tolist() == [[2], [1], [0]]  # type: ignore[union-attr]
    assert upload_bytes(sent) == 4 * (2 * 3 + 3)


def test_loss_by_hand(client: Client) -> None:
    algorithm, y = FedDistill(gamma=3.0), torch.tensor([0, 1, 2])
    logits = LOGITS.clone().requires_grad_()
    out = Output(logits, torch.zeros(3, 4))
    plain = F.cross_entropy(LOGITS, y)
    # Class 1 has no mean logits; rows 0 and 2 are taught.
    mean = torch.tensor([[1.0, 0.0, 0.0], [9.0, 9.0, 9.0], [0.0, 0.0, 2.0]], requires_grad=True)
    received = mean, torch.tensor([True, False, True])
    p, q = mean.detach().softmax(1), LOGITS.softmax(1)
    terms = [sum(float(p[c, k] * (p[c, k].log() - q[c, k].log())) for k in range(3)) for c in (0, 2)]
    found = algorithm.loss(out, y, client.model.w, received)
    assert float(found.detach()) == pytest.approx(float(plain) + 3.0 * sum(terms) / 2, rel=1e-6)
    found.backward()
    assert mean.grad is None
    assert torch.equal(algorithm.loss(out, y, client.model.w, None), plain)
    assert torch.equal(FedDistill(gamma=0).loss(out, y, client.model.w, received), plain)
    nobody = mean, torch.zeros(3, dtype=torch.bool)
    assert torch.equal(algorithm.loss(out, y, client.model.w, nobody), plain)


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^gamma must not be negative$"):
        FedDistill(gamma=-1)


@pytest.mark.parametrize("more", [{}, {"algorithm.gamma": 3.0, "train.batch_size": 2, "model.name": "gamlp"}])
def test_rounds_written_out(
    start: Run,
    patchy: Keys,
    plain_clients: Callable[[Server], list[Any]],
    assert_holds: Callable[[Server, list[Any]], None],
    more: Keys,
) -> None:
    """The mean logits of a class run over the cohort's training rows of it, whoever has them."""
    server = start({**patchy, "algorithm.name": "feddistill", "model.hidden": 8, **more})
    clients, mean, gamma = plain_clients(server), dict[int, np.ndarray](), more.get("algorithm.gamma", 1.0)

    def loss(out: Output, y: Tensor) -> Tensor:
        terms = []
        for row, c in zip(out.logits_NC, y.tolist()):
            if c in mean:
                p = torch.from_numpy(mean[c]).float().softmax(0)
                terms.append((p * (p.log() - row.log_softmax(0))).sum())
        plain = F.cross_entropy(out.logits_NC, y)
        return plain + gamma * torch.stack(terms).mean() if terms else plain

    for number in range(1, 8):
        line, rows, up = server.round(), dict[int, list[np.ndarray]](), 0
        for i in server.cohort(number):
            client = clients[i]
            client.train(number, loss, more.get("train.batch_size", 100))
            client.module.eval()
            for row, c in zip(client.view.train, client.y.tolist()):
                with torch.no_grad():
                    out = client.module([client.view.hop(k)[row[None]] for k in client.module.inputs])
                rows.setdefault(c, []).append(out.logits_NC[0].double().numpy())
            up += 4 * (4 * len(set(client.y.tolist())) + 4)
        down = len(server.cohort(number)) * (4 * 4 * len(mean) + 1) if number > 1 else 0
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        mean.update({c: np.mean(found, 0) for c, found in rows.items()})
        assert server.state.server["known"].nonzero()[:, 0].tolist() == sorted(mean)
        for c, g in mean.items():
            np.testing.assert_allclose(server.state.server["proto"][c], g, rtol=1e-3, atol=1e-5)
        assert_holds(server, clients)


def test_without_the_term_it_is_local_to_the_last_bit(run: Run) -> None:
    keys = {"train.weight_decay": 0.01, "participation.ratio": 0.7}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"})
    off = run({**keys, "algorithm.name": "feddistill", "algorithm.gamma": 0})
    for i in range(6):
        for name, tensor in local.state.clients[i].items():
            assert torch.equal(off.state.clients[i][name], tensor), (i, name)


def test_labels_outside_the_training_rows_change_nothing(run: Run) -> None:
    plain, shuffled = (run({"algorithm.name": "feddistill"}, rounds=3, graph=graph) for graph in ("plain", "shuffled"))
    for name, tensor in plain.state.server.items():
        assert torch.equal(tensor, shuffled.state.server[name]), name
