"""Compressed uploads against rounds and coders written out, and runs that go on as if nothing had been between."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.plain_fedavg import sgd_step
from support.small_cells import cell_of
from support.stages import pass_through
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Upload
from shoal.engine.rounds.reduction import upload_bytes
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.engine.stages.compression import compression
from shoal.engine.stages.compression.compression import Compression, round_at_random, sent_whole
from shoal.engine.stages.compression.section import CommunicationOptions

Start = Callable[..., Server]
LR, RATIO = 0.5, 0.2
# Softmax regression on the features, by one step of plain SGD a round.
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "participation.count": 2, "algorithm.weight": "train"}
TOPK = {"communication.upload": "topk", "communication.ratio": RATIO}


@pytest.fixture(autouse=True)
def _small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "LEAST", 10)


@pytest.mark.parametrize("feedback", [True, False])
def test_rounds_of_fedavg_with_the_largest_changes(start: Start, feedback: bool) -> None:
    server = start({**PLAIN, **TOPK, "communication.error_feedback": feedback})
    w = server.state.server["w"].numpy().copy()
    count = int(RATIO * len(w))
    left: dict[int, np.ndarray] = {}
    for number in (1, 2, 3):
        cohort = server.cohort(number)
        total, rows, sizes = np.zeros(len(w)), 0, list[int]()
        for client in cohort:
            after, size = sgd_step(server, client, w, LR)
            change = after - w + left.get(client, 0)
            sent = np.zeros_like(w)
            largest = np.argsort(-np.abs(change))[:count]
            sent[largest] = change[largest]
            if feedback and size:
                left[client] = change - sent
            sizes.append((8 * count if size else 4 * len(w)) + 4)
            total, rows = total + size * (w + sent).astype(np.float64), rows + size
        w = (total / rows).astype(np.float32)
        line = server.round()
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=2e-6)
        # Places and numbers of four bytes each, and a weight; all of a client that is not read.
        assert line["bytes_up"] == sum(sizes)
    kept = {i: tree for i, tree in server.state.clients.items() if tree}
    assert kept.keys() == left.keys()
    for client, tree in kept.items():
        np.testing.assert_allclose(tree["compression/train/left/w"], left[client], rtol=0, atol=2e-6)


def sent(options: Mapping[str, Any], upload: Upload, received: dict[str, Tensor], state: dict[str, Tensor]) -> Any:
    up = dict.fromkeys(upload.entries, Reduce.MEAN)
    cell = replace(evaluation_cell(1, [0], {}, {}), phase="train", up=up)
    return pass_through(Compression(CommunicationOptions(**options)), upload, cell, received, state)


def test_tensors_that_were_not_received_follow_their_values(start: Start) -> None:
    """Rows without weight are neither read nor sent; what is small or whole numbers goes as it is."""
    rows = torch.tensor([[1.0], [0.0], [2.0]])
    counts, few = torch.arange(20), torch.rand(9)
    server, state = np.zeros((3, 8), dtype=np.float32), {"own": few}
    for step in range(4):
        proto = torch.randn(3, 8, generator=torch.Generator().manual_seed(step))
        proto[1] = float("nan")
        upload = Upload({"proto": proto, "counts": counts, "few": few}, {"proto": rows})
        # A received tensor of another shape is another thing.
        found, kept = sent({"upload": "topk", "ratio": 0.25}, upload, {"proto": torch.ones(8)}, state)
        change = (proto.numpy() - server)[[0, 2]].ravel()
        largest = np.argsort(-np.abs(change))[:4]
        server[[[0], [2]], np.arange(8)] += np.where(np.isin(np.arange(16), largest), change, 0).reshape(2, 8)
        np.testing.assert_allclose(found.entries["proto"], server, rtol=0, atol=1e-6)
        assert (found.entries["counts"] is counts, found.entries["few"] is few) == (True, True)
        assert found.upload_bytes == {"proto": 4 * 8 + 3 * 4}
        assert state == {"own": few}
        state = {"own": few, **kept}


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto", "fedgta"])
def test_all_numbers_are_those_of_whole_uploads(start: Start, method: str) -> None:
    whole, of_all = (start({"algorithm.name": method, **keys}) for keys in ({}, {**TOPK, "communication.ratio": 1.0}))
    lines = [[server.round()["bytes_up"] for _ in range(2)] for server in (whole, of_all)]
    assert lines[0] == lines[1]
    one, other = (server.state.to_tensors()[0] for server in (whole, of_all))
    assert one.keys() == other.keys()
    assert all(torch.equal(t, other[name]) for name, t in one.items())


def test_a_byte_a_number_is_unbiased() -> None:
    change = torch.linspace(-1, 1, 64) ** 3
    draws = 4000
    found = torch.stack([round_at_random(change, torch.Generator().manual_seed(seed)) for seed in range(draws)])
    step = 1 / 127
    assert torch.allclose(found / step, (found / step).round(), atol=1e-4)
    assert float((found - change).abs().max()) <= step * 1.001
    # Five standard errors of a number between two steps at most.
    assert float((found.double().mean(0) - change).abs().max()) < 5 * step / 2 / draws**0.5
    assert not round_at_random(torch.zeros(3), torch.Generator()).any()
    upload = Upload({"w": torch.rand(100)}, {"w": 3.0})
    assert sent({"upload": "int8"}, upload, {}, {})[0].upload_bytes == {"w": 100 + 4 + 4}
    spoiled = sent({"upload": "int8"}, Upload({"w": torch.full((100,), float("nan"))}), {}, {})[0]
    assert spoiled.entries["w"].isnan().all()


@pytest.mark.parametrize(
    ("options", "parameters", "says"),
    [
        ({"upload": "none"}, [36], None),
        ({"upload": "int8"}, [255], "fewer than 256 numbers are sent whole, and a model has 255"),
        ({"upload": "topk"}, [36, 40], "and a model has 40"),
        ({"upload": "int8"}, [36, 256], None),
        # A number of four bytes has a place of four more.
        ({"upload": "topk", "ratio": 0.49}, [1000], None),
        ({"upload": "topk", "ratio": 0.5}, [1000], "take communication.ratio below 0.5"),
        ({"upload": "topk", "ratio": 0.9}, [36, 1000], "take communication.ratio below 0.5"),
    ],
)
def test_a_model_that_is_sent_whole_is_said(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], parameters: list[int], says: str | None
) -> None:
    monkeypatch.setattr(compression, "LEAST", 256)
    how = CommunicationOptions(**options)
    line = sent_whole(how, parameters)
    assert line == "" if says is None else says in line
    # A client sends its models so.
    shorter = []
    for count in parameters:
        value = torch.randn(count, generator=torch.Generator().manual_seed(0))
        cell, upload = cell_of([0], up={"w": Reduce.MEAN}), Upload({"w": value})
        sent = upload
        if how.upload != "none":
            sent, _ = pass_through(Compression(how), upload, cell)
        shorter.append(upload_bytes(sent) < value.nbytes)
    assert any(shorter) == (says is None and how.upload != "none")
