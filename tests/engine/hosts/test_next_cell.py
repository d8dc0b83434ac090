"""What the next cell needs is on its way to a device before the processor waits for the present one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.other_device.device import load
from support.other_device.device_counts import DeviceCounts

from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.engine.hosts import host
from shoal.engine.hosts.gpu import Deferred
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError
from shoal.storage.store.cache import Cache
from shoal.storage.store.store import shard_path

Run = Callable[..., Server]
KEYS: dict[str, Any] = {"algorithm.name": "local", "engine.trainer": "batched", "train.dropout": 0.3}
CELLS = [[0, 1], [2, 3], [4]]
ROOM = 2**20


class Events(DeviceCounts):
    """Copies and waits of a device in their order: `>` to it, `<` a wait."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.order = ""

    def _add(self, what: str, name: str) -> None:
        super()._add(what, name)
        if what == "copies" and name == "_to_copy":
            self.order += ">"
        if what == "synchronisations":
            # The copy by which it is waited for.
            self.order += "<"


def cells(ids: list[list[int]], **more: Any) -> list[Cell]:
    empty: dict[str, Any] = {"private": {}, "inboxes": {}, "score": frozenset(), "cost": 1.0}
    kept = {"kept": torch.zeros(1)}
    received: dict[str, Any] = {"round": 1, "phase": "train", "up": {}, "train": True, **empty, **more}
    return [Cell(ids=own, states=dict.fromkeys(own, kept), **received) for own in ids]


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Outcome]]:
    """Runs cells in one call of a host on the second device, and notes what this is told: `|` ends a cell."""
    other = load()

    def outcomes(job: Job, room: int = ROOM, events: Events | None = None, **more: Any) -> Iterator[Outcome]:
        monkeypatch.setattr(host, "take_device", lambda name, share, precision: other)
        monkeypatch.setattr(host, "cache_bytes", lambda device, share, on_processor: room)
        events = events or Events(other)
        with torch.autograd.set_multithreading_enabled(False), events:
            mine = Host()
            mine.open(job)
            events.order = ""
            for outcome in mine.run_cells(job.id, cells(CELLS, **more), {}):
                assert outcome is not None
                yield outcome
                events.order += "|"

    return outcomes


@pytest.fixture
def order(outcomes: Callable[..., Iterator[Outcome]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What the device is told in each cell."""

    def order(job: Job, room: int = ROOM, ahead: bool = True) -> list[str]:
        events = Events(load())
        with monkeypatch.context() as patch:
            if not ahead:
                patch.setattr(Deferred, "_bring", lambda self: None)
            assert [outcome.ids for outcome in outcomes(job, room, events)] == CELLS
        return events.order.split("|")[:-1]

    return order


def test_the_order(start: Run, order: Callable[..., list[str]]) -> None:
    """All copies for the next cell are on their way before the wait of the present one, and nothing else changes."""
    job = start(KEYS).job
    first, second, third = order(job, ahead=False)
    # Values, and rows, labels and training rows of every client.
    assert (second, third) == (">" * 7 + "<", ">" * 4 + "<")
    assert order(job) == [first[:-1] + second, third, "<"]


@pytest.mark.parametrize(("room", "clients"), [(0, 0), (8, 1), (ROOM, 2)])
def test_no_more_is_brought_than_may_pass(
    start: Run, order: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, room: int, clients: int
) -> None:
    """Without room values alone; what is one client's data may be more than an eighth of the cache."""
    brought, gathered = [], Deferred._gathered

    def noted(self: Deferred, client: int) -> Inputs:
        brought.append(client)
        return gathered(self, client)

    job = start(KEYS).job
    plain = order(job, room, ahead=False)
    monkeypatch.setattr(Deferred, "_gathered", noted)
    found = order(job, room)
    assert brought == [client for cell in CELLS[1:] for client in cell[:clients]]
    assert len(found[0]) - len(plain[0]) == 1 + 3 * clients


@pytest.mark.parametrize("train", [True, False])
def test_a_cell_is_one_turn_of_the_cache(
    start: Run, outcomes: Callable[..., Iterator[Outcome]], monkeypatch: pytest.MonkeyPatch, train: bool
) -> None:
    """Of what is brought before, too: else it would seem to be asked for anew. Evaluations bring nothing."""
    turns, begin_turn = [], Cache.begin_turn

    def noted(self: Cache) -> None:
        turns.append(1)
        begin_turn(self)

    monkeypatch.setattr(Cache, "begin_turn", noted)
    turned = []
    for _ in outcomes(start(KEYS).job, train=train):
        turned.append(len(turns))
    assert turned == ([2, 3, 3] if train else [1, 2, 3])


@pytest.mark.parametrize("room", [0, 700, ROOM])
def test_no_number_changes(
    start: Run, outcomes: Callable[..., Iterator[Outcome]], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    job = start(KEYS).job
    found = list(outcomes(job, room, score=frozenset({1, 4})))
    monkeypatch.setattr(Deferred, "_bring", lambda self: None)
    plain = list(outcomes(job, room, score=frozenset({1, 4})))
    for one, other in zip(found, plain, strict=True):
        assert one.ids == other.ids
        assert one.losses == other.losses
        assert [counts.tolist() for counts in one.scores.values()] == [c.tolist() for c in other.scores.values()]
        for client, state in other.states.items():
            assert one.states[client].keys() == state.keys()
            assert all(torch.equal(one.states[client][name], tensor) for name, tensor in state.items())


def test_a_lost_shard_is_told_in_its_own_turn(
    start: Run, outcomes: Callable[..., Iterator[Outcome]], with_own_store: Callable[[Job], Job]
) -> None:
    """The cell before it has ended well."""
    job = with_own_store(start(KEYS).job)
    (job.store_path / shard_path(2)).unlink()
    begun = outcomes(job)
    assert next(begun).ids == CELLS[0]
    with pytest.raises(ShoalError, match=r"round 1, client 2: .*00002\.arrow"):
        next(begun)
