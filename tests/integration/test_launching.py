"""Runs that others start and stop: jobs of a Ray cluster, and of SLURM."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from integration.three_hosts import HOSTS, Cluster
from rooms import ROOT
from support.small_runs import small_run
from support.toy_method import NAME as TOY

from shoal.engine.records.metrics import read_metrics

PATIENCE = 120
# Debian's SLURM, installed or unpacked below a folder.
SLURM = Path(os.environ.get("SLURM_ROOT", "/"))
LIBRARY = SLURM / "usr/lib/x86_64-linux-gnu"
SLURM_CONF = """
ClusterName=here
SlurmctldHost=node0(10.77.0.10)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CryptoType=crypto/none
CredType=cred/none
PluginDir={library}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """What the condition gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)
    return found


class Waiting:
    """A run whose third round waits for a file; `env` has a token and the tests' Python as `python`.

    Attributes:
        agent_port: Of the agent of the Ray head that `dashboard` starts.
    """

    agent_port = 0

    def __init__(self, folder: Path) -> None:
        (folder / "token").touch(mode=0o600)
        (folder / "token").write_text("0" * 64)
        self.go, self.folder, self.config = folder / "go", folder, folder / "config.yaml"
        # In the third round nothing ends before a file is there.
        method = {"name": TOY, "kind": "waits", "first": 0, "visits": 3, "go": str(self.go)}
        engine = {"backend": "ray", "hosts": 1}
        self.config.write_text(yaml.safe_dump(small_run(folder, rounds=5, algorithm=method, engine=engine)))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        self.env = {**os.environ, **token, "PATH": path, "OMP_NUM_THREADS": "1"}

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("runs/small-*/checkpoints/round-??????"))

    def rounds(self) -> int:
        return sum(len(read_metrics(run)) for run in self.folder.glob("runs/small-*"))

    def finished(self) -> bool:
        return any(self.folder.glob("runs/small-*/summary.json"))

    def call(self, *command: str) -> str:
        """What a command prints."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    return Waiting(tmp_path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def dashboard(waiting: Waiting) -> Iterator[str]:
    """The address at which a Ray head with a token takes jobs; its processes go at the end."""
    if importlib.util.find_spec("aiohttp_cors") is None:
        pytest.skip("jobs need ray[default]")
    places = [f"--{name}={free_port()}" for name in ("port", "dashboard-port", "dashboard-agent-listen-port")]
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp", ignore_cleanup_errors=True) as short:
        waiting.agent_port = int(places[2].partition("=")[2])
        try:
            waiting.call(*RAY, "start", "--head", *places, "--num-cpus=2", f"--temp-dir={short}")
            yield f"http://127.0.0.1:{places[1].partition('=')[2]}"
        finally:
            for process in psutil.process_iter():
                try:
                    if process.environ().get("RAY_AUTH_TOKEN_PATH") == waiting.env["RAY_AUTH_TOKEN_PATH"]:
                        process.kill()
                except psutil.Error:
                    continue


@pytest.mark.slow
def test_a_job_stopped_in_a_long_round_keeps_the_round_before_and_resumes(waiting: Waiting, dashboard: str) -> None:
    def submit() -> str:
        printed = waiting.call("python", "-m", "shoal", "submit", str(waiting.config), "--address", dashboard)
        return re.findall(r"submitted (\S+);", printed)[0]

    job = submit()
    until(lambda: waiting.rounds() == 2, "two rounds")
    assert waiting.checkpoints() == []
    waiting.call(*RAY, "job", "stop", "--no-wait", "--address", dashboard, job)
    until(waiting.checkpoints, "a checkpoint")
    assert waiting.checkpoints() == ["round-000002"]
    waiting.go.touch()
    submit()
    until(waiting.finished, "the end of the run")
    assert waiting.rounds() == 5


@pytest.mark.slow
def test_ray_s_agent_answers_the_probes_of_pods_without_a_token(waiting: Waiting, dashboard: str) -> None:
    job = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())["spec"]["rayClusterSpec"]
    pods = [job["headGroupSpec"], *job["workerGroupSpecs"]]
    containers = [container for pod in pods for container in pod["template"]["spec"]["containers"]]
    probes = [container[kind]["httpGet"] for container in containers for kind in ("livenessProbe", "readinessProbe")]
    assert [probe["port"] for probe in probes] == [52365] * 4
    for path in {probe["path"] for probe in probes} | {"/api/no_such_path"}:
        request = f"http://127.0.0.1:{waiting.agent_port}{path}"

        def answers(request: str = request) -> int:
            try:
                with urllib.request.urlopen(request, timeout=10) as reply:
                    return reply.status
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:
                return 0

        assert until(answers, "Ray's agent") == (200 if path == "/api/healthz" else 401)


