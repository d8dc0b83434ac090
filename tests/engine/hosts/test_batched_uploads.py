"""What clients send, computed for several at once on a second device: what each would send by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.other_device.device import load

from shoal.algorithms.methods.fedgta import sketches_at_once
from shoal.algorithms.methods.fedpg import batched_annotation as side_by_side
from shoal.algorithms.methods.shared import batched_class_means as batched_class_means
from shoal.engine.hosts import host
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

METHOD = """
from dataclasses import dataclass
from pathlib import Path

import torch
from shoal.algorithms.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Together(FedAvg):
    folder: str = ""
    fails: str = ""
    alone: int = -1

    def uploads(self, clients, w, received, phase):
        for place, client in enumerate(clients):
            (Path(self.folder) / f"at once {client.info.client}").touch()
        if self.fails:
            raise torch.OutOfMemoryError("no room") if self.fails == "room" else RuntimeError("no luck")
        # As `upload` of each has it.
        made = {}
        for place, client in enumerate(clients):
            if client.info.client != self.alone:
                client.model.load(w[place])
                made[place] = super().upload(client, received[place], phase)
        return made

    def upload(self, client, received, phase):
        (Path(self.folder) / f"alone {client.info.client}").touch()
        if self.fails and client.info.client == self.alone:
            raise RuntimeError("bad luck")
        return super().upload(client, received, phase)
"""
KEYS: dict[str, Any] = {"rounds": 1, "train.dropout": 0.3, "engine.cell_size": 6, "engine.trainer": "batched"}
Run = Callable[..., Server]


@pytest.fixture
def away(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a config on the second device."""
    other = load()

    def away(keys: dict[str, Any]) -> Server:
        with monkeypatch.context() as patch, torch.autograd.set_multithreading_enabled(False):
            patch.setattr(host, "take_device", lambda name, share, precision: other)
            return run(keys)

    return away


def own(folder: Path, **options: Any) -> dict[str, Any]:
    (folder / "own.py").write_text(METHOD)
    marks = folder / "marks"
    marks.mkdir()
    values = {"name": f"{folder / 'own.py'}:Together", "folder": str(marks), **options}
    return {**KEYS, **{f"algorithm.{name}": value for name, value in values.items()}}


def marks(folder: Path) -> set[str]:
    return {path.name for path in (folder / "marks").iterdir()}


def same(found: Server, expected: Server) -> None:
    for name, tensor in expected.state.server.items():
        torch.testing.assert_close(found.state.server[name], tensor, rtol=1e-4, atol=1e-6)


def test_those_that_are_left_out_are_asked_alone(run: Run, away: Run, tmp_path: Path) -> None:
    """Client 5 has no training node, and was not trained with the others."""
    found = away(own(tmp_path, alone=2))
    assert marks(tmp_path) == {*(f"at once {i}" for i in range(5)), "alone 2", "alone 5"}
    same(found, run({**KEYS, "algorithm.name": "fedavg"}))


def test_without_room_each_is_asked_alone(run: Run, away: Run, tmp_path: Path) -> None:
    found = away(own(tmp_path, fails="room"))
    assert marks(tmp_path) == {*(f"at once {i}" for i in range(5)), *(f"alone {i}" for i in range(6))}
    same(found, run({**KEYS, "algorithm.name": "fedavg"}))


def test_whose_fault_it_is(away: Run, tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"client 3: .*bad luck"):
        away(own(tmp_path, fails="room", alone=3))


def test_a_mistake_is_not_hidden(away: Run, tmp_path: Path) -> None:
    """Nobody can tell whose fault it is: all of the batch have failed."""
    line = r"in one batch with clients \[0, .*4\]: .*own\.py, line 19, in uploads\(\): RuntimeError: no luck"
    with pytest.raises(ShoalError, match=f"client 0: {line}"):
        away(own(tmp_path, fails="code"))


