"""FedProto by hand on clients that lack classes, in whole rounds written out, and through the engine against Local."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, PlainClients, Start
from torch import Tensor

from shoal.algorithms.base import Output


@pytest.mark.parametrize("more", [{}, {"algorithm.lam": 3.0, "train.batch_size": 2, "model.name": "gamlp"}])
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_clients: PlainClients, assert_holds: Check, more: Keys
) -> None:
    """Prototypes are those of whole activations, of this cohort alone; a class that is not there keeps its own."""
    server = start({**patchy, "algorithm.name": "fedproto", "model.hidden": 8, **more})
    clients, lam = plain_clients(server), more.get("algorithm.lam", 1.0)
    proto: dict[int, np.ndarray] = {}

    def loss(out: Output, y: Tensor) -> Tensor:
        distances = [
            (z - torch.from_numpy(proto[c]).float()).square().sum()
            for z, c in zip(out.embedding_NH, y.tolist())
            if c in proto
        ]
        plain = F.cross_entropy(out.logits_NC, y)
        return plain + lam / 8 * torch.stack(distances).mean() if distances else plain

    for number in range(1, 8):
        line, rows, up = server.round(), dict[int, list[np.ndarray]](), 0
        for i in server.cohort(number):
            clients[i].train(number, loss, more.get("train.batch_size", 100))
            embeddings = clients[i].embeddings()
            up += 4 * (8 * len(embeddings) + 4)
            for c, found in embeddings.items():
                rows.setdefault(c, []).extend(found)
        down = len(server.cohort(number)) * (4 * 8 * len(proto) + 1) if number > 1 else 0
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        proto.update({c: np.mean(found, 0) for c, found in rows.items()})
        held = server.state.server
        assert held["known"].nonzero()[:, 0].tolist() == sorted(proto)
        for c, p in proto.items():
            np.testing.assert_allclose(held["proto"][c], p, rtol=1e-3, atol=1e-5)
        assert_holds(server, clients)
