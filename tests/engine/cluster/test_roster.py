"""Hosts that enter, can read the files of some clients, leave, and return."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray
from ray.exceptions import RayTaskError
from support.errors import refused
from support.fixtures import MakeJob, Start

from shoal.engine.cluster.roster import DataLocality, Roster, local_clients, plain_error
from shoal.engine.hosts.host import Host
from shoal.engine.messages.environment import environment
from shoal.engine.messages.job import Job
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, hops_path, shard_path, split_path, training_path

EVERYONE = frozenset(range(6))


def gather(roster: Roster) -> None:
    """Waits until every host is at work."""
    while len(roster.ready) < len(roster.hosts):
        roster.call_back()
        assert roster.wait((), 1.0) == []


@contextmanager
def taken_away(*files: Path) -> Iterator[None]:
    for file in files:
        file.rename(file.with_suffix(".away"))
    try:
        yield
    finally:
        for file in files:
            file.with_suffix(".away").rename(file)


def machine() -> str:
    return ray.util.get_node_ip_address()


@pytest.fixture
def own_job(job_of: MakeJob, with_own_store: Callable[[Job], Job]) -> Job:
    return with_own_store(job_of())


def test_roster_starts_empty_and_hosts_enter_when_called(hosts: list[Any], job_of: MakeJob) -> None:
    roster = Roster(hosts, job_of())
    assert (roster.ready, roster.entering, roster.events) == ({}, {}, [])
    assert (roster.unreadable(EVERYONE), roster.hosts_with([0])) == (EVERYONE, [])
    # There is nothing to wait for.
    assert roster.wait((), 1.0) == []
    for _ in range(2):
        # A host that is entering is not called again.
        roster.call_back()
        assert sorted(roster.entering.values()) == [0, 1]
    gather(roster)
    found = {host: (locality.clients, locality.machine) for host, locality in roster.ready.items()}
    assert found == dict.fromkeys((0, 1), (EVERYONE, machine()))
    assert (roster.entering, roster.events, roster.unreadable([2, 7])) == ({}, [], {7})
    assert (sorted(roster.hosts_with([0, 5])), roster.hosts_with([0, 7])) == ([0, 1], [])
    # Cells of the same hosts are placed together by their one list.
    assert roster.hosts_with([0, 5]) is roster.hosts_with([5])
    roster.leaves(1)
    assert roster.hosts_with([3]) == [0]
    roster.leaves(0)
    # While no host is ready, hosts that could read it before are expected back.
    assert sorted(roster.hosts_with([3])) == [0, 1]
    assert roster.unreadable([3]) == {3}
    gather(roster)
    assert sorted(roster.events) == [f"host {host} is back, on {machine()}" for host in (0, 1)]


def test_files_that_are_not_there(hosts: list[Any], own_job: Job) -> None:
    job = own_job
    roster = Roster(hosts, job)
    with taken_away(job.store_path / shard_path(4)):
        gather(roster)
    assert roster.unreadable(EVERYONE) == {4}
    assert roster.hosts_with([3, 4]) == []
    line = str(roster.refusal({4}))
    assert line.startswith(f"{job.store}: clients 4: no host can read their files (shard, split, hops); hosts run on ")
    assert ": clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …: " in str(roster.refusal(range(11)))
    # A host that can read no client stays idle.
    job = replace(job, id=f"{job.id} idle")
    roster = Roster(hosts, job)
    with taken_away(job.store_path / NAME):
        gather(roster)
    idle = f"on {machine()} can read no client of {job.store} and stays idle"
    assert sorted(roster.events) == [f"host 0 {idle}", f"host 1 {idle}"]
    # It did not open the job.
    assert ray.get(hosts[0].run_call.remote(job.id, [evaluation_cell(1, [2], {}, {})], {})) == [None]


def test_another_store_at_the_path_raises(hosts: list[Any], own_job: Job, job_of: MakeJob, tmp_path: Path) -> None:
    # Sound by itself, of the same clients, and with features of half the precision.
    other = job_of({"data.dtype": "float16", "data.store": str(tmp_path / "other")})
    own_job.store_path.rename(tmp_path / "first")
    other.store_path.rename(own_job.store_path)
    with refused(own_job.store_path, says="sees another store here than"):
        gather(Roster(hosts, own_job))
    gather(Roster(hosts, replace(other, id=f"{other.id} there", store=own_job.store)))


def test_returning_host_that_cannot_open_stays_idle(hosts: list[Any], own_job: Job) -> None:
    job, roster = own_job, Roster(hosts, own_job)
    gather(roster)
    manifest = job.store_path / NAME
    sound = manifest.read_text()
    process = psutil.Process(ray.get(hosts[1].ping.remote()))
    process.kill()
    psutil.wait_procs([process], timeout=20)
    roster.leaves(1)
    manifest.write_text("{}")
    gather(roster)
    (event,) = roster.events
    assert event.startswith(f"host 1 is back and stays idle: {manifest}: ")
    assert roster.hosts_with([3]) == [0]
    # The next job finds it as any other.
    manifest.write_text(sound)
    again = Roster(hosts, replace(job, id=f"{job.id} again"))
    gather(again)
    assert sorted(again.hosts_with([3])) == [0, 1]


def test_plain_error_keeps_the_line_of_an_error_and_the_traceback_of_a_bug(hosts: list[Any], own_job: Job) -> None:
    def error_of(*call: Any) -> ShoalError:
        with pytest.raises(RayTaskError) as failed:
            ray.get(hosts[0].run_call.remote(*call, {}))
        return plain_error(failed.value)

    path = own_job.store_path / shard_path(2)
    path.write_bytes(path.read_bytes()[:-1])
    gather(Roster(hosts, own_job))
    plain = error_of(own_job.id, [evaluation_cell(1, [2], {}, {})])
    assert plain.places == ("round 1, client 2", path)
    assert str(path) in plain.line
    plain = error_of("nothing", 3)
    assert str(plain).startswith("a host failed: TypeError: 'int' object is not subscriptable")
    assert "in run_call" in plain.detail


def test_host_of_other_versions_is_logged_once(hosts: list[Any], job_of: MakeJob, monkeypatch: Any) -> None:
    differ = f"on {machine()}: last bits may differ, as numpy ({np.__version__} -> 0.1) do"
    roster = Roster(hosts, job_of())
    # The hosts are compared with this process.
    monkeypatch.setattr(np, "__version__", "0.1")
    gather(roster)
    assert sorted(roster.events) == [f"host 0 {differ}", f"host 1 {differ}"]
    roster.events.clear()
    roster.leaves(0)
    gather(roster)
    assert roster.events == [f"host 0 is back, on {machine()}"]


def clients_of(job: Job, **changes: Any) -> frozenset[int]:
    return local_clients(replace(job, **changes), "here").clients


@pytest.fixture
def job(start: Start, with_own_store: Callable[[Job], Job]) -> Job:
    return with_own_store(start().job)


def test_local_clients_have_all_files_here(job: Job) -> None:
    for name in ("00009.arrow.unfinished", "notes.arrow", "00008"):
        (job.store_path / shard_path(0)).with_name(name).touch()
    assert local_clients(job, "here") == DataLocality("here", EVERYONE, environment("cpu"))
    for name in (NAME, "clients", "splits", "hops"):
        with taken_away(job.store_path / name):
            assert clients_of(job) == frozenset()
    assert job.propagation is not None
    for path in (shard_path(0), split_path(job.split, 2), hops_path(job.propagation, 5)):
        (job.store_path / path).unlink()
    assert clients_of(job) == {1, 3, 4}
    # A job without hops needs none.
    assert clients_of(job, propagation=None) == {1, 3, 4, 5}


@pytest.mark.usefixtures("unpacked")
def test_local_clients_of_an_inductive_run_need_training_files(start: Start, tmp_path: Path) -> None:
    job = start({"data.store": str(tmp_path / "store"), "data.inductive": True}).job
    below = job.store_path / training_path(job.split)
    assert clients_of(job) == EVERYONE
    (below / split_path(job.split, 2)).unlink()
    assert (clients_of(job), clients_of(job, training="")) == (EVERYONE - {2}, EVERYONE)
    (below / NAME).unlink()
    assert clients_of(job) == frozenset()


def test_local_clients_numbers_whole_graphs_after_clients(
    start: Start, three_domains: Any, with_own_store: Callable[[Job], Job]
) -> None:
    job = with_own_store(start(three_domains.keys).job)
    graphs = job.store_path / DOMAINS
    # A job that evaluates no domain needs none.
    assert (clients_of(job), clients_of(job, domains=())) == (set(range(8)), set(range(5)))
    (graphs / shard_path(1)).unlink()
    (graphs / split_path(job.split, 2)).unlink()
    assert clients_of(job) == EVERYONE
    (graphs / NAME).unlink()
    assert clients_of(job) == set(range(5))
    # Such a machine can work for clients.
    Host().open(job)
