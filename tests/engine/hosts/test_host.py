"""Cells on a host: what comes back of them, that nothing stays of a client but its new state, and the write guard."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import MakeJob, Start
from support.small_cells import cell_of, require_same_outcome, require_same_tree, run_cells, summed
from torch import Tensor

from shoal.algorithms.base import Client, Received, Trainer, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Reduce
from shoal.engine.hosts import host as host_module
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell
from shoal.engine.messages.job import Job
from shoal.engine.rounds.protocol_checks import MethodFault, ReadOnly
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import shard_path

NAN = float("nan")
UP = {"w": Reduce.MEAN, "models": Reduce.STACK, "head": Reduce.STACK, "list": Reduce.GATHER}
BOTH = pytest.mark.parametrize("path", ["autograd", "batched"])


@dataclass(frozen=True)
class Visits(FedAvg):
    """FedAvg whose clients keep model and number of visits; a client fails, or writes where it must not, as told."""

    client_models = "personal"
    client: int = -1
    where: str = ""

    def receive(self, client: Client, down: Tree) -> Received:
        self._maybe(client, "receive")
        if client.info.client == self.client:
            if self.where == "writes":
                down["w"].mul_(0.9)
            if self.where == "writes own":
                down["own"].zero_()
            if self.where == "writes inbox":
                client.inbox["c"].add_(1)
        return super().receive(client, down)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        self._maybe(client, "upload")
        # In place: the state is the client's own copy.
        client.state.setdefault("visits", torch.zeros(2)).add_(1)
        w = client.model.w
        many = torch.ones(client.info.client + 1)
        return Upload({"w": w, "models": w, "head": w[:3], "list": many}, {"w": 1.0 + client.info.client})

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        self._maybe(client, "predict")
        return super().predict(client, received, part)

    def _maybe(self, client: Client, where: str) -> None:
        if client.info.client == self.client and where == self.where:
            raise RuntimeError("no\n luck")
        if client.info.client == self.client and f"{where}, memory" == self.where:
            raise torch.OutOfMemoryError("3 GiB expected")


@dataclass(frozen=True)
class TrainingVisits(Visits):
    """Visits whose training fails, which is not plain."""

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        self._maybe(client, "train")
        return trainer.fit(client, received)


def cell(ids: Any, **more: Any) -> Cell:
    return cell_of(ids, **{"up": UP, **more})


@pytest.fixture
def job_of(start: Start) -> MakeJob:
    def job_of(client: int = -1, where: str = "", skip: bool = False, **keys: Any) -> Job:
        cls = TrainingVisits if where.startswith("train") else Visits
        method = {"algorithm.name": f"{__file__}:{cls.__name__}", "algorithm.client": client, "algorithm.where": where}
        method |= {"engine.on_client_error": "skip"} if skip else {}
        return start({**method, **{name.replace("__", "."): value for name, value in keys.items()}}).job

    return job_of


@pytest.fixture
def w(job_of: MakeJob) -> Tensor:
    """Parameters of a model."""
    return run_cells(job_of(), [cell([0])])[0].states[0]["model.w"]


@pytest.fixture
def bad(w: Tensor) -> dict[int, Tree]:
    """A download for client 2 that is NaN."""
    return {2: {"w": torch.full_like(w, NAN)}}


def test_outcomes_follow_the_cells_and_lists_the_clients(job_of: MakeJob) -> None:
    cells = [cell([4, 5]), cell([0]), cell([1, 2, 3], score=frozenset({2}))]
    outcomes = run_cells(job_of(), cells)
    assert [outcome.ids for outcome in outcomes] == [[4, 5], [0], [1, 2, 3]]
    last = outcomes[-1]
    assert [len(last.losses), len(last.bytes_up), len(last.tensors["models"])] == [3, 3, 3]
    assert (list(last.states), list(last.scores), last.failures) == ([1, 2, 3], [2], {})
    assert [t.tolist() for t in last.lists["list"]] == [[1.0] * 2, [1.0] * 3, [1.0] * 4]
    assert summed(last).weight["w"] == 2 + 3 + 4
    # Client 5 has no training node.
    assert np.isnan(outcomes[0].losses).tolist() == [False, True]


def test_every_client_leaves_its_own_and_the_next_does_not_overwrite_it(job_of: MakeJob) -> None:
    (together,) = run_cells(job_of(), [cell([0, 1, 2])])
    found = [together.states[i]["model.w"] for i in range(3)]
    alone = torch.stack([run_cells(job_of(), [cell([i])])[0].states[i]["model.w"] for i in range(3)])
    for models in (torch.stack(found), together.tensors["models"]):
        assert torch.equal(models, alone)
    assert torch.equal(together.tensors["head"], alone[:, :3])
    assert not torch.equal(alone[0], alone[1])
    torch.testing.assert_close(summed(together).total["w"], torch.arange(1, 4).double() @ alone.double())
    # A state that does not hold on to the memory of the host's model.
    assert len({w.untyped_storage().data_ptr() for w in found}) == 3


def test_what_is_sent_stays_as_it_is(job_of: MakeJob) -> None:
    job = job_of()
    first = run_cells(job, [cell([0, 1])])[0]
    shared = {"w": first.states[0]["model.w"] + 1}
    trees = [shared, first.states[0], first.states[1], {"own": torch.ones(2)}, {"c": torch.ones(2)}]
    before = copy.deepcopy(trees)
    sent = cell([0, 1], round=2, states=first.states, private={0: trees[3]}, inboxes={1: trees[4]})
    second = run_cells(job, [sent], shared)[0]
    for tree, old in zip(trees, before):
        require_same_tree(tree, old)
    assert [second.states[i]["visits"].tolist() for i in (0, 1)] == [[2.0, 2.0]] * 2
    moments = {f"model.opt.{name}" for name in ("exp_avg", "exp_avg_sq", "step")}
    assert second.states[0].keys() == {"visits", "model.w"} | moments


def test_a_download_wins_over_what_was_kept_and_the_clients_own_over_the_shared(job_of: MakeJob, w: Tensor) -> None:
    job = job_of()
    sent = cell([0, 1], train=None, states={0: {"model.w": w + 5}, 1: {"model.w": w + 6}}, private={1: {"w": w + 2}})
    with_download = run_cells(job, [sent], {"w": w + 1})[0]
    assert torch.equal(with_download.tensors["models"], torch.stack([w + 1, w + 2]))
    assert np.isnan(with_download.losses).all()
    without = run_cells(job, [replace(sent, private={})])[0]
    assert torch.equal(without.tensors["models"], torch.stack([w + 5, w + 6]))


def test_hosts_of_a_machine_share_half_of_its_memory(job_of: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    for memory_limit, beside in ((9000, 1), (9000, 3), (None, 2)):
        monkeypatch.setattr(Host, "hosts_here", lambda self, beside=beside: beside)
        monkeypatch.setattr(host_module, "machine_memory", lambda: 8000)
        host = Host()
        host.open(job_of(engine__memory_limit=memory_limit))
        limits.append(host._cache.limit)
    assert limits == [4500, 1500, 2000]


def test_opened_again_and_for_another_job(job_of: MakeJob) -> None:
    job, host = job_of(), Host()
    assert list(host.run_cells(job.id, [cell([0]), cell([1])], {})) == [None, None]
    host.open(job)
    opened = host._opened
    # By its id: the same run, whatever is sent with it.
    host.open(replace(job, seed=9))
    assert host._opened is opened
    other = replace(job, id="other", seed=9)
    # Numbers do not depend on what the host ran before.
    run_cells(job, [cell([0, 1, 2]), evaluation_cell(1, [1, 2], {}, {})], host=host)
    require_same_outcome(run_cells(other, [cell([0, 1])], host=host)[0], run_cells(other, [cell([0, 1])])[0])
    assert list(host.run_cells(job.id, [cell([0])], {})) == [None]
    with refused(says=NAME):
        host.open(replace(job, id="third", store="/nowhere"))


@BOTH
@pytest.mark.parametrize("where", ["receive", "upload", "predict"])
def test_a_client_that_fails_ends_the_call_or_leaves_nothing(job_of: MakeJob, where: str, path: str) -> None:
    line = rf"{re.escape(__file__)}, line \d+, in {where}\(\): RuntimeError: no luck"
    job = job_of(client=2, where=where, engine__trainer=path)
    with refused("round 7, client 2", says=f"in {where}(): RuntimeError: no luck"):
        run_cells(job, [cell([0, 1]), cell([2, 3], round=7, score=frozenset({2, 3}))])
    job = job_of(client=2, where=where, engine__trainer=path, skip=True)
    outcome, after = run_cells(job, [cell([1, 2, 3], score=frozenset({1, 2, 3})), cell([0])])
    ((client, (found, traceback)),) = outcome.failures.items()
    assert client == 2
    assert re.fullmatch(f"round 1, client 2: {line}", found)
    assert f"in {where}\n" in traceback
    if path == "autograd":
        require_same_outcome(outcome, run_cells(job, [cell([1, 3], score=frozenset({1, 3}))])[0])
        require_same_outcome(after, run_cells(job, [cell([0])])[0])
    assert (outcome.ids, after.ids) == ([1, 3], [0])
    assert summed(outcome).weight["w"] == 2 + 4
    assert len(outcome.tensors["models"]) == len(outcome.losses) == len(outcome.bytes_up) == 2
    assert outcome.states.keys() == outcome.scores.keys() == {1, 3}


def test_an_upload_with_nan_is_a_failure_of_its_client(job_of: MakeJob, bad: dict[int, Tree]) -> None:
    (outcome,) = run_cells(job_of(skip=True), [cell([1, 2], private=bad, train=None)])
    assert outcome.ids == [1]
    assert outcome.failures[2][0].startswith("round 1, client 2: upload() gives NaN or infinity in 'w'")


@BOTH
def test_a_loss_that_is_nan_is_a_failure_of_its_client(job_of: MakeJob, bad: dict[int, Tree], path: str) -> None:
    """A client without training rows has no loss, and has not failed."""
    (outcome,) = run_cells(job_of(skip=True, engine__trainer=path), [cell([1, 2, 5], private=bad)])
    assert outcome.ids == [1, 5]
    assert outcome.failures[2][0].startswith("round 1, client 2: the training loss is NaN; ")
    assert np.isfinite(outcome.losses).tolist() == [True, False]


@pytest.mark.parametrize("score", [True, False])
def test_predictions_that_are_nan_are_not_counted(job_of: MakeJob, bad: dict[int, Tree], score: bool) -> None:
    ids = frozenset({1, 2} if score else {1})
    sent = cell([1, 2], private=bad, phase="", up={}, train=None, score=ids)
    (outcome,) = run_cells(job_of(skip=True), [sent])
    assert outcome.scores.keys() == {1}
    if score:
        assert outcome.failures[2][0].startswith("round 1, client 2: predictions of 'val' are NaN or infinite")


def test_lack_of_memory_says_what_may_help(job_of: MakeJob) -> None:
    with refused("round 1, client 1", says="OutOfMemoryError: 3 GiB expected; a larger resources.gpus_per_host or"):
        run_cells(job_of(client=1, where="train, memory"), [cell([0, 1])])


@BOTH
@pytest.mark.parametrize("damage", ["missing", "truncated", "replaced"])
def test_a_damaged_store_ends_the_run_whoever_is_skipped(job_of: MakeJob, path: str, damage: str) -> None:
    job = job_of(skip=True, engine__trainer=path)
    shard, record = job.store_path / shard_path(range(6)), job.open_store().manifest.clients[1].file
    hidden = shard.rename(shard.with_suffix(".hidden"))
    try:
        if damage != "missing":
            content = hidden.read_bytes()
            start, end = record.start, record.start + record.bytes
            replaced = content[:start] + bytes(record.bytes) + content[end:]
            shard.write_bytes(content[:-50] if damage == "truncated" else replaced)
        with refused("round 1, client 1", shard, "client 1"):
            run_cells(job, [cell([1, 2])])
        if damage == "replaced":
            # Others of the file are as they were.
            run_cells(job, [cell([0, 2])])
    finally:
        hidden.replace(shard)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("where", "entry"), [("writes", "download 'w'"), ("writes own", "download 'own'"), ("writes inbox", "inbox 'c'")]
)
def test_a_method_that_writes_where_it_must_not(job_of: MakeJob, w: Tensor, where: str, entry: str, skip: bool) -> None:
    """Its own fault: no client can be left out for it."""
    sent = cell([0, 1, 2], private={1: {"own": torch.ones(2)}}, inboxes={1: {"c": torch.ones(2)}})
    with refused(says=f"round 1, client 1: Visits ({__file__}) writes into the {entry}, which", kind=MethodFault):
        run_cells(job_of(client=1, where=where, skip=skip), [sent], {"w": w})


def test_reading_is_allowed() -> None:
    tree = {"w": torch.ones(3), "n": torch.tensor(2), "met": torch.tensor([True]), "none": torch.zeros(0)}
    tree |= {str(poison): torch.tensor([1.0, poison]) for poison in (NAN, float("inf"), -float("inf"))}
    guard = ReadOnly(tree, "download")
    assert float((tree["w"] * 2).sum()) == 6
    tree["w"].clone().mul_(3)
    tree["more"] = torch.zeros(1)
    guard.require_unchanged("round 1, client 0: Mine")


@pytest.mark.parametrize(
    "write",
    [
        lambda t: t.mul_(0.9),
        lambda t: t[1:].add_(1),
        lambda t: t.__setitem__(0, 5.0),
        # The same numbers again.
        lambda t: t.copy_(t.clone()),
        # Behind torch's back.
        lambda t: np.add(t.numpy(), 1, out=t.numpy()),
        lambda t: t.numpy().fill(NAN),
        lambda t: t.data.mul_(2),
    ],
)
def test_writing_is_noticed(write: Callable[[Tensor], Any]) -> None:
    tree = {"other": torch.zeros(2), "w": torch.ones(3), "met": torch.tensor([True, False])}
    guard = ReadOnly(tree, "download")
    write(tree["w"])
    with refused(says="round 4, client 2: Mine writes into the download 'w', which is read-only", kind=MethodFault):
        guard.require_unchanged("round 4, client 2: Mine")
    guard = ReadOnly(tree, "inbox")
    tree["met"].logical_not_()
    with refused(says="into the inbox 'met'", kind=MethodFault):
        guard.require_unchanged("here")
