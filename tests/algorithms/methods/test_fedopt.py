"""FedOPT in whole rounds, its server entry by entry in plain Python, and where it is FedAvg."""

import math
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from support.fixtures import Check, Keys, Make, Start

from shoal.algorithms.methods.fedopt import FedOPT

OTHER = {"eta": 0.3, "beta1": 0.6, "beta2": 0.7, "tau": 0.02, "momentum": 0.5}


def stepped(kind: str, o: Mapping[str, float], w: list[float], m: list[float], v: list[float], d: list[float]) -> None:
    """One step of the server on lists of numbers."""
    for k, change in enumerate(d):
        if kind == "momentum":
            m[k] = o["momentum"] * m[k] + change
            w[k] += o["eta"] * m[k]
            continue
        m[k] = o["beta1"] * m[k] + (1 - o["beta1"]) * change
        if kind == "adam":
            v[k] = o["beta2"] * v[k] + (1 - o["beta2"]) * change**2
        elif kind == "adagrad":
            v[k] += change**2
        elif v[k] > change**2:
            v[k] -= (1 - o["beta2"]) * change**2
        elif v[k] < change**2:
            v[k] += (1 - o["beta2"]) * change**2
        w[k] += o["eta"] * m[k] / (math.sqrt(v[k]) + o["tau"])


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("options", [{}, OTHER])
@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi", "adagrad"])
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_average: Make, assert_averaged: Check, kind: str, options: Mapping[str, float]
) -> None:
    chosen = {f"algorithm.{name}": value for name, value in options.items()}
    keys = {**patchy, "algorithm.name": "fedopt", "model.hidden": 3, "algorithm.weight": "train", **chosen}
    server = start({**keys, "algorithm.optimizer": kind} if kind != "adam" or options else keys)
    plain = plain_average(server, "train")
    o = {"eta": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "momentum": 0.9, **options}
    w, m, v = plain.w.tolist(), [0.0] * len(plain.w), [o["tau"] ** 2] * len(plain.w)
    assert ("v" in server.state.server) == (kind != "momentum")
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        before = plain.w
        plain.round(number, cohort, lambda module, out, y: F.cross_entropy(out.logits_NC, y))
        # Round 4 has nobody with a training row: nothing decays, and momentum moves nothing.
        assert (cohort == [3]) == torch.equal(before, plain.w)
        if cohort != [3]:
            stepped(kind, o, w, m, v, (plain.w - before).tolist())
        plain.w = torch.tensor(w)
        assert_averaged(server, plain)
        held = server.state.server
        torch.testing.assert_close(held["m"], torch.tensor(m), rtol=1e-3, atol=1e-5)
        if kind != "momentum":
            torch.testing.assert_close(held["v"], torch.tensor(v), rtol=1e-3, atol=1e-7)
        p = len(w)
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (p + 1), len(cohort) * 4 * p)


def test_yogi_where_moment_and_change_are_equal() -> None:
    server = {"w": torch.zeros(1), "m": torch.zeros(1), "v": torch.ones(1)}
    FedOPT(optimizer="yogi")._step(server, torch.ones(1))
    assert server["v"].tolist() == [1]
