"""FedProto with averaged parameters, in whole rounds written out."""

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


@pytest.mark.parametrize("more", [{}, {"algorithm.lam": 3.0, "algorithm.weight": "train", "train.batch_size": 2}])
def test_rounds_written_out(
    start: Run, patchy: Keys, plain_average: Callable[..., Any], assert_averaged: Callable[..., None], more: Keys
) -> None:
    server = start({**patchy, "algorithm.name": "fedproto_averaged", "model.hidden": 8, **more})
    plain, lam = plain_average(server, more.get("algorithm.weight", "nodes")), more.get("algorithm.lam", 1.0)
    proto: dict[int, np.ndarray] = {}

    def loss(module: nn.Module, out: Output, y: Tensor) -> Tensor:
        squares = [
            (z - torch.from_numpy(proto[c]).float()).square().mean()
            for z, c in zip(out.embedding_NH, y.tolist())
            if c in proto
        ]
        plain = F.cross_entropy(out.logits_NC, y)
        return plain + lam * torch.stack(squares).mean() if squares else plain

    for number in range(1, 8):
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
        down = len(cohort) * (4 * p + (4 * 8 * known + 1 if number > 1 else 0))
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        assert_averaged(server, plain)
        held = server.state.server
        assert held["known"].nonzero()[:, 0].tolist() == sorted(proto)
        for c, row in proto.items():
            np.testing.assert_allclose(held["proto"][c], row, rtol=2e-3, atol=1e-5)
