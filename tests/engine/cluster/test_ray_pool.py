"""Cells on real host actors that die, hang or can read some clients only: the bits of one process, or one line.

A restart of a host takes seconds: each test kills as few as it can.
"""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from shoal.algorithms.protocol import Reduce
from shoal.engine.cluster import ray_pool
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import DOMAINS, shard_path

MakeJob = Callable[..., Job]
UP = {"w": Reduce.MEAN, "process": Reduce.GATHER}
PAIRS = ([0, 1], [2, 3], [4, 5])
SKIP = {"engine.on_client_error": "skip"}


def cells_of(*groups: Sequence[int], states: dict[int, Any] | None = None) -> list[Cell]:
    kept = states or {}
    return [
        Cell(
            1,
            ids,
            "train",
            UP,
            True,
            {},
            {i: kept[i] for i in ids if i in kept},
            {},
            frozenset(ids[:1]),
            float(len(ids)),
        )
        for ids in groups
    ]


def run(pool: Pool, cells: Sequence[Cell], shared: Any = None) -> list[Outcome]:
    found = dict(pool.run_cells(cells, shared or {}))
    assert found.keys() == set(range(len(cells)))
    return [found[position] for position in range(len(cells))]


def here(job: Job, cells: Sequence[Cell], shared: Any = None) -> list[Outcome]:
    """Outcomes of cells in this process."""
    return run(LocalBackend().enter(job), cells, shared)


def processes(outcome: Outcome) -> list[int]:
    return [int(t) for t in outcome.lists["process"]]


def assert_same(left: Sequence[Outcome], right: Sequence[Outcome]) -> None:
    for mine, other in zip(left, right, strict=True):
        assert mine.ids == other.ids
        assert mine.bytes_up == other.bytes_up
        np.testing.assert_array_equal(mine.losses, other.losses)
        for name, sums in other.sums.items():
            assert torch.equal(mine.sums[name].double(), sums.double())
            assert torch.equal(mine.weights[name], other.weights[name])
        assert mine.states.keys() == other.states.keys()
        for i, tree in other.states.items():
            assert tree.keys() == mine.states[i].keys()
            assert all(torch.equal(t, mine.states[i][name]) for name, t in tree.items())
        assert mine.scores.keys() == other.scores.keys()
        assert all(np.array_equal(counts, mine.scores[i]) for i, counts in other.scores.items())


@pytest.fixture
def pool_of(hosts: list[Any]) -> Callable[..., RayPool]:
    """A pool on hosts that are at work."""

    def pool_of(job: Job, cell_timeout: float = 60.0, retries: int = 4) -> RayPool:
        pool = RayPool(hosts, job, cell_timeout, retries)
        pool.require_data(range(6))
        while pool.hosts != (2, 2):
            pool.roster.call_back()
            pool.roster.wait((), 1.0)
        return pool

    return pool_of


@pytest.mark.parametrize("sent_with_a_call", [96_000, 0], ids=["with the call", "object store"])
def test_ray_pool_equals_local_backend(
    pool_of: Callable[..., RayPool], job_of: MakeJob, monkeypatch: pytest.MonkeyPatch, sent_with_a_call: int
) -> None:
    monkeypatch.setattr(ray_pool, "SENT_WITH_A_CALL", sent_with_a_call)
    job = job_of()
    pool = pool_of(job)
    first = run(pool, cells_of(*PAIRS))
    assert_same(first, here(job, cells_of(*PAIRS)))
    # The next phase goes on from tensors of the last one, in other cells.
    states = {i: tree for outcome in first for i, tree in outcome.states.items()}
    shared = {"w": states[0]["model.w"]}
    cells = [*cells_of([0, 1, 2], [3], [4, 5], states=states), evaluation_cell(1, [1, 4], states, {})]
    assert_same(run(pool, cells, shared), here(job, cells, shared))
    assert pool.retried == 0
    assert pool.events() == []
    assert pool.transfer > 0
    assert all(held > 2**20 for held in pool.memory.values())
    # What is kept can be written to: it does not lie in Ray's shared memory.
    states[0]["model.w"].add_(1)
    first[0].scores[0] += 1


def test_ray_pool_of_an_inductive_run_equals_local_backend(
    pool_of: Callable[..., RayPool], job_of: MakeJob, tmp_path: Path
) -> None:
    job = job_of({"data.inductive": True, "data.store": str(tmp_path / "store"), "model.name": "gcn"})
    assert job.training
    cells = cells_of(*PAIRS)
    found = run(pool_of(job), cells)
    assert_same(found, here(job, cells))
    assert {i for outcome in found for i in outcome.scores} == {0, 2, 4}
    # Client 4 has no test node.
    assert all(outcome.scores[i][:, 0].sum() == 20 for outcome in found for i in outcome.scores)


