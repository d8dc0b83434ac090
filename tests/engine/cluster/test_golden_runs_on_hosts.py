"""Golden runs on two hosts, and after one of them is killed in a round, have the digests of one process."""

import contextlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from integration.golden_digests import execute, matrix
from integration.golden_ways import KILLED, KILLED_TOO, ON_HOSTS, Digest, cases, expected_digest
from integration.server_here import OnHosts

from shoal.engine.records.metrics import read_metrics


@pytest.fixture
def two_hosts(hosts: list[Any]) -> OnHosts:
    return OnHosts(hosts)


def execute_on_hosts(name: str, graph: Path, backend: OnHosts, root: str) -> Digest:
    more = {"engine__backend": "ray", "engine__hosts": 2, "run__root": str(graph.parent / root)}
    return execute(name, graph, backend, **more)


@pytest.mark.parametrize("name", cases(ON_HOSTS, slow=matrix()))
def test_on_two_hosts(golden_graph: Path, two_hosts: OnHosts, name: str) -> None:
    assert execute_on_hosts(name, golden_graph, two_hosts, "on-hosts") == expected_digest(name, golden_graph)


def find_process(backend: OnHosts) -> psutil.Process:
    """Returns the process of a host; one that was killed before may still be starting."""
    for host in itertools.islice(itertools.cycle(backend.hosts), 1000):
        with contextlib.suppress(ray.exceptions.RayActorError):
            return psutil.Process(ray.get(host.ping.remote(), timeout=60))
    raise AssertionError("no host answers")


@pytest.mark.parametrize("name", cases(KILLED, slow=KILLED_TOO))
def test_host_killed_in_a_round(golden_graph: Path, two_hosts: OnHosts, name: str) -> None:
    host = find_process(two_hosts)

    def kill_before_the_third(phase: int) -> None:
        if phase == 3:
            host.kill()
            host.wait()

    two_hosts.before_phase = kill_before_the_third
    assert execute_on_hosts(name, golden_graph, two_hosts, "killed") == expected_digest(name, golden_graph)
    (run,) = (golden_graph.parent / "killed").glob("*")
    assert sum(line["retries"] for line in read_metrics(run)) >= 1
    shutil.rmtree(run.parent)
