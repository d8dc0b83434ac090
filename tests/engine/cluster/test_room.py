"""Numbers of hosts that fit machines with the server, by hand; and what `engine.hosts: auto` is there."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.fixtures import Configure

from shoal.algorithms.client import ClientInfo
from shoal.engine.cluster.ray_backend import RayBackend
from shoal.engine.cluster.room import OF_PROCESS, host_number, memory_of_host, places, resources_of, room, this_machine
from shoal.engine.config.sections import ResourcesConfig
from shoal.engine.config.sizes import machine_cores
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.messages.trainers import AUTOGRAD, BATCHED
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.rounds.sampling import most_cells
from shoal.engine.runs.plan import plan_of

CLIENTS = 6
Machines = list[dict[str, float]]
GIB = float(2**30)
CUDA = {"engine.device": "cuda"}
GPUS = {count: {"CPU": 16.0, "GPU": float(count)} for count in (1, 2, 8)}


@pytest.mark.parametrize(
    ("machine", "cpus", "gpus", "expected"),
    [
        ({"CPU": 4.0}, 1, 0, 4),
        ({"CPU": 6.0}, 4, 0, 1),
        ({"CPU": 3.0}, 0.3, 0, 10),
        ({"CPU": 2.0}, 0, 0, math.inf),
        ({}, 1, 0, 0),
        ({"CPU": 16.0, "GPU": 2.0}, 1, 0.5, 4),
        # Two of 0.6 would need 1.2 devices.
        ({"CPU": 16.0, "GPU": 2.0}, 1, 0.6, 2),
        ({"CPU": 16.0, "GPU": 1.0}, 1, 0.1, 10),
        ({"CPU": 2.0, "GPU": 8.0}, 1, 0.25, 2),
        ({"CPU": 16.0, "GPU": 5.0}, 1, 2, 2),
        ({"CPU": 16.0}, 0, 0.5, 0),
    ],
)
def test_places(machine: dict[str, float], cpus: float, gpus: float, expected: float) -> None:
    assert places(machine, cpus, gpus) == expected


@pytest.mark.parametrize(
    ("machines", "share", "expected"),
    [
        ([{"CPU": 4.0}, {"CPU": 2.0}], {}, 6),
        # The server takes its processors from one machine.
        *(([{"CPU": 4.0}, {"CPU": 2.0}], {"server_cpus": cpus}, room) for cpus, room in ((1.0, 5), (3.0, 3), (5.0, 0))),
        # The server goes where it costs the fewest hosts: to the machine whose last processor no host can use.
        ([{"CPU": 4.0}, {"CPU": 3.0}], {"cpus_per_host": 2.0, "server_cpus": 1.0}, 3),
        ([{"CPU": 3.0}, {"CPU": 4.0}], {"cpus_per_host": 2.0, "server_cpus": 1.0}, 3),
        # Shares of a GPU: beside the server's half there is room for one host of half a GPU.
        ([{"CPU": 8.0, "GPU": 1.0}], {"gpus_per_host": 0.5}, 2),
        ([{"CPU": 8.0, "GPU": 2.0}], {"gpus_per_host": 0.5, "server_gpus": 1.0}, 2),
        ([{"CPU": 8.0, "GPU": 1.0}], {"gpus_per_host": 1.0, "server_gpus": 1.0}, 0),
        ([{"CPU": 8.0}, {"CPU": 8.0, "GPU": 1.0}], {"server_gpus": 0.5}, 16),
        ([{"CPU": 8.0}, {"CPU": 8.0}], {"server_gpus": 0.5}, 0),
        ([{"CPU": 1.0}], {"cpus_per_host": 0.0, "server_cpus": 1.0}, math.inf),
        ([], {}, 0),
    ],
)
def test_room_reserves_the_servers_share(machines: Machines, share: dict[str, float], expected: float) -> None:
    before = [dict(machine) for machine in machines]
    assert room(machines, ResourcesConfig(**share)) == expected
    assert machines == before


@pytest.mark.parametrize(
    ("keys", "machines", "cells", "expected", "says"),
    [
        ({}, [{"CPU": 8.0}], 100, 8, "8 on Ray, 8 of 8 cores at work"),
        ({}, [{"CPU": 8.0}, {"CPU": 4.0}], 100, 12, "12 on Ray, 12 of 12 cores at work"),
        ({}, [{"CPU": 8.0}], 5, 5, "5 on Ray, 5 of 8 cores at work, as a round has 5 cells"),
        # Two machines of 1.5 and 0.75 GiB hold three hosts of half a GiB, and one.
        (
            {}, [{"CPU": 8.0, "memory": 1.5 * GIB}, {"CPU": 8.0, "memory": 0.75 * GIB}], 100, 4,
            "4 on Ray, 4 of 16 cores at work, as a host takes 512 MiB of memory",
        ),
        ({"engine.memory_limit": "1GiB"}, [{"CPU": 8.0, "memory": 9 * GIB}], 100, 2, "2 on Ray, 2 of 8 "),
        # A machine without room for any still runs one.
        ({}, [{"CPU": 1.0, "memory": 0.1 * GIB}], 100, 1, "1 on Ray, 1 of 1 core at work"),
        ({"resources.cpus_per_host": 4}, [{"CPU": 8.0}], 100, 2, "2 on Ray, 2 of 8 cores at work"),
        # A smaller share is for hosts beside others; one a core is the most that gains.
        ({"resources.cpus_per_host": 0.25}, [{"CPU": 2.0}], 100, 2, "2 on Ray, 2 of 2 cores at work"),
        ({"resources.gpus_per_host": 0.25}, [GPUS[1]], 100, 4, "4 on Ray, 1 of 1 GPU at work, each shared by 4 hosts"),
        # On GPUs there is a host for each, on one machine or several.
        (CUDA, [GPUS[2]], 100, 2, "2 on Ray, 2 of 2 GPUs at work"),
        (CUDA, [GPUS[8]], 100, 8, "8 on Ray, 8 of 8 GPUs at work"),
        (CUDA, [GPUS[1], {"CPU": 64.0}, GPUS[2]], 100, 3, "3 on Ray, 3 of 3 GPUs at work"),
        (CUDA, [GPUS[8]], 5, 5, "5 on Ray, 5 of 8 GPUs at work, as a round has 5 cells"),
        (
            CUDA, [{"CPU": 4.0, "GPU": 8.0}], 100, 4,
            "4 on Ray, 4 of 8 GPUs at work, as a host takes 1 of 4 cores (resources.cpus_per_host)",
        ),
        ({**CUDA, "resources.cpus_per_host": 0.5}, [{"CPU": 4.0, "GPU": 8.0}], 100, 8, "8 on Ray, 8 of 8 GPUs"),
        ({**CUDA, "resources.server_gpus": 0.5}, [GPUS[2]], 100, 1, "1 on Ray, 1 of 2 GPUs at work"),
        # More hosts than GPUs share them.
        ({**CUDA, "engine.hosts": 8}, [GPUS[2]], 100, 8, "8 on Ray, 2 of 2 GPUs at work, each shared by 4 hosts"),
        (
            {**CUDA, "engine.hosts": 3}, [GPUS[2]], 100, 3,
            "3 on Ray, 2 of 2 GPUs at work, each shared by 2 hosts at most",
        ),
        ({**CUDA, "engine.backend": "local"}, [GPUS[8]], 100, 1, "this process, 1 of 8 GPUs at work"),
        ({"engine.hosts": 3}, [{"CPU": 2.0}], 1, 3, "3 on Ray, 2 of 2 cores at work"),
        ({"engine.backend": "local"}, [{"CPU": 64.0}], 100, 1, "this process, 1 of 64 cores at work"),
    ],
)  # fmt: skip
def test_hosts_by_hand(
    configure: Configure, keys: dict[str, object], machines: Machines, cells: int, expected: int, says: str
) -> None:
    number = host_number(configure({"engine.backend": "ray", **keys}), machines, cells, int(GIB / 2))
    assert number.hosts == expected
    assert number.in_words().startswith(says)


@pytest.mark.parametrize(
    ("keys", "machines", "expected"),
    [
        ({}, [GPUS[8]], 0.0),
        ({"engine.device": "cpu", "resources.gpus_per_host": 2.0}, [GPUS[8]], 2.0),
        ({**CUDA, "resources.gpus_per_host": 0.2}, [GPUS[8]], 0.2),
        *((CUDA, machines, 1.0) for machines in ([], [GPUS[1]], [GPUS[8]])),
        *(({**CUDA, "engine.hosts": hosts}, [GPUS[2]], share) for hosts, share in ((2, 1.0), (3, 0.5), (4, 0.5))),
        # Seven seventh parts are one GPU for Ray, which counts four digits.
        ({**CUDA, "engine.hosts": 7}, [GPUS[1]], 0.1428),
        ({**CUDA, "engine.hosts": 12}, [GPUS[8]], 0.5),
        # The server's GPU is not shared, and a cluster that is joined may get more.
        ({**CUDA, "engine.hosts": 4, "resources.server_gpus": 0.5}, [GPUS[2]], 0.25),
        ({**CUDA, "engine.hosts": 4, "ray.address": "auto"}, [GPUS[2]], 1.0),
    ],
)
def test_shares_of_gpus_by_hand(
    configure: Configure, keys: dict[str, object], machines: Machines, expected: float
) -> None:
    config = configure({"engine.backend": "ray", **keys})
    resources = resources_of(config, machines)
    assert resources.gpus_per_host == expected
    if isinstance(hosts := config.engine.hosts, int) and config.ray.address is None:
        assert room(machines, resources) >= hosts


def test_this_machine_has_gpus_for_those_who_use_them(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    counted = [this_machine(configure(keys))["GPU"] for keys in ({}, CUDA, {"resources.gpus_per_host": 0.5})]
    assert counted == [0, 8, 8]


def test_memory_of_a_host_is_that_of_process_model_and_data() -> None:
    # A parameter has its gradient and two moments beside it, 4 bytes each; a visit holds its data eight times.
    assert memory_of_host(1000, 500) == OF_PROCESS + 16 * 1000 + 8 * 500


@pytest.mark.parametrize(
    ("keys", "models", "trainer", "expected"),
    [
        # All 100 clients are evaluated one by one; where the cohort is, or two are, ten train.
        ({}, 1, AUTOGRAD, 100),
        *(({"evaluation.clients": clients}, 1, AUTOGRAD, 10) for clients in ("cohort", 2)),
        ({"engine.cell_size": 30}, 1, AUTOGRAD, 4),
        # Clients of two models are in cells of their own: 34 and 66.
        ({"engine.cell_size": 40}, 3, AUTOGRAD, 3),
        # Batches are of the power of two next to a quarter of the clients: four of 32, or five of 2.
        ({}, 1, BATCHED, 5),
        ({"participation.ratio": 1.0}, 1, BATCHED, 4),
    ],
)
def test_cells_of_the_larger_phase_by_hand(
    configure: Configure, keys: dict[str, object], models: int, trainer: str, expected: int
) -> None:
    plan = plan_of(configure({"partition.clients": 100, "participation.ratio": 0.1, **keys}))
    infos = [ClientInfo(i, 10, 2, 3, model=int(i % 3 == 0) if models > 1 else 0) for i in range(100)]
    assert most_cells(plan, infos, [trainer]) == expected


@pytest.mark.slow
def test_runs_of_a_session_have_as_many_hosts_as_each_has_cells(configure: Configure, tmp_path: Path) -> None:
    """Runs of one client a round, of all, and of one: their numbers are those of one process."""
    one = {"participation.count": 1, "evaluation.clients": "cohort", "evaluation.last": "sample"}
    backend = RayBackend(configure({"engine.backend": "ray"}))
    try:
        for name, keys, cells in (("first", one, 1), ("second", {}, CLIENTS), ("third", one, 1)):
            config = configure(keys)
            job, plan = replace(make_job(config, prepare(config), name), id=f"{tmp_path}-{name}"), plan_of(config)
            backend.open(job, plan, None)
            here = LocalBackend()
            here.open(job, plan, None)
            line, expected = backend.round(unwatched), here.round(unwatched)
            hosts = min(machine_cores(), cells)
            assert line["hosts"]["of"] == hosts
            assert backend.describe_hosts().startswith(f"{hosts} on Ray, {hosts} of {machine_cores()} core")
            assert (line["loss"], line["scopes"]) == (expected["loss"], expected["scopes"])
            assert torch.equal(backend.state().server["w"], here.state().server["w"])
    finally:
        backend.close()