def test_cells_return_to_their_last_host(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    pool = pool_of(job_of())
    singles = [[i] for i in range(6)]
    # Equal costs give both hosts the same load.
    first = [processes(outcome) for outcome in run(pool, cells_of(*singles))]
    assert set(pool.home) == set(range(6))
    assert sorted(pool.home.values()) == [0, 0, 0, 1, 1, 1]
    before = dict(pool.home)
    run(pool, cells_of(*singles))
    assert pool.home == before
    assert len(first) == 6
    assert pool.memory.keys() <= {0, 1}


def test_failing_client_raises_or_is_skipped(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    with pytest.raises(
        ShoalError, match=r"^round 1, client 3: .*/harmful\.py, line 24, in upload\(\): RuntimeError: no luck$"
    ) as failed:
        run(pool_of(job_of(client=3)), cells_of(*PAIRS))
    assert ", in upload\n" in failed.value.detail
    outcomes = run(pool_of(job_of(SKIP, client=3)), cells_of(*PAIRS))
    assert [outcome.ids for outcome in outcomes] == [[0, 1], [2], [4, 5]]
    assert re.fullmatch(
        r"round 1, client 3: .*/harmful\.py, line 24, in upload\(\): RuntimeError: no luck", outcomes[1].failures[3][0]
    )


def test_failing_user_model_is_named(pool_of: Callable[..., RayPool], job_of: MakeJob, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import shoal\nfrom torch import nn\n"
        "class Mine(shoal.Backbone):\n"
        "    def __init__(self, features: int, *, hidden: int = 4):\n"
        "        super().__init__(width=hidden)\n"
        "        self.linear = nn.Linear(features, hidden)\n"
        "    def forward(self, x, edge_index):\n"
        "        return self.linear(edge_index.float())\n"
    )
    with pytest.raises(ShoalError) as failed:
        run(pool_of(job_of({"model.name": f"{file}:Mine"})), cells_of([3]))
    assert str(failed.value).startswith(f"round 1, client 3: model.name: {file}, line 8: RuntimeError: mat1 and mat2")
    assert ", in forward\n" in failed.value.detail


def test_restarted_host_rejoins_without_losses(
    hosts: list[Any], pool_of: Callable[..., RayPool], job_of: MakeJob
) -> None:
    """Between two phases nothing is lost with it."""
    job = job_of()
    pool = pool_of(job)
    expected = here(job, cells_of(*PAIRS))
    assert_same(run(pool, cells_of(*PAIRS)), expected)
    before = ray.get(hosts[1].ping.remote())
    ray.kill(hosts[1], no_restart=False)
    wait_until_up(hosts[1], before)
    found = run(pool, cells_of(*PAIRS))
    assert_same(found, expected)
    assert before not in {process for outcome in found for process in processes(outcome)}
    assert pool.retried == 0
    assert pool.events() in ([], [f"host 1 is back, on {ray.util.get_node_ip_address()}"])


def wait_until_up(host: Any, before: int) -> None:
    """Waits until a host that was killed has another process."""
    process = before
    while process == before:
        try:
            process = ray.get(host.ping.remote())
        except ray.exceptions.RayActorError:
            continue


def test_cell_lost_twice_runs_client_by_client(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    """Client 3 kills its host twice with its whole cell; alone it lets it be."""
    job = job_of(client=3, kind="dies", times=2)
    pool = pool_of(job, retries=2)
    found = run(pool, cells_of([0, 1], [2, 3, 4], [5]))
    assert_same(found, here(job, cells_of([0, 1], [2, 3, 4], [5])))
    events = pool.events()
    whole = [event for event in events if "clients [2, 3, 4]: lost with host" in event]
    assert [event.partition(", loss ")[2][0] for event in whole] == ["1", "2"]
    assert any(event.startswith("host ") and " is back, on " in event for event in events)
    # Other tasks of its host's queue are lost with it at most as often.
    assert 2 <= pool.retried <= 2 + 2 * 5


def test_batched_cell_lost_stays_whole_while_retries_last(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    """Its last bits depend on the clients in it, so that it is not split at the second loss."""
    job = job_of(client=3, kind="dies", times=3)
    pool = pool_of(job, retries=4)
    found = run(pool, [replace(cell, batched=True) for cell in cells_of([2, 3])])
    assert_same(found, here(job, cells_of([2, 3])))
    whole = [event for event in pool.events() if "clients [2, 3]: lost with host" in event]
    assert [event.partition(", loss ")[2][0] for event in whole] == ["1", "2", "3"]


def test_cell_lost_too_often_raises(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    job = job_of(SKIP, client=3, kind="dies", times=1)
    with pytest.raises(ShoalError) as ended:
        run(pool_of(job, retries=0), cells_of([2, 3]))
    line = str(ended.value)
    assert line.startswith("round 1, clients [2, 3]: lost with host ")
    assert line.endswith("; look for lack of memory, or raise engine.retries")
    assert ", loss 1 (" in line
    assert ended.value.detail == line.partition(";")[0]


def test_client_lost_too_often_is_skipped(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    job = job_of(SKIP, client=3, kind="dies", times=1)
    pool = pool_of(job, retries=0)
    found = run(pool, cells_of([3]))
    ((client, (line, advice)),) = found[0].failures.items()
    assert client == 3
    assert line.startswith("round 1, client 3: lost with host ")
    assert ", loss 1 (" in line
    assert advice == "look for lack of memory, or raise engine.retries"
    assert (found[0].ids, found[0].states) == ([], {})
    assert pool.retried == 1


def test_silent_host_is_replaced(pool_of: Callable[..., RayPool], job_of: MakeJob) -> None:
    job = job_of(client=3, kind="hangs", times=1)
    pool = pool_of(job)
    # Every host has opened its data.
    run(pool, cells_of([0], [1], [2], [4]))
    pool.timeout = 3.0
    found = run(pool, cells_of([3], [5]))
    assert_same(found, here(job, cells_of([3], [5])))
    lost = [event for event in pool.events() if "lost with host" in event]
    assert lost
    assert lost[0].startswith("round 1, client")
    assert all(event.endswith("(silent for 3 s)") for event in lost)


def test_hosts_with_part_of_the_clients_share_a_cell(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]
) -> None:
    """Host 0 can read clients 0 to 3, host 1 clients 2 to 5; a cell of all six runs split on both."""
    job = with_own_store(job_of())
    pool = RayPool(hosts, job, 60.0, 4)
    enter_in_turn(pool, job, {0: [4, 5], 1: [0, 1]})
    pool.require_data(range(6))
    whole, pairs = cells_of(range(6)), cells_of([0, 1], [2, 3], [4, 5])
    first, second = ray.get([host.ping.remote() for host in hosts])
    for cells in (whole, pairs):
        found = run(pool, cells)
        assert_same(found, here(job, cells))
        by_client = {i: process for outcome in found for i, process in zip(outcome.ids, processes(outcome))}
        assert [by_client[i] for i in (0, 1, 4, 5)] == [first, first, second, second]
        assert {by_client[2], by_client[3]} <= {first, second}
    assert pool.retried == 0


def enter_in_turn(pool: RayPool, job: Job, hidden: dict[int, Sequence[int]]) -> None:
    """Each host enters while the shards of some clients are hidden."""
    roster = pool.roster
    actors, roster.hosts = roster.hosts, []
    for host, clients in hidden.items():
        roster.hosts = actors[: host + 1]
        files: list[Path] = [job.store_path / shard_path(i) for i in clients]
        for file in files:
            file.rename(file.with_suffix(".away"))
        while host not in roster.ready:
            roster.call_back()
            roster.wait((), 1.0)
        for file in files:
            file.with_suffix(".away").rename(file)


def test_require_data_of_an_unreadable_client_raises(
    hosts: list[Any], job_of: MakeJob, with_own_store: Callable[[Job], Job]
) -> None:
    job = with_own_store(job_of())
    (job.store_path / shard_path(4)).unlink()
    pool = RayPool(hosts, job, 60.0, 4)
    pool.require_data([0, 1, 5])
    with pytest.raises(ShoalError, match=rf"^{job.store}: clients 4: no host can read their files .*; hosts run on "):
        pool.require_data(range(6))


def test_all_hosts_lost_raises(hosts: list[Any], job_of: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "COME_BACK_SECONDS", 0.0)
    gone = RayPool([], job_of(), 60.0, 4)
    with pytest.raises(ShoalError, match=r"^engine\.hosts: all hosts are lost and none came back"):
        gone.require_data([0])
    blind = RayPool(hosts, replace(job_of(), store="/nowhere"), 60.0, 4)
    with pytest.raises(ShoalError, match=r"^engine\.hosts: all hosts are lost|^/nowhere: clients 0: no host can read"):
        run(blind, cells_of([0]))


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
    tensors, plain = first.state.to_tensors()
    again = Server(job, plan, RayPool(hosts, job, 60.0, 4), FederationState.from_tensors(tensors, plain))
    found += scopes(again, 2)
    assert scopes(server, 4) == found
    assert '"north"' in found[0]
    ours, theirs = server.state.scores["domains"], again.state.scores["domains"]
    assert ours.keys() == theirs.keys() == {5, 6, 7}
    assert all(np.array_equal(counts, theirs[i]) for i, counts in ours.items())
    # A domain whose files no host has is named.
    store = shutil.copytree(job.store, tmp_path / "store")
    (store / DOMAINS / shard_path(2)).unlink()
    blind = RayPool(hosts, replace(job, store=str(store), id=f"{tmp_path}-2"), 60.0, 4)
    with pytest.raises(ShoalError, match=r": clients domain west: no host can read their files \(shard, "):
        blind.require_data(range(8))


def test_ranks_equal_one_process(
    hosts: list[Any], start: Callable[..., Server], two_classes: Any, tmp_path: Path
) -> None:
    server = start({**two_classes.keys, "evaluation.metric": "average_precision", "rounds": 2})
    job = replace(server.job, id=f"{tmp_path}")
    other = Server(job, server.plan, RayPool(hosts, job, 60.0, 4))
    assert scopes(server, 2) == scopes(other, 2)
    for scope, counts in server.state.scores.items():
        theirs = other.state.scores[scope]
        assert counts.keys() == theirs.keys()
        assert all(np.array_equal(counts[i], theirs[i]) for i in counts)
