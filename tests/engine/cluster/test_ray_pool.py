"""Cells on real host actors that die, hang or can read some clients only: the bits of one process, or one line.

A restart of a host takes seconds: each test kills as few as it can.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from support.errors import refused
from support.small_cells import cell_of, require_same_outcome, require_same_scores

from shoal.algorithms.protocol import Reduce
from shoal.engine.cluster import ray_pool
from shoal.engine.cluster.cluster import Patience
from shoal.engine.cluster.ray_backend import HostActor, ServerActor, await_hosts, start_hosts
from shoal.engine.cluster.ray_pool import RayPool, _Call, _Phase, few_cells
from shoal.engine.cluster.states import _parts
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Kept, Outcome, Training
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import NO_KERNEL, Live, Pool
from shoal.engine.rounds.reduction import join_sums
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import DOMAINS, shard_path

MakeJob = Callable[..., Job]
PoolOf = Callable[..., RayPool]
UP = {"w": Reduce.MEAN, "process": Reduce.GATHER}
PAIRS = ([0, 1], [2, 3], [4, 5])
SKIP = {"engine.on_client_error": "skip"}
FAILS = r"/toy_method\.py, line \d+, in upload\(\): RuntimeError: no luck$"


def cells_of(*groups: Sequence[int], states: dict[int, Any] | None = None) -> list[Cell]:
    kept = [{i: states[i] for i in ids if i in states} if states else {} for ids in groups]
    ends = list(accumulate(map(len, groups)))
    return [
        cell_of(ids, UP, states=own, score=frozenset(ids[:1]), cost=len(ids), places=range(end - len(ids), end))
        for ids, own, end in zip(groups, kept, ends)
    ]


def run(pool: Pool, cells: Sequence[Cell], shared: Any = None) -> list[Outcome]:
    found = dict(pool.run_cells(cells, shared or {}))
    assert found.keys() == set(range(len(cells)))
    return [found[position] for position in range(len(cells))]


def processes(outcome: Outcome) -> list[int]:
    return [int(t) for t in outcome.lists["process"]]


def require_local(found: Sequence[Outcome], job: Job, cells: Sequence[Cell], shared: Any = None) -> None:
    """Outcomes are those of the cells in this process; a host adds up the sums of cells of one call."""
    expected = run(LocalBackend().enter(job), cells, shared)
    for outcomes in (found, expected):
        join_sums(outcomes, None)
    for mine, other in zip(found, expected, strict=True):
        require_same_outcome(mine, other)


@pytest.fixture
def pool_of(hosts: list[Any]) -> PoolOf:
    """A pool on hosts that are at work."""

    def pool_of(job: Job, cell_timeout: float = 60.0, retries: int = 4) -> RayPool:
        pool = RayPool(hosts, job, cell_timeout, retries)
        pool.require_data(range(6))
        while pool.hosts != (2, 2):
            pool.roster.call_back()
            pool.roster.wait((), 1.0)
        return pool

    return pool_of


@pytest.mark.parametrize("most", [96_000, 0], ids=["with the call", "object store"])
def test_ray_pool_equals_local(pool_of: PoolOf, job_of: MakeJob, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(ray_pool, "SENT_WITH_A_CALL", most)
    job = job_of()
    pool = pool_of(job)
    first = run(pool, cells_of(*PAIRS))
    require_local(first, job, cells_of(*PAIRS))
    # The next phase goes on from tensors of the last one, in other cells.
    states = {i: tree for outcome in first for i, tree in outcome.states.items()}
    shared = {"w": states[0]["model.w"]}
    cells = [*cells_of([0, 1, 2], [3], [4, 5], states=states), evaluation_cell(1, [1, 4], states, {})]
    require_local(run(pool, cells, shared), job, cells, shared)
    assert (pool.retried, pool.events()) == (0, [])
    assert pool.transfer > 0
    assert all(held > 2**20 for held in pool.memory.values())
    # What is kept can be written to: it does not lie in Ray's shared memory.
    states[0]["model.w"].add_(1)
    first[0].scores[0] += 1


def test_cells_return_to_their_last_host(pool_of: PoolOf, job_of: MakeJob) -> None:
    pool = pool_of(job_of())
    singles = cells_of(*([i] for i in range(6)))
    pids = [processes(outcome)[0] for outcome in run(pool, singles)]
    # A host that is held up leaves cells to the other one: only where each ran is sure.
    assert sorted(pool.home) == [0, 1, 2, 3, 4, 5]
    assert len({(host, pids[i]) for i, host in pool.home.items()}) == len(set(pids))
    assert pool.events() == []
    pool.home = {0: 1, 1: 0, 2: 1, 3: 1, 4: 0, 5: 0}
    phase = _Phase(pool, {})
    phase._place(singles)
    assert {task.cell.ids[0]: host for host in (0, 1) for task in phase._queues.empty(host)} == pool.home


@pytest.mark.parametrize(("seconds", "signs"), [(0.0, 3), (1e6, 1)])
def test_hosts_show_clients_prints_and_time(hosts: list[Any], job_of: MakeJob, seconds: float, signs: int) -> None:
    class Signed:
        def __init__(self) -> None:
            self.by: list[int] = []

        def sign(self, host: int, kernel: int = 0) -> None:
            if not kernel:
                self.by.append(host)

        def found(self) -> list[int]:
            return self.by

    server, job = ray.remote(Signed).options(num_cpus=0).remote(), job_of(client=4, kind="prints")
    ray.get(hosts[0].enter.remote(job, 7, server, seconds))
    outcomes = ray.get(hosts[0].run_call.remote(job.id, [cell_of([0, 4]), cell_of([5])], {}))
    assert [outcome.printed for outcome in outcomes] == [([(4, "here I am")], 0), ((), 0)]
    assert all(0 < sum(outcome.seconds.values()) <= outcome.busy for outcome in outcomes)
    # They are on their way; calls of two processes have no order.
    founds = (ray.get(server.found.remote()) for _ in range(2000))
    assert next(found for found in founds if len(found) >= signs) == [7] * signs
    ray.kill(server)


def test_a_server_shows_the_newest_kernel_that_its_hosts_compile() -> None:
    signs: list[tuple[int, ...]] = []
    host, server = HostActor.__new__(HostActor), ServerActor.__new__(ServerActor)
    host._number, host._server = 3, SimpleNamespace(sign=SimpleNamespace(remote=lambda *sign: signs.append(sign)))
    host.compiles((5, "adam"))
    assert signs == [(3, (5, "adam"))]
    server._pool, server._kernel, server._live = SimpleNamespace(signed={}), NO_KERNEL, Live(1, 0, 10, 0, 0, (2, 2), 0)
    server._lines = []
    for sign in (*signs, (0, (2, "exp")), (0,)):
        server.sign(*sign)
    assert server.alive() == (Live(1, 0, 10, 0, 0, (2, 2), 0, kernel=(5, "adam")), [])
    assert server._pool.signed.keys() == {0, 3}


def test_a_sign_of_life_moves_the_deadline_of_a_silent_host(hosts: list[Any], job_of: MakeJob) -> None:
    pool = RayPool([], job_of(), cell_timeout=20.0, retries=4)
    phase = _Phase(pool, {})
    assert phase._deadline(_Call([], 1, deadline=50.0)) == 50.0
    # The next client may have begun a twentieth of the time after the sign.
    pool.signed = {1: 40.0}
    assert [phase._deadline(_Call([], host, deadline=50.0)) for host in (0, 1)] == [50.0, 61.0]


def test_hosts_of_a_machine_are_counted(hosts: list[Any]) -> None:
    assert ray.get([host.hosts_here.remote() for host in hosts]) == [2, 2]


def test_hosts_without_a_cell_are_said_once(pool_of: PoolOf, job_of: MakeJob) -> None:
    pool = pool_of(job_of())
    run(pool, cells_of([0, 1]))
    run(pool, cells_of([2, 3]))
    assert pool.events() == ["1 of 2 hosts have no work: a round has 1 cells; lower engine.cell_size"]


def test_hosts_beyond_the_clients_are_said_so() -> None:
    assert few_cells(cells_of([0], [1]), 3) == ["1 of 3 hosts have no work: a round has 2 cells; lower engine.hosts"]


def test_failing_client_raises_or_is_skipped(pool_of: PoolOf, job_of: MakeJob) -> None:
    with pytest.raises(ShoalError, match=rf"^round 1, client 3: .*{FAILS}") as failed:
        run(pool_of(job_of(client=3)), cells_of(*PAIRS))
    assert ", in upload\n" in failed.value.detail
    outcomes = run(pool_of(job_of(SKIP, client=3)), cells_of(*PAIRS))
    assert [outcome.ids for outcome in outcomes] == [[0, 1], [2], [4, 5]]
    assert re.match(rf"round 1, client 3: .*{FAILS}", outcomes[1].failures[3][0])


def test_restarted_host_rejoins_without_losses(hosts: list[Any], pool_of: PoolOf, job_of: MakeJob) -> None:
    """Between two phases nothing is lost with it."""
    job = job_of()
    pool = pool_of(job)
    run(pool, cells_of(*PAIRS))
    before = process = ray.get(hosts[1].ping.remote())
    ray.kill(hosts[1], no_restart=False)
    while process == before:
        try:
            process = ray.get(hosts[1].ping.remote())
        except ray.exceptions.RayActorError:
            continue
    found = run(pool, cells_of(*PAIRS))
    require_local(found, job, cells_of(*PAIRS))
    assert before not in {process for outcome in found for process in processes(outcome)}
    assert pool.retried == 0
    assert pool.events() in ([], [f"host 1 is back, on {ray.util.get_node_ip_address()}"])


def losses_of(events: list[str], ids: list[int]) -> list[str]:
    """Numbers of the losses of a whole cell."""
    whole = [event for event in events if f"clients {ids}: lost with host" in event]
    return [event.partition(", loss ")[2][0] for event in whole]


def test_cell_lost_twice_runs_client_by_client(pool_of: PoolOf, job_of: MakeJob) -> None:
    """Client 3 kills its host twice with its whole cell; alone it lets it be."""
    job = job_of(client=3, kind="dies", times=2)
    pool = pool_of(job, retries=2)
    cells = cells_of([0, 1], [2, 3, 4], [5])
    require_local(run(pool, cells), job, cells)
    events = pool.events()
    assert losses_of(events, [2, 3, 4]) == ["1", "2"]
    assert any(event.startswith("host ") and " is back, on " in event for event in events)
    # Other tasks of its host's queue are lost with it at most as often.
    assert 2 <= pool.retried <= 2 + 2 * 5


@pytest.mark.parametrize(("batched", "sizes"), [(False, [1, 1]), (True, [2])])
def test_second_loss_splits_no_batch(pool_of: PoolOf, job_of: MakeJob, batched: bool, sizes: list[int]) -> None:
    """The last bits of a batch depend on the clients in it."""
    phase = _Phase(pool_of(job_of()), {})
    phase._place([replace(cell, train=Training(batched=batched)) for cell in cells_of([2, 3])])
    for _ in range(2):
        (task,) = [*phase._queues.empty(0), *phase._queues.empty(1)]
        phase._lose_task(task, 0, "gone")
    assert [len(task.cell.ids) for host in (0, 1) for task in phase._queues.empty(host)] == sizes


def test_loss_beyond_the_retries_ends_the_run_or_skips_a_client(pool_of: PoolOf, job_of: MakeJob) -> None:
    phase = _Phase(pool_of(job_of(SKIP), retries=0), {})
    phase._place(cells_of([2, 3], [4]))
    several, one = sorted((*phase._queues.empty(0), *phase._queues.empty(1)), key=lambda task: -len(task.cell.ids))
    with refused(says="clients [2, 3]: lost with host 0, loss 1 (gone); look for lack of memory, or raise engine.ret"):
        phase._lose_task(several, 0, "gone")
    phase._lose_task(one, 0, "gone")
    ((position, outcome),) = phase._finished
    assert (position, list(outcome.failures), outcome.ids) == (1, [4], [])
    assert outcome.failures[4][0] == "round 1, client 4: lost with host 0, loss 1 (gone)"


def test_silent_host_is_replaced(pool_of: PoolOf, job_of: MakeJob) -> None:
    job = job_of(client=3, kind="hangs", times=1)
    pool = pool_of(job)
    # Every host has opened its data.
    run(pool, cells_of([0], [1], [2], [4]))
    pool.timeout = 3.0
    require_local(run(pool, cells_of([3], [5])), job, cells_of([3], [5]))
    lost = [event for event in pool.events() if "lost with host" in event]
    assert lost[0].startswith("round 1, client")
    assert all(event.endswith("(silent for 3 s)") for event in lost)


def test_hosts_with_part_of_the_clients_share_a_cell(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]
) -> None:
    """Host 0 can read clients 0 to 3, host 1 clients 2 to 5; a cell of all six runs split on both."""
    job = with_own_store(job_of())
    pool = RayPool(hosts, job, 60.0, 4)
    roster = pool.roster
    # Each enters while the shards of some clients are hidden.
    for host, hidden in ((0, [4, 5]), (1, [0, 1])):
        roster.hosts = hosts[: host + 1]
        files = [job.store_path / shard_path(i) for i in hidden]
        for file in files:
            file.rename(file.with_suffix(".away"))
        while host not in roster.ready:
            roster.call_back()
            roster.wait((), 1.0)
        for file in files:
            file.with_suffix(".away").rename(file)
    pool.require_data(range(6))
    first, second = ray.get([host.ping.remote() for host in hosts])
    for cells in (cells_of(range(6)), cells_of(*PAIRS)):
        found = run(pool, cells)
        require_local(found, job, cells)
        by_client = {i: process for outcome in found for i, process in zip(outcome.ids, processes(outcome))}
        assert [by_client[i] for i in (0, 1, 4, 5)] == [first, first, second, second]
        assert {by_client[2], by_client[3]} <= {first, second}
    assert pool.retried == 0


def test_all_hosts_lost_raises(hosts: list[Any], job_of: MakeJob) -> None:
    gone = RayPool([], job_of(), 60.0, 4, come_back=0.0)
    gone.roster.events.append("round 3, client 1: lost with host 0, loss 1 (ActorDiedError)")
    with refused("engine.hosts", says="all hosts are lost and none came back"):
        gone.require_data([0])
    assert gone.roster.refusal({1}).detail == gone.roster.events[0]
    blind = RayPool(hosts, replace(job_of(), store="/nowhere"), 60.0, 4, come_back=0.0)
    with pytest.raises(ShoalError, match=r"^engine\.hosts: all hosts are lost|^/nowhere: clients 0: no host can read"):
        run(blind, cells_of([0]))


def test_a_host_whose_machine_comes_later_joins(hosts: list[Any], job_of: MakeJob) -> None:
    """Two of four processors are taken, so that a third host waits for one; then they are free."""
    taken = placement_group([{"CPU": 2}])
    assert taken.wait(60)
    hosts = [*hosts, *start_hosts(1, cpus=1, gpus=0)]
    job, singles = job_of({"engine.memory_limit": 60_000}), cells_of(*([i] for i in range(6)))
    with refused("engine.hosts", says="none of 1 started in 0 s; free machines or raise ray.start_timeout"):
        await_hosts(hosts[2:], 0.0)
    late = await_hosts(hosts, 120.0, Patience(0.0))
    pool = RayPool(hosts, job, 60.0, 4)
    pool.roster.late = set(late.values())
    require_local(run(pool, singles), job, singles)
    assert (pool.roster.late, pool.hosts[1], set(pool.home.values()) - {0, 1}) == ({2}, 3, set())
    # A checkpoint does not wait for it.
    kept = {i: Kept(None, (), 9, -1) for i in range(6)}
    assert {part.host for part in _parts(FederationState(kept=kept), {0, 1})} == {0, 1}
    remove_placement_group(taken)
    while pool.hosts != (3, 3):
        pool.roster.call_back()
        pool.roster.wait((), 1.0)
    assert pool.events() == [f"host 2 joined, on {ray.util.get_node_ip_address()}"]
    # The others leave it its share of their memory, and of the cells.
    limits = [host.__ray_call__.remote(lambda actor: actor._cache.limit) for host in hosts]
    assert ray.get(limits) == [10_000] * 3
    phase = _Phase(pool, {})
    phase._place(singles)
    assert [len(phase._queues.empty(host)) for host in range(3)] == [2, 2, 2]
    require_local(run(pool, singles), job, singles)
    ray.kill(hosts[2])


def scopes(server: Server, rounds: int) -> list[str]:
    return [json.dumps(server.round()["scopes"], sort_keys=True) for _ in range(rounds)]


def test_whole_graph_scores_equal_one_process_after_a_restart(
    hosts: list[Any], start: Callable[..., Server], three_domains: Any, tmp_path: Path
) -> None:
    server = start({**three_domains.keys, "participation.ratio": 0.6, "rounds": 4})
    job, plan = replace(server.job, id=f"{tmp_path}"), server.plan
    pool = RayPool(hosts, job, 60.0, 4)
    pool.require_data(range(8))
    first = Server(job, plan, pool)
    found = scopes(first, 2)
    state = FederationState.from_tensors(*first.state.to_tensors())
    again = Server(job, plan, RayPool(hosts, job, 60.0, 4), state)
    found += scopes(again, 2)
    assert scopes(server, 4) == found
    assert '"north"' in found[0]
    assert server.state.scores["domains"].keys() == {5, 6, 7}
    require_same_scores(again.state.scores["domains"], server.state.scores["domains"])
    # A domain whose files no host has is named.
    store = shutil.copytree(job.store, tmp_path / "store")
    (store / DOMAINS / shard_path(2)).unlink()
    blind = RayPool(hosts, replace(job, store=str(store), id=f"{tmp_path}-2"), 60.0, 4)
    with refused(str(store), says="clients domain west: no host can read their files (shard, "):
        blind.require_data(range(8))
