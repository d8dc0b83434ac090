"""FedDistill by hand on clients that lack classes, in whole rounds written out, and against Local."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, PlainClients, Start
from torch import Tensor

from shoal.algorithms.base import Output


@pytest.mark.parametrize("more", [{}, {"algorithm.gamma": 3.0, "train.batch_size": 2, "model.name": "gamlp"}])
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, more: Keys
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
