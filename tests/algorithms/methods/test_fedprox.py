"""FedProx in whole rounds written out, and without its term."""

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, Start
from torch import Tensor, nn

from shoal.algorithms.models.layers.output import Output


@pytest.mark.parametrize("more", [{}, {"algorithm.mu": 2.0, "algorithm.weight": "train", "train.batch_size": 2}])
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, more: Keys
) -> None:
    server = start({**patchy, "algorithm.name": "fedprox", "model.hidden": 8, **more})
    plain, mu = plain_average(server, more.get("algorithm.weight", "nodes")), more.get("algorithm.mu", 0.01)

    def loss(module: nn.Module, out: Output, y: Tensor) -> Tensor:
        w = torch.cat([p.flatten() for p in module.parameters()])
        moved = [(now - sent) ** 2 for now, sent in zip(w, plain.w)]
        return F.cross_entropy(out.logits_NC, y) + mu * 0.5 * torch.stack(moved).sum()

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        plain.round(number, cohort, loss, more.get("train.batch_size", 100))
        assert_averaged(server, plain)
        p = len(plain.w)
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (p + 1), len(cohort) * 4 * p)
