"""What the next cell needs is on its way to a device before the processor waits for the present one."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device_counts import DeviceCounts
from other_device import load

from engine.hosts import host
from engine.hosts.host import Host
from engine.hosts.next_cell import NextCell
from engine.rounds.server import Server
from engine.wire.cell import Cell, Outcome
from engine.wire.job import Job
from storage.errors import ShoalError
from storage.store import shard_path

Run = Callable[..., Server]
KEYS: dict[str, Any] = {"algorithm.name": "local", "engine.path": "stacked", "train.dropout": 0.3}
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
    given: dict[str, Any] = {"round": 1, "phase": "train", "up": {}, "train": True, **empty, **more}
    return [Cell(ids=own, states=dict.fromkeys(own, kept), **given) for own in ids]


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
                patch.setattr(NextCell, "bring", lambda self, cell: None)
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


def test_without_room_for_what_passes_values_alone_are_brought(start: Run, order: Callable[..., list[str]]) -> None:
    job = start(KEYS).job
    found, plain = order(job, room=0), order(job, room=0, ahead=False)
    assert [len(one) - len(other) for one, other in zip(found, plain)] == [1, 0, -1]


@pytest.mark.parametrize("room", [0, 700, ROOM])
def test_no_number_changes(
    start: Run, outcomes: Callable[..., Iterator[Outcome]], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    job = start(KEYS).job
    found = list(outcomes(job, room, score=frozenset({1, 4})))
    monkeypatch.setattr(NextCell, "bring", lambda self, cell: None)
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
