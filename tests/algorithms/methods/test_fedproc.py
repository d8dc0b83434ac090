"""FedProc: its schedule and loss by hand, and whole rounds written out."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.methods.fedproc import Contrasted, FedProc
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


def test_the_share_falls_from_alpha_to_almost_nothing(make_context: Callable[..., Any]) -> None:
    shares = [
        FedProc(alpha=0.8).further_downloads(replace(make_context(1, 2), round=t, rounds=4))["share"]
        for t in (1, 2, 3, 4)
    ]
    torch.testing.assert_close(torch.stack(shares), torch.tensor([0.8, 0.6, 0.4, 0.2]))
    constant = FedProc(alpha=0.8, schedule="constant").further_downloads(replace(make_context(1, 2), round=4, rounds=4))
    assert float(constant["share"]) == pytest.approx(0.8)
    assert constant["share"].dtype == torch.float32


def test_loss_by_hand() -> None:
    z = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 1.0]])
    out, method = Output(torch.zeros(3, 3), z), FedProc(temperature=0.5)
    received = Contrasted(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 2]), 0.25)
    # Class 1 has no prototype.
    y = torch.tensor([0, 2, 1])
    first, second = math.log(1 + math.exp(0.4)), math.log(1 + math.exp(2))
    found = method.loss(out, y, torch.zeros(1), received)
    assert float(found) == pytest.approx(0.25 * (first + second) / 2 + 0.75 * math.log(3))
    alone = method.loss(out, torch.tensor([1, 1, 1]), torch.zeros(1), replace(received, share=1.0))
    assert float(alone) == pytest.approx(math.log(3))
    assert float(method.loss(out, y, torch.zeros(1), None)) == pytest.approx(math.log(3))


def test_without_the_contrast_it_is_fedavg_to_the_last_bit(run: Run) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": 0.7}
    fedavg = run({**keys, "algorithm.name": "fedavg", "engine.trainer": "autograd"}).state.server["w"]
    mine = {"algorithm.name": "fedproc"}
    assert torch.equal(run({**keys, **mine, "algorithm.alpha": 0.0}).state.server["w"], fedavg)
    assert not torch.equal(run({**keys, **mine}).state.server["w"], fedavg)


@pytest.mark.parametrize("wrong", [{"alpha": -0.1}, {"alpha": 1.1}, {"temperature": 0}, {"temperature": -1}])
def test_options_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FedProc(**wrong)
