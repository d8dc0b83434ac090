"""A host on a second device: values travel in one copy, results are fetched with one wait, and no number changes.

The device is made of the processor's memory; launches, waits and copies are counted on it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.other_device.device import load
from support.other_device.device_counts import DeviceCounts
from support.small_cells import cell_of
from support.small_runs import small_run
from torch import Tensor

from shoal.algorithms.base import Client, Received
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import Reduce, Upload
from shoal.engine.config.config import parse_config
from shoal.engine.hosts import host
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.hosts.devices import gpu
from shoal.engine.hosts.devices.gpu import Deferred, fetch, send, send_values
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Outcome
from shoal.engine.messages.job import Job, make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of
from shoal.storage.store.store import shard_path

Run = Callable[..., Server]


def some() -> list[Tensor]:
    torch.manual_seed(0)
    floats = [torch.randn(3, 5), torch.tensor(True), torch.randn(2, 3, dtype=torch.float64).t(), torch.zeros(0, 4)]
    others = [torch.arange(7), torch.tensor([True, False, True]), torch.tensor(3, dtype=torch.int32)]
    return [*floats, torch.randn(3).half(), torch.randn(5).bfloat16(), *others]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    for mine, other in zip(found, expected, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert torch.equal(mine.cpu(), other.cpu())


@pytest.mark.parametrize("count", [0, 1, 9])
def test_tensors_travel_in_one_copy(count: int) -> None:
    other, tensors = load(), some()[:count]
    with DeviceCounts(other) as counts:
        there = send(tensors, other)
    assert (counts.copies, counts.synchronisations) == (min(count, 1), 0)
    assert all(t.device == other for t in there)
    assert_equal(there, tensors)
    with DeviceCounts(other) as counts:
        back = fetch(there)
    assert (counts.copies, counts.synchronisations) == (min(count, 1), min(count, 1))
    assert all(t.device.type == "cpu" for t in back)
    assert_equal(back, tensors)


def test_each_tensor_is_alone() -> None:
    """Writes into one are not counted of another; one that stays keeps no more memory than its own."""
    there = send(some(), load())
    versions = [t._version for t in there]
    there[0].add_(1)
    assert there[0]._version > versions[0]
    assert [t._version for t in there[1:]] == versions[1:]
    assert_equal(there[1:], some()[1:])
    assert [t.untyped_storage().nbytes() for t in fetch(there)] == [t.nbytes for t in there]
    (found,) = fetch([2 * torch.ones(3, device=load(), requires_grad=True)])
    assert not found.requires_grad


def test_a_cell_is_brought_whole() -> None:
    other, trees = load(), [{"a": torch.full((2,), float(i)), "b": torch.tensor(i)} for i in range(6)]
    kept = {"private": {2: trees[0]}, "states": {2: trees[1], 4: trees[2]}, "inboxes": {4: trees[3], 5: {}}}
    cell = cell_of([2, 4, 5], {"w": Reduce.MEAN}, score_with=trees[4], **kept)
    with DeviceCounts(other) as counts:
        found = send_values(cell, other)
    assert (counts.copies, counts.synchronisations) == (1, 0)
    trees_of = {name: getattr(found, name) for name in kept} | {"score_with": found.score_with}
    expected = {**kept, "score_with": trees[4]}
    torch.testing.assert_close(trees_of, expected, rtol=0, atol=0, check_device=False)
    assert all(t.device == other for t in found.score_with.values())
    assert (found.ids, found.up, found.score) == (cell.ids, cell.up, cell.score)


# Of a cell as it is on a GPU, and of one that is enough to see what a client costs.
MANY, FEW = 64, 8
Count = Callable[..., DeviceCounts]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("counts")


@pytest.fixture
def count(store: Path, monkeypatch: pytest.MonkeyPatch) -> Count:
    """Counts the second round of hosts, of one cell of all clients; the server is not counted.

    What a first round brings to the device for good is there.
    """
    other = load()
    run_cells = Host.run_cells

    def count(clients: int = FEW, trainer: str = "batched", **sections: Any) -> DeviceCounts:
        options = {"nodes": 40 * clients, "features": 16, "classes": 4, "degree": 6.0}
        own = {"data": {"store": str(store / f"store-{clients}"), "options": options}, "propagation": {"hops": 2}}
        own |= {"partition": {"method": "random", "clients": clients}, "evaluation": {"every": 100}}
        own |= {"engine": {"cell_size": clients, "trainer": trainer}, **sections}
        config = parse_config(small_run(store, rounds=100, **own), "test")
        counts = DeviceCounts(other)
        job = make_job(config, prepare(config), "counts")
        server = Server(job, plan_of(config), LocalBackend().enter(job))

        def counted(self: Host, *args: Any) -> Iterator[Any]:
            with counts:
                outcomes = list(run_cells(self, *args))
            yield from outcomes

        with torch.autograd.set_multithreading_enabled(False):
            server.round()
            with monkeypatch.context() as patch:
                patch.setattr(Host, "run_cells", counted)
                server.round()
        return counts

    monkeypatch.setattr(host, "take_device", lambda name, share, precision: other)
    return count


def test_a_batched_cell_waits_once_and_copies_twice(count: Count) -> None:
    """In what its clients kept, out what they leave behind; beside that, a call of cells brings what all are sent."""
    counts = count(MANY)
    assert (counts.synchronisations, counts.copies) == (1, 2 + 1)
    # No client has a launch of its own: parameters are lent to the batch, and stay in it.
    assert counts.launches < 1.5 * MANY


@pytest.mark.parametrize("trainer", ["autograd", "batched"])
def test_scores_of_a_cell_cost_what_those_of_a_client_do(count: Count, trainer: str) -> None:
    """What they trained and the server's model: two calls of a cell each, no wait and no copy for the scores."""
    counts, plain = count(evaluation={"every": 1}, trainer=trainer), count(trainer=trainer)
    # Losses of a loop are looked at one by one.
    losses = FEW if trainer == "autograd" else 0
    assert (plain.synchronisations, plain.copies) == (1 + losses, 3)
    assert (counts.synchronisations, counts.copies) == (2 + losses, 5)
    # Beside two visits of each client: two copies of its parameters, and some operators for all.
    assert counts.launches - plain.launches < 90 + (6 * FEW if trainer == "autograd" else 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["gcn", "sage", "gcnii"])
