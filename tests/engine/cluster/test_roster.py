"""Hosts that enter, can read the files of some clients, leave, and return."""

import shutil
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

from shoal.engine.cluster.roster import DataLocality, Roster, local_clients, plain_error
from shoal.engine.config.config import Config
from shoal.engine.hosts.host import Host
from shoal.engine.messages.environment import environment
from shoal.engine.messages.job import Job, make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, hops_path, shard_path, split_path, training_path

MakeJob = Callable[..., Job]
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


def test_roster_starts_empty_and_hosts_enter_when_called(hosts: list[Any], job_of: MakeJob) -> None:
    roster = Roster(hosts, job_of())
    assert (roster.ready, roster.entering, roster.events) == ({}, {}, [])
    assert roster.unreadable(EVERYONE) == EVERYONE
    assert roster.hosts_with([0]) == []
    # There is nothing to wait for.
    assert roster.wait((), 1.0) == []
    roster.call_back()
    assert sorted(roster.entering.values()) == [0, 1]
    # A host that is entering is not called again.
    roster.call_back()
    assert len(roster.entering) == 2
    gather(roster)
    assert roster.entering == {}
    assert {host: (locality.clients, locality.machine) for host, locality in roster.ready.items()} == {
        host: (EVERYONE, machine()) for host in (0, 1)
    }
    assert roster.unreadable([2, 7]) == {7}
    assert sorted(roster.hosts_with([0, 5])) == [0, 1]
    assert roster.hosts_with([0, 7]) == []
    assert roster.events == []


def test_leaves_makes_a_host_absent_until_it_returns(hosts: list[Any], job_of: MakeJob) -> None:
    roster = Roster(hosts, job_of())
    gather(roster)
    roster.leaves(1)
    assert roster.hosts_with([3]) == [0]
    roster.leaves(0)
    # While no host is ready, hosts that could read it before are expected back.
    assert sorted(roster.hosts_with([3])) == [0, 1]
    assert roster.unreadable([3]) == {3}
    gather(roster)
    assert sorted(roster.events) == [f"host {host} is back, on {machine()}" for host in (0, 1)]


def test_files_that_are_not_there(hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]) -> None:
    job = with_own_store(job_of())
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
    assert sorted(roster.events) == [
        f"host {host} on {machine()} can read no client of {job.store} and stays idle" for host in (0, 1)
    ]
    # It did not open the job.
    assert ray.get(hosts[0].run_call.remote(job.id, [evaluation_cell(1, [2], {}, {})], {})) == [None]


def test_enter_with_another_store_at_the_path_raises(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job], tmp_path: Path
) -> None:
    job = with_own_store(job_of())
    # Sound by itself, of the same clients, and with features of half the precision.
    other = job_of({"data.dtype": "float16", "data.store": str(tmp_path / "other")})
    job.store_path.rename(tmp_path / "first")
    other.store_path.rename(job.store_path)
    with refused(job.store_path, says="sees another store here than"):
        gather(Roster(hosts, job))
    gather(Roster(hosts, replace(other, id=f"{other.id} there", store=job.store)))


def test_returning_host_that_cannot_open_stays_idle(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]
) -> None:
    job = with_own_store(job_of())
    roster = Roster(hosts, job)
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


def test_plain_error_keeps_the_line_of_an_error_and_the_traceback_of_a_bug(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]
) -> None:
    job = with_own_store(job_of())
    path = job.store_path / shard_path(2)
    path.write_bytes(path.read_bytes()[:-1])
    gather(Roster(hosts, job))
    with pytest.raises(RayTaskError) as failed:
        ray.get(hosts[0].run_call.remote(job.id, [evaluation_cell(1, [2], {}, {})], {}))
    plain = plain_error(failed.value)
    assert plain.places == ("round 1, client 2",)
    assert str(path) in plain.line
    with pytest.raises(RayTaskError) as failed:
        ray.get(hosts[0].run_call.remote("nothing", 3, {}))
    plain = plain_error(failed.value)
    assert str(plain).startswith("a host failed: TypeError: 'int' object is not iterable")
    assert "in run_cells" in plain.detail


def test_host_of_other_versions_is_logged_once(
    hosts: list[Any], job_of: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = np.__version__
    roster = Roster(hosts, job_of())
    # The hosts are compared with this process.
    monkeypatch.setattr(np, "__version__", "0.1")
    gather(roster)
    assert sorted(roster.events) == [
        f"host {host} on {machine()}: last bits may differ, as numpy ({version} -> 0.1) do" for host in (0, 1)
    ]
    roster.events.clear()
    roster.leaves(0)
    gather(roster)
    assert roster.events == [f"host 0 is back, on {machine()}"]


@pytest.fixture
def job(start: Callable[..., Server], tmp_path: Path) -> Job:
    job = start().job
    return replace(job, store=str(shutil.copytree(job.store, tmp_path / "store")))


def test_local_clients_have_all_files_here(job: Job) -> None:
    for name in ("00009.arrow.unfinished", "notes.arrow", "00008"):
        (job.store_path / shard_path(0)).with_name(name).touch()
    assert local_clients(job, "here") == DataLocality("here", frozenset(range(6)), environment("cpu"))
    assert job.propagation is not None
    for client, path in ((0, shard_path(0)), (2, split_path(job.split, 2)), (5, hops_path(job.propagation, 5))):
        (job.store_path / path).unlink()
        assert client not in local_clients(job, "here").clients
    assert local_clients(job, "here").clients == {1, 3, 4}
    # A job without hops needs none.
    assert local_clients(replace(job, propagation=None), "here").clients == {1, 3, 4, 5}


@pytest.mark.parametrize("missing", [NAME, "clients", "splits", "hops"])
def test_local_clients_without_manifest_or_folder_is_empty(job: Job, missing: str) -> None:
    path = job.store_path / missing
    path.unlink() if path.is_file() else shutil.rmtree(path)
    assert local_clients(job, "here").clients == frozenset()


def test_local_clients_of_an_inductive_run_need_training_files(
    configure: Callable[..., Config], tmp_path: Path
) -> None:
    config = configure({"data.store": str(tmp_path / "store"), "data.inductive": True})
    job = make_job(config, prepare(config), "test")
    below = job.store_path / training_path(job.split)
    assert local_clients(job, "here").clients == set(range(6))
    (below / split_path(job.split, 2)).unlink()
    assert local_clients(job, "here").clients == {0, 1, 3, 4, 5}
    assert local_clients(replace(job, training=""), "here").clients == set(range(6))
    (below / NAME).unlink()
    assert local_clients(job, "here").clients == frozenset()


def test_local_clients_numbers_whole_graphs_after_clients(
    start: Callable[..., Server], three_domains: Any, tmp_path: Path
) -> None:
    whole = start(three_domains.keys).job
    job = replace(whole, store=str(shutil.copytree(whole.store, tmp_path / "store")), id=str(tmp_path))
    graphs = job.store_path / DOMAINS
    assert local_clients(job, "here").clients == set(range(8))
    # A job that evaluates no domain needs none.
    assert local_clients(replace(job, domains=()), "here").clients == set(range(5))
    (graphs / shard_path(1)).unlink()
    (graphs / split_path(job.split, 2)).unlink()
    assert local_clients(job, "here").clients == {0, 1, 2, 3, 4, 5}
    (graphs / NAME).unlink()
    assert local_clients(job, "here").clients == set(range(5))
    # Such a machine can work for clients.
    Host().open(job)
