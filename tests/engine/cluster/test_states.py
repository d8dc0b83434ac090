"""States of clients that stay with hosts: the bits of one process, also after a host is killed and after a resume."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import ObjectLostError
from safetensors.torch import load_file
from support.fixtures import Start
from support.needs import needs
from torch import Tensor

from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.states import LOST_STATES, hand_over_inboxes, hand_over_states, write_in_parallel
from shoal.engine.hosts.backend import ServerLost
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import ADDRESS, Checkpoint, load_round, write
from shoal.engine.records.logged_lines import Logged
from shoal.engine.records.remote_parts import OBJECTS
from shoal.engine.records.run_folder import CHECKPOINTS
from shoal.engine.rounds.reduction import Mixed
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.files.places import COPIES, cache_folder

# 80 kB of parameters, with two moments of Adam.
LARGE = {"model.name": "mlp", "model.hidden": 2000, "participation.ratio": 0.7, "rounds": 6, "evaluation.every": 2}


def all_of(state: FederationState) -> dict[str, Tensor]:
    """Everything a state has, wherever it is."""
    here = FederationState(**vars(state))
    here.clients = {**state.clients, **{i: ray.get(one.ref) for i, one in state.kept.items()}}
    rows = {(i, e): row for i, box in state.inboxes.items() for e, row in box.items() if isinstance(row, Mixed)}
    whole = {at: torch.cat(ray.get(list(row.refs))).reshape(row.shape) for at, row in rows.items()}
    here.inboxes = {i: {e: whole.get((i, e), t) for e, t in box.items()} for i, box in state.inboxes.items()}
    return here.to_tensors()[0]


def require_same(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert mine.keys() == other.keys()
    assert all(torch.equal(t, other[name]) for name, t in mine.items())


@needs("compression")
@pytest.mark.parametrize(("method", "hidden", "mixes"), [("fedgta", 40_000, True), ("local", 2000, False)])
def test_states_stay_with_hosts(
    hosts: list[Any], start: Start, tmp_path: Path, method: str, hidden: int, mixes: bool
) -> None:
    # What is mixed is compressed, too, and its blocks stay with hosts.
    how = {"communication.upload": "int8"} if mixes else {}
    here = start({**LARGE, "algorithm.name": method, "model.hidden": hidden, **how})
    job, plan = replace(here.job, id=f"{tmp_path}"), here.plan

    def server(state: FederationState | None = None) -> Server:
        pool = RayPool(hosts, job, 60.0, 4)
        pool.require_data(range(6))
        return Server(job, plan, pool, state)

    away = server()
    for _ in range(2):
        here.round()
        away.round()
    # Client 5 has no training node: it keeps next to nothing, but what compression left.
    assert {i for i in here.state.clients if mixes or i != 5} == away.state.kept.keys()
    require_same(all_of(away.state), here.state.to_tensors()[0])
    assert {len(row.refs) for box in away.state.inboxes.values() for row in box.values()} == ({1} if mixes else set())
    # The process that made a state is not needed any more; another one writes it.
    ray.kill(hosts[0], no_restart=False)
    # Written by the host that is left, here alone, and here since no host is in time.
    for number, (by, seconds) in enumerate((({0: hosts[0], 1: hosts[1]}, 60.0), ({}, 60.0), ({1: hosts[1]}, 0.0))):
        folder = tmp_path / str(number)
        folder.mkdir()
        digests = write_in_parallel(folder, away.state, by, seconds)
        here_alone = {name.startswith("here-") for name in digests}
        assert (number > 0) in here_alone
        assert number != 1 or here_alone == {True}
        written = {name: t for file in digests for name, t in load_file(folder / file).items()}
        require_same({**away.state.to_tensors()[0], **written}, here.state.to_tensors()[0])
    here.round()
    away.round()
    require_same(all_of(away.state), here.state.to_tensors()[0])
    # Another server goes on from what was read from files.
    state = FederationState.from_tensors(*here.state.to_tensors())
    state.kept = hand_over_states(state.clients)
    hand_over_inboxes(state.inboxes)
    assert state.kept
    assert any(isinstance(t, Mixed) for box in state.inboxes.values() for t in box.values()) == mixes
    again = server(state)
    here.round()
    again.round()
    require_same(all_of(again.state), here.state.to_tensors()[0])


@ray.remote(num_cpus=0)
class Owner:
    """What it puts into the cluster's memory ends with it."""

    def owned(self, trees: list[dict[str, Tensor]]) -> list[Any]:
        return [ray.put(tree) for tree in trees]


