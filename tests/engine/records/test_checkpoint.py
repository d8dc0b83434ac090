"""Checkpoints: what was saved comes back, the newest few are kept, damaged ones are passed over and named."""

import os
from pathlib import Path

import numpy as np
import torch

from engine.records import checkpoint
from engine.rounds.state import FederationState


def state(number: int) -> FederationState:
    return FederationState(
        round=number,
        server={"w": torch.full((3,), float(number)), "met": torch.tensor([True, False])},
        clients={2: {"opt.exp_avg": torch.ones(3), "opt.step": torch.tensor(4.0)}},
        inboxes={7: {"w": torch.arange(3.0)}},
        downloads={number: {"w": torch.zeros(3)}},
        newest={2: number},
        scores={"served": {2: np.arange(12).reshape(2, 3, 2), 7: np.zeros((2, 3, 2), dtype=np.int64)}},
    )


def test_round_trip_and_keep(tmp_path: Path) -> None:
    for number in (2, 4, 6):
        checkpoint.save(tmp_path, state(number), {"torch": "x"}, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000004", "round-000006"]
    found = checkpoint.load_newest(tmp_path)
    assert found is not None
    loaded, environment, complaints = found
    assert environment == {"torch": "x"}
    assert not complaints
    tensors, plain = loaded.to_tensors()
    expected, expected_plain = state(6).to_tensors()
    assert plain == expected_plain
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_damaged_ones_are_passed_over(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    for number in (1, 2, 3):
        checkpoint.save(tmp_path, state(number), {}, keep=9)
    os.truncate(tmp_path / "round-000003" / checkpoint.TENSORS, 20)
    (tmp_path / "round-000002" / checkpoint.PLAIN).write_text("{")
    (tmp_path / "round-000009.unfinished").mkdir()
    found = checkpoint.load_newest(tmp_path)
    assert found is not None
    assert found[0].round == 1
    assert len(found[2]) == 2
    assert "round-000003" in found[2][0]
    assert "checksum" in found[2][0]
