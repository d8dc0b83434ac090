"""Golden runs on two hosts, and after one of them is killed in a round, have the digests of one process."""

import shutil
from pathlib import Path
from typing import Any

import pytest
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


@pytest.mark.parametrize("name", cases(KILLED, slow=KILLED_TOO))
def test_host_killed_in_a_round(golden_graph: Path, two_hosts: OnHosts, name: str) -> None:
    two_hosts.kill_in = 3
    assert execute_on_hosts(name, golden_graph, two_hosts, "killed") == expected_digest(name, golden_graph)
    (run,) = (golden_graph.parent / "killed").glob("*")
    assert sum(line["retries"] for line in read_metrics(run)) >= 1
    shutil.rmtree(run.parent)
