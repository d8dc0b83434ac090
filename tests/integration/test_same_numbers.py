"""Same config, same numbers, to the last bit: on any number of hosts, after kills, after resumes. Real processes."""

import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from integration.runs import PATIENCE, Runs, assert_same_numbers, assert_same_so_far, until, working

from shoal.engine.config.sizes import machine_cores
from shoal.engine.records.metrics import read_metrics


@pytest.fixture
def runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path, tmp_path_factory.getbasetemp() / "data")


def test_hosts_server_and_driver_killed_in_mid_round(runs: Runs, undisturbed: Path) -> None:
    """Begun on a host for each core, ended without Ray."""

    def kill(title: str, after: int) -> None:
        until(lambda: runs.rounds() >= after, process)
        until(lambda: next(working(process, title), None), process).kill()

    process = runs.start("engine.backend=ray")
    kill("ray::HostActor.run", after=1)
    until(lambda: runs.rounds() >= 3, process)
    lines = read_metrics(runs.run)
    kill("ray::ServerActor", after=3)
    # The server's rounds begin again after the checkpoint of round 2.
    until(lambda: "server lost" in runs.log(), process)
    until(lambda: runs.rounds() >= 5, process)
    process.kill()
    process.wait()
    assert "lost with host" in runs.log()
    assert sum(line["retries"] for line in lines) >= 1
    assert set(lines[-1]["memory"]["hosts"]) == {str(host) for host in range(min(machine_cores(), 12))}
    for line in lines:
        memory, seconds = line["memory"], line["seconds"]
        assert all(2**20 < held < 2**34 for held in (memory["driver"], memory["server"], *memory["hosts"].values()))
        of_server = ("aggregate", "scoring", "transfer", "wait")
        assert sum(seconds[part] for part in of_server) == pytest.approx(seconds["round"])
        assert min(seconds.values()) >= 0
    assert_same_so_far(runs.run, undisturbed)
    assert_same_numbers(runs.here(resume=True), undisturbed)


def end_of(process: "subprocess.Popen[bytes]", name: str) -> str:
    """Kills a process of Ray's below a run, and gives the one line that the run ends with; none may be left."""
    everything = psutil.Process(process.pid).children(recursive=True)
    next(child for child in everything if name in child.name()).kill()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, errors.decode()
    (line,) = [text for text in errors.decode().splitlines() if text.startswith("shoal: ")]
    assert not psutil.wait_procs(everything, timeout=20)[1]
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("raylet", "ray: the process of Ray on this machine (raylet) has ended"),
        # It is given some time to come back.
        ("gcs_server", "ray: the control service of the cluster (GCS) at "),
    ],
)
def test_ray_itself_killed(runs: Runs, name: str, expected: str) -> None:
    long = ["rounds=2000", "run.checkpoint_every=5"]
    process = runs.start("engine.backend=ray", "engine.hosts=1", *long)
    until(lambda: runs.rounds() >= 6, process)
    line = end_of(process, name)
    assert expected in line
    assert "--resume" in line
    assert expected in runs.log()
    done = runs.rounds()
    process = runs.start(*long, "--resume")
    until(lambda: runs.rounds() > done, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_host_stopped(runs: Runs, undisturbed: Path) -> None:
    """A host that does not answer is replaced after `engine.cell_timeout`."""
    process = runs.start("engine.backend=ray", "engine.hosts=2", "engine.cell_timeout=5")
    until(lambda: runs.rounds() >= 2, process)
    until(lambda: next(working(process, "ray::HostActor.run"), None), process).suspend()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()
    assert_same_numbers(runs.run, undisturbed)
    assert "silent for 5 s" in runs.log()