def test_lost_states_lose_the_server(hosts: list[Any], start: Start, tmp_path: Path) -> None:
    """A round that needs them cannot be run, nor a checkpoint be written; the run goes on from one before."""
    here = start({**LARGE, "algorithm.name": "local", "participation.ratio": 1.0})
    pool = RayPool(hosts, replace(here.job, id=f"{tmp_path}"), 60.0, 4)
    pool.require_data(range(6))
    server = Server(pool.job, here.plan, pool)
    server.round()
    kept = server.state.kept
    owner = Owner.remote()
    refs = ray.get(owner.owned.remote([ray.get(one.ref) for one in kept.values()]))
    server.state.kept = {i: replace(one, ref=ref) for (i, one), ref in zip(kept.items(), refs)}
    ray.kill(owner)

    def write_until_it_is_noticed() -> None:
        while True:
            write_in_parallel(tmp_path, server.state, dict(enumerate(hosts)), 60.0)

    with pytest.raises(ObjectLostError):
        write_until_it_is_noticed()
    with pytest.raises(ServerLost, match=LOST_STATES):
        server.round()


@ray.remote(num_cpus=0)
class Stranger:
    """A host that sees another object store at the same address."""

    def write_states(self, path: Path, *_: Any) -> str:
        return "0" * 32


def test_states_are_sent_to_the_address_of_a_run(
    hosts: list[Any], start: Start, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    here = start({**LARGE, "algorithm.name": "local", "participation.ratio": 1.0})
    here.round()
    kept = hand_over_states(dict(here.state.clients))
    assert kept
    states = {f"client/{i}/{name}": t for i, one in kept.items() for name, t in ray.get(one.ref).items()}
    # Copies of runs at addresses lie in the cache alone.
    copy = cache_folder() / COPIES[1] / f"{tmp_path.parent.name}-{tmp_path.name}" / "run"
    copy.mkdir(parents=True)
    request.addfinalizer(lambda: shutil.rmtree(copy.parent))
    (copy / ADDRESS).write_text(f"file://{tmp_path}/there")
    # No host has this folder.
    folder, objects = copy / CHECKPOINTS / "round-000001", tmp_path / "there" / OBJECTS
    found = write_in_parallel(folder, FederationState(kept=kept), dict(enumerate(hosts)), 60.0)
    assert sorted(found.values()) == sorted(path.name for path in objects.iterdir())
    require_same({name: t for path in objects.iterdir() for name, t in load_file(path).items()}, states)
    folder.mkdir(parents=True)
    found = write_in_parallel(folder, FederationState(kept=kept), {0: Stranger.remote()}, 60.0)
    assert sorted(found) == sorted(path.name for path in folder.iterdir())
    require_same({name: t for path in folder.iterdir() for name, t in load_file(path).items()}, states)


def test_large_states_are_written_in_parts(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkpoint, "PART_BYTES", 800_000)
    server = start({**LARGE, "algorithm.name": "fedgta"})
    server.round()
    folder = write(tmp_path, Checkpoint(server.state, {}, {}, Logged()))
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert all((folder / name).stat().st_size < 801_000 for name in files)
    require_same(load_round(tmp_path, 1).state.to_tensors()[0], server.state.to_tensors()[0])
    (folder / files[0]).write_bytes(b"")
    assert checkpoint.faults(tmp_path) == [f"{folder}: damaged ({files[0]}: checksum does not match)"]
