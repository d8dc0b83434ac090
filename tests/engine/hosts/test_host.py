"""Cells on a host: what comes back of them, in which order, and that nothing stays of a client but its new state."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.base import Client, Received, Trainer, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Reduce
from shoal.engine.hosts.host import Host
from shoal.engine.hosts.write_guard import MethodWrites
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import shard_path
from shoal.storage.store.view import View

PLACE = rf"{re.escape(__file__)}, line \d+"
UP = {"w": Reduce.MEAN, "models": Reduce.STACK, "head": Reduce.STACK, "list": Reduce.GATHER}


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


def cell(ids: Sequence[int], **more: Any) -> Cell:
    empty: dict[str, Any] = {"private": {}, "states": {}, "inboxes": {}, "score": frozenset(), "cost": 1.0}
    return Cell(**{"round": 1, "ids": ids, "phase": "train", "up": UP, "train": True, **empty, **more})


@pytest.fixture
def job_of(start: Callable[..., Server]) -> Callable[..., Job]:
    def job_of(client: int = -1, where: str = "", **keys: Any) -> Job:
        cls = TrainingVisits if where.startswith("train") else Visits
        method = {"algorithm.name": f"{__file__}:{cls.__name__}", "algorithm.client": client, "algorithm.where": where}
        return start({**method, **{name.replace("__", "."): value for name, value in keys.items()}}).job

    return job_of


def run(job: Job, cells: Sequence[Cell], shared: Tree | None = None, host: Host | None = None) -> list[Outcome]:
    """Runs cells on a host of their own."""
    host = host or Host()
    host.open(job)
    outcomes = list(host.run_cells(job.id, cells, shared or {}))
    assert all(outcome is not None for outcome in outcomes)
    return [outcome for outcome in outcomes if outcome is not None]


def assert_same(left: Outcome, right: Outcome) -> None:
    """All but the time is equal to the bit."""
    assert left.ids == right.ids
    np.testing.assert_array_equal(left.losses, right.losses)
    trees = [(left.sums, right.sums), (left.weights, right.weights), (left.tensors, right.tensors)]
    assert left.states.keys() == right.states.keys()
    for mine, other in [*trees, *((left.states[i], right.states[i]) for i in left.states)]:
        assert mine.keys() == other.keys()
        assert all(torch.equal(t, other[name]) for name, t in mine.items())
    assert left.scores.keys() == right.scores.keys()
    assert all(np.array_equal(left.scores[i], right.scores[i]) for i in left.scores)


def test_outcomes_follow_the_cells_and_lists_the_clients(job_of: Callable[..., Job]) -> None:
    cells = [cell([4, 5]), cell([0]), cell([1, 2, 3], score=frozenset({2}))]
    outcomes = run(job_of(), cells)
    assert [outcome.ids for outcome in outcomes] == [[4, 5], [0], [1, 2, 3]]
    last = outcomes[-1]
    assert [len(last.losses), len(last.bytes_up), len(last.tensors["models"])] == [3, 3, 3]
    assert list(last.states) == [1, 2, 3]
    assert list(last.scores) == [2]
    assert [t.tolist() for t in last.lists["list"]] == [[1.0] * 2, [1.0] * 3, [1.0] * 4]
    assert last.weights["w"] == 2 + 3 + 4
    # Client 5 has no training node.
    assert np.isnan(outcomes[0].losses).tolist() == [False, True]
    assert not last.failures


def test_every_client_leaves_its_own_and_the_next_does_not_overwrite_it(job_of: Callable[..., Job]) -> None:
    (together,) = run(job_of(), [cell([0, 1, 2])])
    alone = [run(job_of(), [cell([i])])[0] for i in range(3)]
    for i in range(3):
        w = alone[i].states[i]["model.w"]
        assert torch.equal(together.states[i]["model.w"], w)
        assert torch.equal(together.tensors["models"][i], w)
        assert torch.equal(together.tensors["head"][i], w[:3])
    assert not torch.equal(together.states[0]["model.w"], together.states[1]["model.w"])
    expected = sum((1 + i) * alone[i].states[i]["model.w"].double() for i in range(3))
    torch.testing.assert_close(together.sums["w"], expected)
    # A state that does not hold on to the memory of the host's model.
    assert len({together.states[i]["model.w"].untyped_storage().data_ptr() for i in range(3)}) == 3


def test_numbers_do_not_depend_on_what_the_host_ran_before(job_of: Callable[..., Job]) -> None:
    job, host = job_of(), Host()
    expected = cell([1, 2], score=frozenset({1}))
    fresh = run(job, [expected])[0]
    run(job, [cell([0, 1, 2, 3]), evaluation_cell(1, [1, 2], {}, {})], host=host)
    assert_same(run(job, [cell([3]), expected], host=host)[1], fresh)


def test_what_is_sent_stays_as_it_is(job_of: Callable[..., Job]) -> None:
    job = job_of()
    first = run(job, [cell([0, 1])])[0]
    shared = {"w": first.states[0]["model.w"] + 1}
    trees = [shared, first.states[0], first.states[1], {"own": torch.ones(2)}, {"c": torch.ones(2)}]
    before = [{name: t.clone() for name, t in tree.items()} for tree in trees]
    sent = cell([0, 1], round=2, states=first.states, private={0: trees[3]}, inboxes={1: trees[4]})
    second = run(job, [sent], shared)[0]
    for tree, copy in zip(trees, before):
        assert tree.keys() == copy.keys()
        assert all(torch.equal(t, copy[name]) for name, t in tree.items())
    assert [second.states[i]["visits"].tolist() for i in (0, 1)] == [[2.0, 2.0]] * 2
    assert second.states[0].keys() == {
        "visits",
        "model.w",
        "model.opt.exp_avg",
        "model.opt.exp_avg_sq",
        "model.opt.step",
    }


def test_a_download_wins_over_what_was_kept_and_the_clients_own_over_the_shared(job_of: Callable[..., Job]) -> None:
    job = job_of()
    w = run(job, [cell([0])])[0].states[0]["model.w"]
    sent = cell([0, 1], train=False, states={0: {"model.w": w + 5}, 1: {"model.w": w + 6}}, private={1: {"w": w + 2}})
    with_download = run(job, [sent], {"w": w + 1})[0]
    assert torch.equal(with_download.tensors["models"], torch.stack([w + 1, w + 2]))
    assert np.isnan(with_download.losses).all()
    without = run(job, [replace(sent, private={})])[0]
    assert torch.equal(without.tensors["models"], torch.stack([w + 5, w + 6]))


def test_a_mere_evaluation(
    start: Callable[..., Server],
    job_of: Callable[..., Job],
    views: Callable[..., list[View]],
    counts_of: Callable[..., np.ndarray],
) -> None:
    server = start()
    w = {i: server._initial + 0.1 * i for i in range(6)}
    sent = evaluation_cell(4, range(6), {i: {"model.w": w[i]} for i in range(6)}, {})
    outcome = run(job_of(), [sent])[0]
    for i, view in enumerate(views()):
        np.testing.assert_array_equal(outcome.scores[i], counts_of(server, view, w[i]))
    assert (outcome.ids, outcome.states, outcome.losses, outcome.sums) == (list(range(6)), {}, [], {})


def test_a_job_it_does_not_know(job_of: Callable[..., Job]) -> None:
    job, host = job_of(), Host()
    assert list(host.run_cells(job.id, [cell([0]), cell([1])], {})) == [None, None]
    host.open(job)
    assert list(host.run_cells("another", [cell([0])], {})) == [None]


def test_opened_again_and_for_another_job(job_of: Callable[..., Job]) -> None:
    job, host = job_of(), Host()
    host.open(job)
    opened = host._opened
    # By its id: the same run, whatever is sent with it.
    host.open(replace(job, seed=9))
    assert host._opened is opened
    other = replace(job, id="other", seed=9)
    assert_same(run(other, [cell([0, 1])], host=host)[0], run(other, [cell([0, 1])])[0])
    assert list(host.run_cells(job.id, [cell([0])], {})) == [None]
    with pytest.raises(ShoalError, match=r"manifest\.json"):
        host.open(replace(job, id="third", store="/nowhere"))


@pytest.mark.parametrize("path", ["autograd", "batched"])
@pytest.mark.parametrize("where", ["receive", "upload", "predict"])
def test_a_client_that_fails_ends_the_call(job_of: Callable[..., Job], where: str, path: str) -> None:
    job = job_of(client=2, where=where, engine__trainer=path)
    with pytest.raises(
        ShoalError, match=rf"^round 7, client 2: {PLACE}, in {where}\(\): RuntimeError: no luck$"
    ) as failed:
        run(job, [cell([0, 1]), cell([2, 3], round=7, score=frozenset({2, 3}))])
    assert f"in {where}\n" in failed.value.detail


@pytest.mark.parametrize("path", ["autograd", "batched"])
@pytest.mark.parametrize("where", ["receive", "upload", "predict"])
def test_a_client_that_is_left_out_leaves_nothing(job_of: Callable[..., Job], where: str, path: str) -> None:
    job = job_of(client=2, where=where, engine__trainer=path, engine__on_client_error="skip")
    outcome, after = run(job, [cell([1, 2, 3], score=frozenset({1, 2, 3})), cell([0])])
    ((client, (line, traceback)),) = outcome.failures.items()
    assert client == 2
    assert re.fullmatch(rf"round 1, client 2: {PLACE}, in {where}\(\): RuntimeError: no luck", line)
    assert f"in {where}\n" in traceback
    if path == "autograd":
        assert_same(outcome, run(job, [cell([1, 3], score=frozenset({1, 3}))])[0])
        assert_same(after, run(job, [cell([0])])[0])
    assert (outcome.ids, after.ids) == ([1, 3], [0])
    assert outcome.weights["w"] == 2 + 4
    assert len(outcome.tensors["models"]) == len(outcome.losses) == len(outcome.bytes_up) == 2
    assert outcome.states.keys() == outcome.scores.keys() == {1, 3}


def test_an_upload_with_nan_is_a_failure_of_its_client(job_of: Callable[..., Job]) -> None:
    bad = {2: {"w": torch.full_like(run(job_of(), [cell([0])])[0].states[0]["model.w"], float("nan"))}}
    job = job_of(engine__on_client_error="skip")
    (outcome,) = run(job, [cell([1, 2], private=bad, train=False)])
    assert outcome.ids == [1]
    assert (
        outcome.failures[2][0]
        == "round 1, client 2: upload() gives NaN or infinity in 'w'; a smaller train.lr may help"
    )


@pytest.mark.parametrize("path", ["autograd", "batched"])
def test_a_loss_that_is_nan_is_a_failure_of_its_client(job_of: Callable[..., Job], path: str) -> None:
    """A client without training rows has no loss, and has not failed."""
    bad = {2: {"w": torch.full_like(run(job_of(), [cell([0])])[0].states[0]["model.w"], float("nan"))}}
    job = job_of(engine__on_client_error="skip", engine__trainer=path)
    (outcome,) = run(job, [cell([1, 2, 5], private=bad)])
    assert outcome.ids == [1, 5]
    assert outcome.failures[2][0] == "round 1, client 2: the training loss is NaN; a smaller train.lr may help"
    assert np.isfinite(outcome.losses).tolist() == [True, False]


@pytest.mark.parametrize("score", [True, False])
def test_predictions_that_are_nan_are_not_counted(job_of: Callable[..., Job], score: bool) -> None:
    bad = {2: {"w": torch.full_like(run(job_of(), [cell([0])])[0].states[0]["model.w"], float("nan"))}}
    ids = frozenset({1, 2} if score else {1})
    job = job_of(engine__on_client_error="skip")
    (outcome,) = run(job, [cell([1, 2], private=bad, phase="", up={}, train=False, score=ids)])
    assert outcome.scores.keys() == {1}
    if score:
        line = "round 1, client 2: predictions of 'val' are NaN or infinite, so no class wins; a smaller train.lr may"
        assert outcome.failures[2][0].startswith(line)


def test_lack_of_memory_says_what_may_help(job_of: Callable[..., Job]) -> None:
    with pytest.raises(
        ShoalError, match=r"client 1: OutOfMemoryError: 3 GiB expected; a larger resources\.gpus_per_host or"
    ):
        run(job_of(client=1, where="train, memory"), [cell([0, 1])])


@pytest.mark.parametrize("path", ["autograd", "batched"])
def test_data_that_cannot_be_opened_is_its_clients_failure(job_of: Callable[..., Job], path: str) -> None:
    job = job_of(engine__on_client_error="skip", engine__trainer=path)
    shard = job.store_path / shard_path(1)
    hidden = shard.rename(shard.with_suffix(".hidden"))
    try:
        (outcome,) = run(job, [cell([0, 1, 2])])
    finally:
        hidden.rename(shard)
    assert outcome.ids == [0, 2]
    assert outcome.failures[1][0].startswith(f"round 1, client 1: {shard}: missing")


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("errors", ["fail", "skip"])
@pytest.mark.parametrize(
    ("where", "entry"), [("writes", "download 'w'"), ("writes own", "download 'own'"), ("writes inbox", "inbox 'c'")]
)
def test_a_method_that_writes_into_what_it_was_lent(
    job_of: Callable[..., Job], where: str, entry: str, errors: str
) -> None:
    """Its own fault: no client can be left out for it."""
    job = job_of(client=1, where=where, engine__on_client_error=errors)
    w = run(job_of(), [cell([0])])[0].states[0]["model.w"]
    sent = cell([0, 1, 2], private={1: {"own": torch.ones(2)}}, inboxes={1: {"c": torch.ones(2)}})
    with pytest.raises(MethodWrites, match=rf"^round 1, client 1: Visits writes into the {entry}, which is read-only"):
        run(job, [sent], {"w": w})


def test_a_visit_shows_a_client_as_it_stands(job_of: Callable[..., Job], module_of: Callable[..., nn.Module]) -> None:
    job, host = job_of(model__init="own"), Host()
    host.open(job)
    initial = [host.visit(i, evaluation_cell(1, [i], {}, {}), {}).client.model.w.clone() for i in (0, 1)]
    assert not torch.equal(*initial)
    kept = {1: {"model.w": initial[0] + 1, "model.opt.step": torch.ones(1), "visits": torch.ones(2)}}
    visit = host.visit(1, evaluation_cell(1, [1], kept, {1: {"c": torch.ones(3)}}), {})
    assert torch.equal(visit.client.model.w, initial[0] + 1)
    assert not visit.client.model.received
    assert (visit.client.state.keys(), visit.client.inbox.keys()) == ({"model.w", "visits"}, {"c"})
    received = host.visit(1, evaluation_cell(1, [1], kept, {}), {"w": initial[1]})
    assert torch.equal(received.client.model.w, initial[1])
    assert received.client.model.received
    assert torch.equal(kept[1]["model.w"], initial[0] + 1)