def test_scores_of_batched_graphs(count: Count, model: str) -> None:
    """As of rows: one pass for all, twice; beside it each client is visited once more."""
    keys = {"model": {"name": model}, "train": {"dropout": 0.0}}
    scored, plain = count(MANY, evaluation={"every": 1}, **keys), count(MANY, **keys)
    assert (plain.synchronisations, plain.copies, scored.synchronisations, scored.copies) == (1, 3, 2, 5)
    # Of every client and layer the ends of rows are padded.
    assert plain.launches / MANY < 5.5
    # The whole graphs are brought there, too: training reads parts of them.
    assert (scored.launches - plain.launches) / MANY < 4


def test_what_is_streamed_is_not_waited_for(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache the training rows of every client come in each round, selected on the processor."""
    monkeypatch.setattr(host, "cache_bytes", lambda device, share, on_processor: 0)
    counts = count()
    assert (counts.synchronisations, counts.copies) == (1, 3 + FEW)


EVERY = {"evaluation.every": 1, "engine.cell_size": 4, "train.dropout": 0.3}
BATCHED = {"engine.trainer": "batched"}
# By one pass of a model, by a coupled one, by a method's own `predict`, by rows of some clients at a time.
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "batched": (BATCHED, 2**26),
    "autograd": ({"engine.trainer": "autograd"}, 2**26),
    "two clients a pass": ({**BATCHED, "model.name": "mlp"}, 3 * 10 * 5),
    "a client a pass": ({**BATCHED, "model.name": "mlp"}, 1),
    "kept models": ({**BATCHED, "algorithm.name": "local"}, 2**26),
    "coupled": ({"model.name": "gcn"}, 2**26),
    "coupled, some at a time": ({**BATCHED, "model.name": "sage"}, 2**11),
    "coupled, one at a time": ({**BATCHED, "model.name": "gin"}, 1),
    "coupled, with attention": ({"model.name": "gat"}, 2**26),
    "own predict": ({"algorithm.name": "fedproto"}, 2**26),
}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_the_processor(run: Run, request: Any, monkeypatch: Any, case: str) -> None:
    """Client 4 has no test node, client 5 no training node."""
    keys, numbers = CASES[case]
    here = run({**EVERY, **keys}, rounds=2)
    request.getfixturevalue("there")
    monkeypatch.setattr(gpu, "NUMBERS_OF_A_PASS", numbers)
    monkeypatch.setattr("shoal.algorithms.training.batched.batched_inputs.NO_MATTER", 0)
    away = run({**EVERY, **keys}, rounds=2)
    np.testing.assert_equal(*({scope: dict(table) for scope, table in of.state.scores.items()} for of in (away, here)))
    of_clients = [of_client for counts in here.state.scores.values() for of_client in counts.values()]
    assert all(of_client.any() and of_client.shape == (2, 3, 4) for of_client in of_clients)


@dataclass(frozen=True)
class Spoils(FedAvg):
    """The scores of client 2 are NaN in a row of one part."""

    part: str = "test"

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        scores = super().predict(client, received, part).clone()
        if client.info.client == 2 and part == self.part:
            scores[1, 0] = float("nan")
        return scores


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize("part", ["val", "test"])
def test_scores_that_are_not_finite_name_client_and_part(run: Run, part: str) -> None:
    keys = {**EVERY, "algorithm.name": f"{__file__}:Spoils", "algorithm.part": part, "engine.trainer": "autograd"}
    with refused("round 1, client 2", says=f"predictions of '{part}' are NaN or infinite"):
        run(keys, rounds=1)
    server = run({**keys, "engine.on_client_error": "skip"}, rounds=1)
    assert server.state.scores["global"].keys() == {0, 1, 3, 4, 5}


ADDED = {"engine.cell_size": 4, "train.dropout": 0.3, "model.name": "mlp"}


@pytest.mark.parametrize("trainer", ["autograd", "batched"])
@pytest.mark.parametrize("room", [2**28, 1])
def test_large_means_are_added_up_where_they_are(run: Run, request: Any, trainer: str, room: int) -> None:
    """To the bit as on the processor, also where a cell's results are fetched in several copies."""
    keys = {**ADDED, "engine.trainer": trainer}
    patch, _ = request.getfixturevalue("monkeypatch"), request.getfixturevalue("there")
    patch.setattr(gpu, "MAX_RESULT_BYTES", room)
    fetched_alone = run(keys, rounds=2)
    added, stays = [], Deferred._stays

    def noted(self: Deferred, result: gpu.ClientResult) -> dict[str, Tensor]:
        found = stays(self, result)
        added.extend(found)
        return found

    patch.setattr(gpu, "LEAST_TO_ADD", 0)
    patch.setattr(Deferred, "_stays", noted)
    here = run(keys, rounds=2)
    assert ("w" in added) == (room == 2**28)
    assert_equal(list(here.state.server.values()), list(fetched_alone.state.server.values()))
    assert all(t.device.type == "cpu" for t in here.state.server.values())


@dataclass(frozen=True)
class Infinite(FedAvg):
    """Client 2 sends an infinite number, client 3 one whose square is."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        upload = super().upload(client, received, phase)
        w = upload.entries["w"].clone()
        if client.info.client in (2, 3):
            w[1] = float("inf") if client.info.client == 2 else 1e30
        return replace(upload, entries={"w": w})


@pytest.mark.usefixtures("there")
def test_infinite_numbers_are_not_added_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LEAST_TO_ADD", 0)
    keys = {**ADDED, "algorithm.name": f"{__file__}:Infinite", "engine.trainer": "autograd"}
    with refused("round 1, client 2", says="NaN or infinity in 'w'"):
        run(keys, rounds=1)
    server = run({**keys, "engine.on_client_error": "skip"}, rounds=1)
    assert 1e28 < float(server.state.server["w"].max()) < 1e30


def test_a_large_mean_costs_one_more_wait(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its sum; no copy of any client's."""
    monkeypatch.setattr(gpu, "LEAST_TO_ADD", 0)
    counts = count(MANY)
    assert (counts.synchronisations, counts.copies) == (2, 4)


KEYS: dict[str, Any] = {"algorithm.name": "local", "engine.trainer": "batched", "train.dropout": 0.3}
CELLS = [[0, 1], [2, 3], [4]]
ROOM = 2**20
Outcomes = Callable[..., Iterator[Outcome]]
Order = Callable[..., list[str]]


class Events(DeviceCounts):
    """Copies and waits of a device in their order: `>` to it, `<` a wait."""

    order = ""

    def _add(self, what: str, name: str) -> None:
        super()._add(what, name)
        if what == "copies" and name == "_to_copy":
            self.order += ">"
        if what == "synchronisations":
            # The copy by which it is waited for.
            self.order += "<"


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Outcomes:
    """Runs cells in one call of a host on the second device, and notes what this is told: `|` ends a cell."""
    other = load()

    def outcomes(job: Job, room: int = ROOM, events: Events | None = None) -> Iterator[Outcome]:
        monkeypatch.setattr(host, "take_device", lambda name, share, precision: other)
        monkeypatch.setattr(host, "cache_bytes", lambda device, share, on_processor: room)
        events = events or Events(other)
        cells = [cell_of(ids, states={i: {"kept": torch.zeros(1)} for i in ids}) for ids in CELLS]
        with torch.autograd.set_multithreading_enabled(False), events:
            mine = Host()
            mine.open(job)
            events.order = ""
            for outcome in mine.run_cells(job.id, cells, {}):
                assert outcome is not None
                yield outcome
                events.order += "|"

    return outcomes


@pytest.fixture
def order(outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch) -> Order:
    """What the device is told in each cell."""

    def order(job: Job, room: int = ROOM, ahead: bool = True) -> list[str]:
        events = Events(load())
        with monkeypatch.context() as patch:
            if not ahead:
                patch.setattr(Deferred, "_bring", lambda self: None)
            assert [outcome.ids for outcome in outcomes(job, room, events)] == CELLS
        return events.order.split("|")[:-1]

    return order


def test_the_next_cell_is_on_its_way_before_the_wait(start: Run, order: Order) -> None:
    """All copies for the next cell are on their way before the wait of the present one, and nothing else changes."""
    job = start(KEYS).job
    first, second, third = order(job, ahead=False)
    # Values, and rows, labels and training rows of every client.
    assert (second, third) == (">" * 7 + "<", ">" * 4 + "<")
    assert order(job) == [first[:-1] + second, third, "<"]


@pytest.mark.parametrize(("room", "clients"), [(0, 0), (8, 1), (ROOM, 2)])
def test_no_more_is_brought_than_may_pass(start: Run, order: Order, monkeypatch: Any, room: int, clients: int) -> None:
    """Without room values alone; what is one client's data may be more than an eighth of the cache."""
    brought, gathered = [], Deferred._gather

    def noted(self: Deferred, client: int) -> Inputs:
        brought.append(client)
        return gathered(self, client)

    job = start(KEYS).job
    plain = order(job, room, ahead=False)
    monkeypatch.setattr(Deferred, "_gather", noted)
    found = order(job, room)
    assert brought == [client for cell in CELLS[1:] for client in cell[:clients]]
    assert len(found[0]) - len(plain[0]) == 1 + 3 * clients


def test_a_lost_shard_is_told_in_its_turn(start: Run, outcomes: Outcomes, with_own_store: Callable[..., Job]) -> None:
    """The cell before it has ended well."""
    job = with_own_store(start(KEYS).job)
    (job.store_path / shard_path(2)).unlink()
    begun = outcomes(job)
    assert next(begun).ids == CELLS[0]
    with refused("round 1, client 2", job.store_path / shard_path(2)):
        next(begun)