@pytest.mark.parametrize(
    ("given", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "5", "SLURM_JOB_CPUS_PER_NODE": "16(x3)"}, 5),
        ({"SLURM_JOB_CPUS_PER_NODE": "16(x3)"}, 16),
        ({"SLURM_JOB_CPUS_PER_NODE": "64,16(x2),8"}, 8),
    ],
)
def test_a_step_of_slurm_asks_for_the_processors_of_its_hosts(tmp_path: Path, given: dict[str, str], cpus: int) -> None:
    """What the file of the documentation calls, with a program in place of `srun` that prints its arguments."""
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "token").write_text("0" * 64)
    usual = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    job = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "3", "HEAD": "10.0.0.1", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}

    def call(*arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        command = ["bash", str(ROOT / "docs" / "slurm.sbatch"), *arguments]
        return subprocess.run(command, env={**usual, **env}, capture_output=True, text=True, timeout=60)

    done = call("mine.yaml", "rounds=3", "name=two words", **job, **given)
    assert (done.returncode, done.stderr) == (0, "")
    step, _, run = done.stdout.partition("\n--\n")
    assert step.split("\n")[:4] == ["--kill-on-bad-exit=1", f"--cpus-per-task={cpus}", "ray", "symmetric-run"]
    assert f"--num-cpus={cpus}" in step.split("\n")
    words = run.strip().split("\n")
    assert words[-2:] == ["rounds=3", "name=two words"]
    assert f"engine.hosts={3 * cpus}" in words
    assert "give a config" in call(**job, **given).stderr
    assert "submit it by sbatch" in call("mine.yaml").stderr


class Slurm:
    """Debian's SLURM on three machines, a slurmd in each namespace of network, processes, names and mounts."""

    def __init__(self, cluster: Cluster, folder: Path, env: dict[str, str]) -> None:
        self.cluster, self.folder = cluster, folder
        for name in ("state", "links", "bin"):
            (folder / name).mkdir()
        # slurmd starts this one from /usr/sbin.
        (folder / "links" / "slurmstepd").symlink_to(SLURM / "usr/sbin/slurmstepd-wlm")
        for name, arguments in (("ray", "-m ray.scripts.scripts"), ("python", "")):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        names = [f"10.77.0.1{host} node{host}" for host in range(HOSTS)]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(names))
        nodes = "".join(f"NodeName=node{host} NodeAddr=10.77.0.1{host} CPUs=1\n" for host in range(HOSTS))
        (folder / "slurm.conf").write_text(SLURM_CONF.format(folder=folder, library=LIBRARY / "slurm-wlm") + nodes)
        self.env = {
            **env,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{LIBRARY}:{LIBRARY}/slurm-wlm",
        }
        self.env["PATH"] = f"{folder / 'bin'}:{SLURM / 'usr/bin'}:{env['PATH']}"
        self.daemons = [self.daemon(0, "slurmctld"), *(self.daemon(host, "slurmd") for host in range(HOSTS))]

    def daemon(self, host: int, name: str) -> "subprocess.Popen[bytes]":
        # Raylets that start in one folder at once may take the same socket.
        ray = "mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray"
        setup = f"mount --bind {self.folder}/hosts /etc/hosts && hostname node{host} && {ray}"
        overlay = f"mount -t overlay overlay -o lowerdir={self.folder}/links:/usr/sbin /usr/sbin"
        # The shell is the first process of its namespace, and all others end with it.
        script = f"{setup} && {overlay} && {SLURM}/usr/sbin/{name}-wlm -D & wait"
        spaces = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts"]
        with (self.folder / f"{name}{host}.log").open("wb") as log:
            # `ip netns exec` would hide the control groups, which slurmd looks for.
            command = ["nsenter", f"--net=/run/netns/{self.cluster.name(host)}", *spaces, "sh", "-c", script]
            return subprocess.Popen(command, env=self.env, stdout=log, stderr=subprocess.STDOUT)

    def call(self, *command: str) -> str:
        """What a command of SLURM prints on the first machine."""
        command = tuple(self.cluster.inside(0, *command))
        done = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=60)
        return done.stdout

    def end(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()


@pytest.fixture
def slurm(waiting: Waiting, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    if not (SLURM / "usr/sbin/slurmctld-wlm").exists():
        pytest.skip("Debian's slurmctld and slurmd are not installed; SLURM_ROOT may name a folder with them")
    cluster = request.getfixturevalue("cluster")
    for host in range(HOSTS):
        cluster.kill(host)
    slurm = Slurm(cluster, waiting.folder, waiting.env)
    try:
        until(lambda: slurm.call("sinfo", "--noheader", "--format=%T %D").strip() == "idle 3", "three idle nodes", 60)
        yield slurm
    finally:
        slurm.end()


@pytest.mark.slow
def test_a_job_of_slurm_that_is_cancelled_leaves_a_checkpoint_and_resumes(waiting: Waiting, slurm: Slurm) -> None:
    """The file of the documentation, on three nodes of one processor each."""

    def submit() -> str:
        options = ["--cpus-per-task=1", "--output=%j.out", str(ROOT / "docs" / "slurm.sbatch"), str(waiting.config)]
        return slurm.call("sbatch", "--parsable", *options).strip()

    def state(job: str) -> str:
        return slurm.call("squeue", "--noheader", "--format=%T", f"--jobs={job}").strip()

    job = submit()
    until(lambda: waiting.rounds() == 2, "two rounds")
    assert waiting.checkpoints() == []
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    until(waiting.checkpoints, "a checkpoint")
    # Its round never ends.
    slurm.call("scancel", job)
    until(lambda: not state(job), "the end of the job")
    assert waiting.checkpoints() == ["round-000002"]
    waiting.go.touch()
    submit()
    until(waiting.finished, "the end of the run")
    assert waiting.rounds() == 5
