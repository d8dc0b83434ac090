"""Three machines, each disturbed in mid-round: the run ends with the numbers of an undisturbed one, to the last bit."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import PATIENCE, Runs, assert_same_numbers, until
from three_hosts import Cluster

ON_CLUSTER = (
    "engine.backend=ray",
    "engine.hosts=3",
    f"ray.address={Cluster.address}",
    "resources.cpus_per_host=1",
    "engine.cell_timeout=30",
)
BUSY, AGGREGATING = "ray::HostActor.run", "ray::ServerActor.round"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Runs(tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.getbasetemp() / "data").finish()


@pytest.fixture
def runs(cluster: Cluster, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path, tmp_path_factory.getbasetemp() / "data", cluster)


def cut(cluster: Cluster) -> None:
    cluster.cut(1)


def kill_machine(cluster: Cluster) -> None:
    cluster.kill(2)


def kill_raylet(cluster: Cluster) -> None:
    cluster.process(2, "raylet").kill()


def kill_host_actor(cluster: Cluster) -> None:
    cluster.process(1, BUSY).kill()


def kill_server_actor(cluster: Cluster) -> None:
    next(filter(None, (cluster.process(host, AGGREGATING) for host in range(3)))).kill()


@pytest.mark.parametrize("disturb", [cut, kill_machine, kill_raylet, kill_host_actor, kill_server_actor])
def test_disturbed_in_mid_round(
    cluster: Cluster, runs: Runs, undisturbed: Path, disturb: Callable[[Cluster], None]
) -> None:
    process = runs.start(*ON_CLUSTER)
    until(lambda: runs.rounds() >= 3, process)
    until(lambda: cluster.process(1, BUSY) and cluster.process(2, BUSY), process)
    disturb(cluster)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()
    assert_same_numbers(runs.run, undisturbed)
    lines = [json.loads(line) for line in (runs.run / "metrics.jsonl").read_text().splitlines()]
    assert any(line["retries"] for line in lines) or "server lost" in (runs.run / "run.log").read_text()


def test_driver_killed_and_resumed_with_one_host_fewer(cluster: Cluster, runs: Runs, undisturbed: Path) -> None:
    process = runs.start(*ON_CLUSTER)
    until(lambda: runs.rounds() >= 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cluster.kill(2)
    assert_same_numbers(runs.finish(*ON_CLUSTER, "engine.hosts=2", "--resume"), undisturbed)