def test_a_class_that_replaces_upload_is_asked_by_it(away: Run, tmp_path: Path) -> None:
    keys = own(tmp_path)
    file = tmp_path / "own.py"
    file.write_text(METHOD + "\n\n@dataclass(frozen=True)\nclass Later(Together):\n    upload = Together.upload\n")
    away({**keys, "algorithm.name": f"{file}:Later"})
    assert marks(tmp_path) == {f"alone {i}" for i in range(6)}


def test_on_the_processor_each_is_asked_alone(run: Run, tmp_path: Path) -> None:
    run(own(tmp_path))
    assert marks(tmp_path) == {f"alone {i}" for i in range(6)}


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
@pytest.mark.parametrize("model", [{"name": "mlp"}, {"name": "gcn", "head": "linear"}], ids=["rows", "graphs"])
@pytest.mark.parametrize("room", [2**28, 1], ids=["all", "one by one"])
def test_prototypes(
    run: Run, away: Run, monkeypatch: pytest.MonkeyPatch, method: str, model: dict[str, Any], room: int
) -> None:
    """Counts, too, by which the server weighs the clients."""
    by_momentum = {"train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9}
    keys = {**KEYS, **by_momentum, "rounds": 2, "algorithm": {"name": method}, "model": model}
    here = run(keys)
    monkeypatch.setattr(batched_class_means, "BYTES_AT_A_TIME", room)
    monkeypatch.setattr("shoal.algorithms.training.batched.size_groups.NO_MATTER", 0)
    there = away(keys)
    same(there, here)
    assert here.state.server["proto"].abs().max() > 0.01


@pytest.mark.parametrize("options", [{}, {"sketch_every": 2}, {"lp_seed": "predictions", "rows": "raw"}], ids=str)
@pytest.mark.parametrize("room", [2**28, 4_000, 1], ids=["all", "some", "one by one"])
def test_sketches(run: Run, away: Run, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], room: int) -> None:
    keys = {**KEYS, "rounds": 3, "algorithm": {"name": "fedgta", **options}, "model.name": "mlp"}
    here = run(keys)
    monkeypatch.setattr(sketches_at_once, "BYTES_AT_A_TIME", room)
    monkeypatch.setattr("shoal.algorithms.training.batched.size_groups.NO_MATTER", 0)
    there = away(keys)
    same(there, here)
    assert there.state.clients.keys() == here.state.clients.keys()
    for client, inbox in here.state.inboxes.items():
        torch.testing.assert_close(there.state.inboxes[client]["w"], inbox["w"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hops": 0, "noise": 0.5},
        {"hops": 1, "targets": "own"},
        {"alignment": "prototype", "pseudo_centres": 0.4, "mu": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("room", "sizes"), [(2**28, {5}), (25_000, {2, 3, 4}), (1, {1})], ids=["all", "some", "one by one"]
)
def test_neighbourhoods(
    run: Run, away: Run, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], room: int, sizes: set[int]
) -> None:
    """FedPG beside its loop on the processor: the term of the second visit, and what is sent after both."""
    by_momentum = {"train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9}
    keys = {**KEYS, **by_momentum, "rounds": 2, "algorithm": {"name": "fedpg", **options}, "model.name": "mlp"}
    here = run({**keys, "engine.trainer": "autograd"})
    monkeypatch.setattr(side_by_side, "BYTES_AT_A_TIME", room)
    monkeypatch.setattr("shoal.algorithms.training.batched.size_groups.NO_MATTER", 0)
    found: set[int] = set()
    of_group = side_by_side.SideBySide.weights

    def noted(self: side_by_side.SideBySide, hops: int) -> tuple[torch.Tensor, torch.Tensor]:
        found.add(self.clients)
        return of_group(self, hops)

    monkeypatch.setattr(side_by_side.SideBySide, "weights", noted)
    there = away(keys)
    assert max(found) in sizes
    same(there, here)
    for client, state in here.state.clients.items():
        assert there.state.clients[client].keys() == state.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(there.state.clients[client][name], tensor, rtol=1e-3, atol=1e-5)
