"""Hosts that enter, can read some of the clients, leave, and return."""

import re
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

from shoal.engine.cluster.roster import Roster, plain_error
from shoal.engine.messages.job import Job
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import hops_path, shard_path, split_path

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


def test_wait_returns_finished_calls_only(hosts: list[Any], job_of: MakeJob) -> None:
    job = job_of()
    roster = Roster(hosts, job)
    gather(roster)
    roster.leaves(1)
    roster.call_back()
    call = hosts[0].run_call.remote(job.id, [evaluation_cell(1, [2], {}, {})], {})
    found: list[Any] = []
    while not found or 1 not in roster.ready:
        found += roster.wait([call] if not found else [], 1.0)
    assert found == [call]
    (outcome,) = ray.get(call)
    assert outcome.ids == [2]
    assert outcome.memory > 2**20


@pytest.mark.parametrize(
    "path", [shard_path(4), split_path("public", 4), hops_path("r0.5-k2-float32", 4)], ids=["shard", "split", "hops"]
)
def test_roster_client_without_a_file_is_unreadable(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job], path: Path
) -> None:
    job = with_own_store(job_of())
    roster = Roster(hosts, job)
    with taken_away(job.store_path / path):
        gather(roster)
    assert roster.unreadable(EVERYONE) == {4}
    assert roster.hosts_with([3, 4]) == []
    assert str(roster.refusal({4})) == (
        f"{job.store}: clients 4: no host can read their files (shard, split, hops); hosts run on {machine()}; "
        "put the store on a file system they share, or manifest.json and those files on a disk of one of them"
    )
    assert ": clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …: " in str(roster.refusal(range(11)))


def test_host_without_readable_clients_stays_idle(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]
) -> None:
    job = with_own_store(job_of())
    roster = Roster(hosts, job)
    with taken_away(job.store_path / NAME):
        gather(roster)
    assert sorted(roster.events) == [
        f"host {host} on {machine()} can read no client of {job.store} and stays idle" for host in (0, 1)
    ]
    # It did not open the job.
    assert ray.get(hosts[0].run_call.remote(job.id, [evaluation_cell(1, [2], {}, {})], {})) == [None]


def test_refusal_without_ready_hosts_says_all_are_lost(hosts: list[Any], job_of: MakeJob) -> None:
    roster = Roster(hosts, job_of())
    roster.events.append("round 3, client 1: lost with host 0, loss 1 (ActorDiedError)")
    refusal = roster.refusal({1})
    assert str(refusal).startswith("engine.hosts: all hosts are lost and none came back; the newest checkpoint is kept")
    assert refusal.detail == roster.events[0]


def test_enter_of_a_broken_job_raises(hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]) -> None:
    job = with_own_store(job_of())
    (job.store_path / NAME).write_text("{}")
    with pytest.raises(ShoalError, match=rf"^{job.store}/manifest\.json: ") as refused:
        gather(Roster(hosts, job))
    # Without Ray's wrapping.
    assert type(refused.value) is ShoalError
    wrong = replace(job_of(), method=replace(job.method, options={"mu": 1}))
    with pytest.raises(ShoalError, match=r"^algorithm\.mu: unknown"):
        gather(Roster(hosts, wrong))


def test_enter_with_another_store_at_the_path_raises(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job], tmp_path: Path
) -> None:
    job = with_own_store(job_of())
    # Sound by itself, of the same clients, and with features of half the precision.
    other = job_of({"data.dtype": "float16", "data.store": str(tmp_path / "other")})
    job.store_path.rename(tmp_path / "first")
    other.store_path.rename(job.store_path)
    with pytest.raises(ShoalError, match=rf"^{job.store}: machine \S+ sees another store here than .*; copy the store"):
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


@pytest.mark.parametrize("verify", ["first-read", "never"])
def test_damaged_shard_raises_on_its_host(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job], verify: str
) -> None:
    job = with_own_store(job_of({"engine.verify": verify}))
    path = job.store_path / shard_path(2)
    content = bytearray(path.read_bytes())
    content[7] ^= 1  # of no meaning in an Arrow file
    path.write_bytes(content)
    gather(Roster(hosts, job))
    call = hosts[0].run_call.remote(job.id, [evaluation_cell(1, [2], {}, {})], {})
    if verify == "never":
        assert ray.get(call)[0].ids == [2]
        return
    with pytest.raises(RayTaskError) as failed:
        ray.get(call)
    line = str(plain_error(failed.value))
    assert re.match(rf"round 1, client 2: .*{path}: checksum does not match the manifest; .*delete the file", line)
    assert "\n" not in line


def test_plain_error_of_a_bug_keeps_its_traceback(hosts: list[Any]) -> None:
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
