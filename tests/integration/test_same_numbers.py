"""Same config, same numbers, to the last bit: on any number of hosts, after kills, after resumes. Real processes."""

import json
import random
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from integration.runs import PATIENCE, ROUNDS, Runs, assert_same_numbers, until, working


@pytest.fixture
def runs(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path, tmp_path_factory.getbasetemp() / "data")


def test_driver_killed_at_random_rounds_and_resumed_on_any_number_of_hosts(runs: Runs, undisturbed: Path) -> None:
    """Begun without Ray, resumed on three hosts, and without Ray again."""
    first, second = sorted(random.Random("driver").sample(range(1, ROUNDS - 1), 2))
    for stop, arguments in ((first, []), (second, ["--resume", "engine.backend=ray", "engine.hosts=3"])):
        process = runs.start(*arguments)
        until(lambda stop=stop: runs.rounds() >= stop, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert_same_numbers(runs.here(resume=True), undisturbed)


def test_host_killed_in_mid_round(runs: Runs, undisturbed: Path) -> None:
    process = runs.start("engine.backend=ray", "engine.hosts=2")
    for stop in (2, 5):
        until(lambda stop=stop: runs.rounds() >= stop, process)
        until(lambda: next(working(process, "ray::HostActor.run"), None), process).kill()
    assert process.wait(timeout=PATIENCE) == 0
    lines = [json.loads(line) for line in (runs.run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["retries"] for line in lines) >= 2
    assert (runs.run / "run.log").read_text().count("lost with host") >= 2
    for line in lines:
        memory, seconds = line["memory"], line["seconds"]
        assert all(2**20 < held < 2**34 for held in (memory["driver"], memory["server"], *memory["hosts"].values()))
        assert seconds["aggregate"] + seconds["transfer"] + seconds["wait"] == pytest.approx(seconds["round"])
        assert min(seconds.values()) >= 0
    assert set(lines[-1]["memory"]["hosts"]) == {"0", "1"}
    assert_same_numbers(runs.run, undisturbed)


def test_server_killed_in_mid_round(runs: Runs, undisturbed: Path) -> None:
    process = runs.start("engine.backend=ray", "engine.hosts=2")
    until(lambda: runs.rounds() >= 3, process)
    until(lambda: next(working(process, "ray::ServerActor"), None), process).kill()
    assert process.wait(timeout=PATIENCE) == 0
    assert_same_numbers(runs.run, undisturbed)
    assert "server lost" in (runs.run / "run.log").read_text()


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
    assert expected in (runs.run / "run.log").read_text()
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
    assert "silent for 5 s" in (runs.run / "run.log").read_text()
