"""FedProc: its schedule and loss by hand, and whole rounds written out."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.models.layers.output import Output
from shoal.engine.rounds.server import Server

Run = Callable[..., Server]
Keys = Mapping[str, Any]


def apart(z_NH: Tensor, y: Tensor, proto: dict[int, np.ndarray], temperature: float) -> list[Tensor]:
    """-log of the own prototype's share, of every row whose class has one."""
    found = []
    for z, c in zip(z_NH, y.tolist()):
        if c in proto:
            exps = {}
            for k, p in proto.items():
                row = torch.from_numpy(p).float()
                exps[k] = torch.exp((z @ row) / (z @ z).sqrt() / (row @ row).sqrt() / temperature)
            found.append(-torch.log(exps[c] / sum(exps.values())))
    return found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.alpha": 0.6, "algorithm.temperature": 0.3, "algorithm.weight": "train", "train.batch_size": 2},
        {"algorithm.alpha": 0.4, "algorithm.schedule": "constant"},
    ],
)
def test_rounds_written_out(
    start: Run, patchy: Keys, plain_average: Callable[..., Any], assert_averaged: Callable[..., None], more: Keys
) -> None:
    server = start({**patchy, "algorithm.name": "fedproc", "model.hidden": 8, **more})
    plain = plain_average(server, more.get("algorithm.weight", "nodes"))
    proto: dict[int, np.ndarray] = {}
    alpha, falls = more.get("algorithm.alpha", 1.0), "algorithm.schedule" not in more

    for number in range(1, 8):
        share = alpha * (1 - (number - 1) / 7 if falls else 1)

        def loss(module: nn.Module, out: Output, y: Tensor, share: float = share) -> Tensor:
            plain = F.cross_entropy(out.logits_NC, y)
            terms = apart(out.embedding_NH, y, proto, more.get("algorithm.temperature", 1.0)) if len(proto) > 1 else []
            return share * torch.stack(terms).mean() + (1 - share) * plain if terms else plain

        line, cohort = server.round(), server.cohort(number)
        plain.round(number, cohort, loss, more.get("train.batch_size", 100))
        p, up, known = len(plain.w), 0, len(proto)
        rows: dict[int, list[np.ndarray]] = {}
        for i in cohort:
            embeddings = plain.clients[i].embeddings()
            up += 4 * (p + 1 + 8 * len(embeddings) + 4)
            for c, found in embeddings.items():
                rows.setdefault(c, []).extend(found)
        proto.update({c: np.mean(found, 0) for c, found in rows.items()})
        down = len(cohort) * (4 * p + 4 + (4 * 8 * known + 1 if number > 1 else 0))
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        assert_averaged(server, plain)
        for c, row in proto.items():
            np.testing.assert_allclose(server.state.server["proto"][c], row, rtol=2e-3, atol=1e-5)
