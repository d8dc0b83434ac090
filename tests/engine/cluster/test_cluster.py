"""Clusters that are joined, waited for, or refused; and the signals of a process that starts Ray."""

import itertools
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import ray
from ray._private.utils import set_sigterm_handler
from ray.cluster_utils import Cluster
from support.errors import refused
from support.fixtures import Configure

from shoal.engine.cluster import cluster as cluster_module
from shoal.engine.cluster.cluster import _signals_kept, _token, connect, free_machines


def test_connect_to_a_closed_port_raises(configure: Configure) -> None:
    with refused("ray.address", says="no Ray cluster can be reached at 127.0.0.1:1 "):
        connect(configure({"engine.backend": "ray", "ray.address": "127.0.0.1:1"}))


def test_a_cluster_whose_token_is_not_here_is_refused(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token made in its place would be another one."""
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with refused("RAY_AUTH_TOKEN_PATH", tmp_path / "token"):
        connect(configure({"engine.backend": "ray", "ray.address": "127.0.0.1:1"}))
    assert not (tmp_path / "token").exists()


def test_room_that_comes_later_is_waited_for(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Machines as Ray lists them: at the second look there is one more."""
    machine, asked = {"Alive": True, "Resources": {"CPU": 1.0}}, []
    looks = itertools.chain([[machine]], itertools.repeat([machine, machine]))
    monkeypatch.setattr(ray, "nodes", lambda: next(looks))
    monkeypatch.setattr(cluster_module, "SECONDS_IN_SILENCE", 0.0)
    monkeypatch.setattr(cluster_module, "_ask_autoscaler", lambda hosts, share: asked.append(hosts))
    cluster_module._await_room(configure({"engine.backend": "ray", "engine.hosts": 2, "ray.address": "127.0.0.1:1"}))
    # What was asked for is withdrawn: an autoscaler would keep machines for it.
    assert asked == [2, 0]
    assert "waiting for 2 hosts: the cluster has room for 1 (1 machines, 1 CPU, 0 GPU); " in capsys.readouterr().err


@pytest.mark.slow
def test_machines_that_come_later_are_waited_for(
    configure: Configure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster_module, "SECONDS_IN_SILENCE", 0.0)
    asked, ask = [], cluster_module._ask_autoscaler
    monkeypatch.setattr(cluster_module, "_ask_autoscaler", lambda *args: (asked.append(args[0]), ask(*args)))
    keys = {"engine.backend": "ray", "engine.hosts": 2, "resources.cpus_per_host": 1.0}
    later: subprocess.Popen[bytes] | None = None
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        joined = {**keys, "ray.address": cluster.address}
        with refused(says="the cluster has room for 0 (1 machines, 1 CPU, 0 GPU)"):
            connect(configure({**joined, "resources.cpus_per_host": 2.0, "ray.start_timeout": 1}))
        # What was asked for is withdrawn: an autoscaler would keep machines for it.
        assert asked == [2, 0]
        # Once the time is over, room for one will do.
        assert not connect(configure({**joined, "ray.start_timeout": 1})).on("the other")
        ray.shutdown()
        add = ["start", f"--address={cluster.address}", "--num-cpus=1", "--block", "--disable-usage-stats"]
        later = subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", *add], stdout=subprocess.DEVNULL)
        connect(configure(joined))
        assert sum(node["Resources"].get("CPU", 0) for node in ray.nodes()) == 2
        # Where their number follows from the cluster, hosts take what nothing else has taken; else they are waited for.
        auto = configure({**joined, "engine.hosts": "auto"})
        assert sorted(machine.get("CPU", 0) for machine in free_machines(auto)) == [1, 1]
        taken = ray.remote(num_cpus=1)(lambda: time.sleep(60)).remote()
        deadline = time.monotonic() + 60
        while sum(machine.get("CPU", 0) for machine in free_machines(auto)) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sorted(machine.get("CPU", 0) for machine in free_machines(auto)) == [0, 1]
        assert [machine["CPU"] for machine in free_machines(configure(joined))] == [1, 1]
        ray.cancel(taken, force=True)
    finally:
        ray.shutdown()
        if later is not None:
            later.terminate()
            later.wait()
        cluster.shutdown()
    assert "waiting for 2 hosts: the cluster has room for 1 (1 machines, 1 CPU, 0 GPU); " in capsys.readouterr().err


def test_a_token_is_made_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "folder" / "token"))
    _token(joining=False)
    assert (tmp_path / "folder" / "token").stat().st_mode & 0o777 == 0o600


def test_small_machine_is_refused_and_keeps_nothing(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray wrote is removed."""
    keys = {"engine.backend": "ray", "engine.hosts": 9000, "resources.server_cpus": 0.5}
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        with refused(says="engine.hosts 9000 with resources.cpus_per_host 1 and gpus_per_host 0: the cluster has room"):
            connect(configure(keys))
        assert not list(Path(short).iterdir())
    assert not ray.is_initialized()


@pytest.mark.skipif(subprocess.run(["unshare", "-n", "true"]).returncode != 0, reason="no namespaces here")
def test_machine_without_loopback_is_one_line() -> None:
    program = "from shoal.engine.cluster.cluster import _probe; _probe(None)"
    done = subprocess.run(["unshare", "-n", sys.executable, "-c", program], capture_output=True, text=True)
    assert "ShoalError: ray: its processes cannot reach one another at 127.0.0.1 (Network is" in done.stderr


def test_signals_kept_while_ray_starts() -> None:
    """A run that is told to stop while Ray starts must stop, and not lose it in a callback of a fork."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _signals_kept():
            # Processes that start now never get it.
            assert signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            set_sigterm_handler(lambda number, frame: None)
            assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
            # Nothing else is held back.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        set_sigterm_handler(signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
