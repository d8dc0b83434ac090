"""States of clients that stay on the devices of hosts: no copy a round, the bits of one process, also after a kill."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from support.fixtures import Start
from support.other_device.device import load
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.engine.cluster.ray_backend import HostActor
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.states import LOST_STATES
from shoal.engine.hosts import host
from shoal.engine.hosts.backend import ServerLost
from shoal.engine.messages.cell import OnDevice
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState

# 120 kB of parameters, with two moments of Adam.
KEYS: dict[str, Any] = {
    "model.name": "mlp",
    "model.hidden": 3000,
    "train.dropout": 0.0,
    "engine.trainer": "batched",
    "engine.cell_size": 3,
    "evaluation.every": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"participation.ratio": 0.7},
    "scaffold": {"train.optimizer": "sgd", "train.lr": 0.1},
    # Cells of other clients in every round, whose own models are evaluated in all.
    "fedproto": {"participation.ratio": 0.7},
}


class Crossing(TorchDispatchMode):
    """Counts the bytes that leave a device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self.bytes = device, 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if op.overloadpacket.__name__ in ("_to_copy", "copy_"):
            source = args[1] if op.overloadpacket.__name__ == "copy_" else args[0]
            if source.device == self._device != result.device:
                self.bytes += result.nbytes
        return result


class HostThere(HostActor):
    """A host that computes on the second device."""

    def __init__(self) -> None:
        super().__init__()
        # Guards look at visits.
        os.environ["SHOAL_CHECK_ALWAYS"] = "0"
        device = load()
        host.take_device = lambda name, share, precision: device
        self._crossing = Crossing(device)

    def run_call(self, *given: Any, **more: Any) -> Any:
        with self._crossing:
            return super().run_call(*given, **more)

    def left_device(self) -> int:
        """Returns the bytes that calls brought from the device since the last look."""
        found, self._crossing.bytes = self._crossing.bytes, 0
        return found


@pytest.fixture(scope="module")
def hosts_there(hosts: list[Any]) -> Iterator[list[Any]]:
    load()
    found = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[2])}}
    actor = ray.remote(HostThere).options(num_cpus=0, max_restarts=-1, max_task_retries=0, runtime_env=found)
    actors = [actor.remote() for _ in range(2)]
    ray.get([one.ping.remote() for one in actors])
    yield actors
    for one in actors:
        ray.kill(one)


@pytest.fixture
def alone(start: Start, there: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], Server]:
    """Starts a server of one process that computes on the second device."""
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")
    return lambda keys: start({**KEYS, **keys})


def server_of(
    hosts: list[Any], here: Server, name: str, state: FederationState | None = None
) -> tuple[Server, RayPool]:
    pool = RayPool(hosts, replace(here.job, id=name), 60.0, 4)
    pool.require_data(range(6))
    return Server(pool.job, here.plan, pool, state), pool


def tensors_of(state: FederationState, pool: RayPool | None = None) -> dict[str, Tensor]:
    """Everything a state has, on the processor."""
    kept = {} if pool is None else {i: ray.get(one.ref) for i, one in pool.fetch_states(state.kept).items()}
    clients = {i: {name: t.cpu() for name, t in tree.items()} for i, tree in {**state.clients, **kept}.items()}
    return replace(state, clients=clients).to_tensors()[0]


def require_same(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert mine.keys() == other.keys()
    assert all(torch.equal(t, other[name]) for name, t in mine.items())


def on_devices(state: FederationState) -> set[int]:
    return {client for client, one in state.kept.items() if isinstance(one.ref, OnDevice)}


@pytest.mark.parametrize("method", CASES)
def test_the_bits_of_one_process(hosts_there: list[Any], alone: Any, tmp_path: Path, method: str) -> None:
    here = alone({**CASES[method], "algorithm.name": method})
    away, pool = server_of(hosts_there, here, f"{tmp_path}")
    for _ in range(4):
        here.round()
        away.round()
    # Client 5 has no training node.
    assert {i for i, one in away.state.kept.items() if one.nbytes > 96_000} - {5} == on_devices(away.state) - {5}
    assert len(on_devices(away.state)) >= 4
    require_same(tensors_of(away.state, pool), tensors_of(here.state))
    # The other host is given what it does not have.
    pool.home = {client: 1 - home for client, home in pool.home.items()}
    for _ in range(2):
        here.round()
        away.round()
    require_same(tensors_of(away.state, pool), tensors_of(here.state))


def test_a_lost_host_has_lost_them(hosts_there: list[Any], alone: Any, tmp_path: Path) -> None:
    """Another server goes on from what was fetched, as for a checkpoint; rounds that follow leave that as it is."""
    here = alone({**CASES["scaffold"], "algorithm.name": "scaffold"})
    away, pool = server_of(hosts_there, here, f"{tmp_path}")
    for _ in range(2):
        here.round()
        away.round()
    fetched = replace(away.state.next_state(2), kept=pool.fetch_states(away.state.kept))
    away.round()
    away.round()
    ray.kill(hosts_there[0], no_restart=False)
    with pytest.raises(ServerLost, match=LOST_STATES):
        pool.fetch_states(away.state.kept)
    with pytest.raises(ServerLost, match=LOST_STATES):
        away.round()
    again, pool = server_of(hosts_there, here, f"{tmp_path}", fetched)
    for _ in range(2):
        here.round()
        again.round()
    require_same(tensors_of(again.state, pool), tensors_of(here.state))
    assert on_devices(again.state)


def test_no_state_leaves_the_device_in_a_round(hosts_there: list[Any], alone: Any, tmp_path: Path) -> None:
    """As many bytes as where clients keep nothing."""
    bytes_of_rounds = []
    for opt_state in ("keep", "reset"):
        here = alone({"algorithm.name": "fedavg", "train.opt_state": opt_state, "evaluation.every": 1})
        # A host alone: else the other one may take its last cell.
        away, _ = server_of(hosts_there[:1], here, f"{tmp_path}-{opt_state}")
        bytes_of_rounds.append([])
        # Other tests have rounds on this host, too.
        ray.get(hosts_there[0].left_device.remote())
        for _ in range(3):
            away.round()
            bytes_of_rounds[-1].append(ray.get(hosts_there[0].left_device.remote()))
        assert bool(on_devices(away.state)) == (opt_state == "keep")
    kept, reset = bytes_of_rounds
    assert kept == reset
    assert min(kept) > 0
