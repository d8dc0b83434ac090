"""Three machines, each disturbed in mid-round: the run ends with the numbers of an undisturbed one, to the last bit."""

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from integration.runs import PATIENCE, Runs, assert_same_numbers, until
from integration.three_hosts import HEAD, Cluster
from support.unpacked import unpack

from shoal.engine.records.metrics import read_metrics

ON_CLUSTER = (
    "engine.backend=ray",
    "engine.hosts=3",
    f"ray.address={HEAD}",
    "resources.cpus_per_host=1",
    "engine.cell_timeout=30",
)
# Long enough for what is killed to be missed before the run ends: a worker looks for its raylet once a second.
LONG = {"train": {"epochs": 160}}
HOST, BUSY, SERVER = "ray::HostActor", "ray::HostActor.run", "ray::ServerActor"


@pytest.fixture
def runs(cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path, tmp_path_factory.getbasetemp() / "data", cluster)


DISTURBANCES: dict[str, Callable[[Cluster], None]] = {
    "cut": lambda cluster: cluster.cut(1),
    "kill machine": lambda cluster: cluster.kill(2),
    "kill raylet": lambda cluster: cluster.process(2, "raylet").kill(),
    "kill host actor": lambda cluster: cluster.process(1, HOST).kill(),
    "kill server actor": lambda cluster: cluster.find(SERVER).kill(),
}


def noticed(runs: Runs) -> int:
    """Losses in the log. Between two cells a host is not lost with one, but has to be asked in again."""
    return sum(runs.log().count(event) for event in ("lost with host", "is back", "server lost"))


@pytest.fixture(scope="module")
def long_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Runs(tmp_path_factory.mktemp("long"), tmp_path_factory.getbasetemp() / "data", **LONG).here()


def finish_disturbed(cluster: Cluster, runs: Runs, disturbance: str) -> None:
    """A whole run, disturbed in the midst of its fourth round or a later one."""
    process = runs.start(*ON_CLUSTER)
    until(lambda: runs.rounds() >= 3, process)
    until(lambda: cluster.process(1, BUSY) and cluster.process(2, BUSY), process)
    DISTURBANCES[disturbance](cluster)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_disturbed_in_mid_round(
    cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, long_undisturbed: Path, disturbance: str
) -> None:
    runs = Runs(tmp_path, tmp_path_factory.getbasetemp() / "data", cluster, **LONG)
    finish_disturbed(cluster, runs, disturbance)
    assert_same_numbers(runs.run, long_undisturbed)
    assert noticed(runs)


@pytest.mark.slow
@pytest.mark.parametrize("disturbance", ["kill machine", "kill host actor", "kill server actor"])
def test_disturbed_where_states_stay_with_hosts(
    cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, disturbance: str
) -> None:
    """States of 100 kB and more: a machine takes those of its clients with it, the run goes back to a checkpoint."""
    keys: dict[str, Any] = {"model": {"name": "mlp", "hidden": 1000}, "train": {"epochs": 20}}
    root = tmp_path_factory.getbasetemp() / "data"
    undisturbed = Runs(tmp_path_factory.mktemp("undisturbed"), root, **keys).here()
    runs = Runs(tmp_path, root, cluster, **keys)
    finish_disturbed(cluster, runs, disturbance)
    assert len(list((runs.run / "checkpoints").glob("*/clients-*.safetensors"))) > 1
    assert_same_numbers(runs.run, undisturbed)


@pytest.mark.slow
def test_a_machine_that_comes_back(cluster: Cluster, runs: Runs) -> None:
    process = runs.start(*ON_CLUSTER, "rounds=300")
    until(lambda: runs.rounds() >= 3, process)
    cluster.kill(2)
    until(lambda: read_metrics(runs.run)[-1]["hosts"]["alive"] == 2, process)
    cluster.start(2)
    until(lambda: read_metrics(runs.run)[-1]["hosts"]["alive"] == 3, process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "is back, on 10.77.0.12" in runs.log()


def kill_driver(cluster: Cluster) -> None:
    for process in cluster.processes(0):
        if "run" in process.cmdline() and "shoal" in process.cmdline():
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_chaos(cluster: Cluster, runs: Runs, undisturbed: Path, seed: int) -> None:
    """Something is killed some time between the first call and the last; what stops is started again with --resume."""
    chance = random.Random(seed)
    disturb = chance.choice([*DISTURBANCES.values(), kill_driver])
    after_rounds, delay = chance.randrange(8), chance.uniform(0, 0.3)
    process = runs.start(*ON_CLUSTER)
    until(lambda: runs.rounds() >= after_rounds and (after_rounds or cluster.process(1, BUSY)), process)
    time.sleep(delay)
    # What is to be killed may be gone at that moment.
    with contextlib.suppress(AttributeError, psutil.Error):
        disturb(cluster)
    _, errors = process.communicate(timeout=PATIENCE)
    if process.returncode != 0:
        assert process.returncode in (2, -signal.SIGKILL)
        assert "Traceback" not in errors.decode()
        cluster.heal()
        runs.finish(*ON_CLUSTER, "--resume")
    assert_same_numbers(runs.run, undisturbed)


@pytest.mark.slow
def test_shards_spread_over_local_disks(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, undisturbed: Path
) -> None:
    """Every machine has the manifest and a third of the clients; cells of three clients cross the machines."""
    data = shutil.copytree(tmp_path_factory.getbasetemp() / "data", tmp_path_factory.mktemp("unpacked") / "data")
    (store,) = (data / "stores").glob("sbm-*")
    unpack(store)
    for host in range(3):
        disk = tmp_path_factory.mktemp(f"disk{host}")
        for path in (path for path in store.rglob("*") if path.is_file()):
            if not path.stem.isdigit() or int(path.stem) % 3 == host:
                (disk / path.relative_to(store)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, disk / path.relative_to(store))
        cluster.kill(host)
        cluster.disks[host] = (disk, store)
    try:
        cluster.heal()
        in_one_place = Runs(tmp_path_factory.mktemp("one"), data).finish("engine.cell_size=3")
        spread = Runs(tmp_path_factory.mktemp("spread"), data, cluster).finish(*ON_CLUSTER, "engine.cell_size=3")
    finally:
        cluster.disks.clear()
        for host in range(3):
            cluster.kill(host)
    assert_same_numbers(spread, in_one_place)
