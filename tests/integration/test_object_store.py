"""Three machines without a shared disk: store and run are in an object store, behind a proxy that disturbs both."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.runs import ROUNDS, Runs, assert_same_numbers, until
from integration.test_three_hosts import DISTURBANCES, ON_CLUSTER
from integration.three_hosts import HEAD, HOSTS, Cluster
from support.object_server import ObjectServer, object_server

from shoal.engine.records.checkpoint import load_round
from shoal.engine.records.run_folder import CHECKPOINTS
from shoal.engine.runs.remote_run import copy_of, read_list
from shoal.storage.files.addresses import Folder, below

# States of 100 kB and more stay with hosts.
KEYS: dict[str, Any] = {"model": {"name": "mlp", "hidden": 1000}, "train": {"epochs": 20}}
OF_STORE = ("store/clients/", "store/splits/", "store/hops/")
PROCESS = f"""
import sys, ray
ray.init(address="{HEAD}", log_to_driver=False)
(host,) = [each for each in ray.util.list_named_actors(all_namespaces=True) if each["name"] == sys.argv[1]]
print(ray.get(ray.get_actor(**host).ping.remote()))
"""


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Iterator[ObjectServer]:
    """Serves machines of which each has a cache of its own."""
    before = dict(cluster.env)
    cache = tmp_path / "cache"
    cache.mkdir()
    with object_server(cluster.listening()) as server:
        cluster.env.update({name: os.environ[name] for name in os.environ if name.startswith("AWS_")})
        cluster.env["SHOAL_CACHE"] = str(cache)
        try:
            for host in range(HOSTS):
                disk = tmp_path / f"disk{host}"
                disk.mkdir()
                cluster.disks[host] = (disk, cache)
                cluster.kill(host)
            for host in range(HOSTS):
                cluster.start(host)
            yield server
        finally:
            cluster.env.clear()
            cluster.env.update(before)
            cluster.disks.clear()
            for host in range(HOSTS):
                cluster.kill(host)


@pytest.mark.slow
def test_hosts_and_server_killed_and_resumed_on_two_machines(
    cluster: Cluster, server: ObjectServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "data"
    undisturbed = Runs(tmp_path_factory.mktemp("undisturbed"), root, **KEYS).here()
    address = below(server.undisturbed("runs"), undisturbed.name)
    there = (f"data.store={server.address('store')}", f"run.root={server.address('runs')}")
    runs = Runs(tmp_path, root, cluster, **KEYS)
    server.disturb = 10
    command = [*cluster.inside(0, sys.executable), "-m", "shoal", "prepare", str(runs.config), *there]
    subprocess.run(command, env=cluster.env, check=True)
    process = runs.start(*ON_CLUSTER, *there, "run.checkpoint_every=1")

    def rounds() -> int:
        """Of the newest checkpoint in the object store."""
        return read_list(Folder(address)).get("round", 0)

    def another() -> None:
        before = rounds()
        until(lambda: rounds() > before, process)

    another()
    first = {(machine, path) for machine, path in server.readers if path.startswith(OF_STORE)}
    # Twelve clients lie in one pack of each kind.
    assert len(first) > 3
    # What was being read is read once the next round is done.
    another()
    server.readers.clear()
    parts = read_list(Folder(address))["files"]
    sizes: dict[str, int] = {}
    for name, (size, _) in parts.items():
        if "/clients-" in name:
            host = str(int(name.split("-")[2]))
            sizes[host] = sizes.get(host, 0) + size
    assert len(sizes) > 1
    most = max(sizes, key=lambda host: sizes[host])
    ask = [*cluster.inside(0, sys.executable), "-c", PROCESS, f"host-{most}"]
    os.kill(int(subprocess.run(ask, env=cluster.env, check=True, capture_output=True).stdout), 9)
    another()
    DISTURBANCES["kill server actor"](cluster)
    another()
    assert server.readers
    assert not server.readers & first
    process.kill()
    process.wait()
    cluster.kill(2)
    # A driver on another machine, which has never seen the run.
    runs.command = cluster.inside(1, sys.executable)
    cluster.env["SHOAL_CACHE"] = str(tmp_path / "other")
    process = runs.start(*ON_CLUSTER, *there, "engine.hosts=2", "--resume")
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    assert "resuming after round" in errors.decode()
    copy = copy_of(address)
    load_round(copy / CHECKPOINTS, ROUNDS)
    assert_same_numbers(copy, undisturbed)
