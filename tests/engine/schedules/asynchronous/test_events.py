"""Orders of asynchronous visits: worked by hand, against ticks of a clock, and against synchronous rounds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.rng import key
from shoal.engine.config.config import SHIPPED
from shoal.engine.config.round_sections import DeviceOptions, ParticipationOptions, ScheduleOptions
from shoal.engine.schedules.asynchronous.events import Timeline, tier_weights, tiers_of, timeline, weight
from shoal.engine.simulation.schedule import DEVICES, Fleet, read_classes, read_network, schedule


def fleet(clients: int, **changes: Any) -> Fleet:
    """Links on which messages take no time."""
    fast, none = np.full(clients, math.inf), np.zeros(clients)
    plain: dict[str, Any] = {"down": fast, "up": fast, "latency": none, "server_down": math.inf, "server_up": math.inf}
    return Fleet(np.zeros(clients, dtype=int), fast, fast, none, none, none, per_byte=none, **{**plain, **changes})


def test_steps_of_three_clients_are_as_worked_by_hand() -> None:
    options = ScheduleOptions(name="fedasync", concurrency=3)
    found = timeline(options, 7, fleet(3), np.array([1.0, 2.0, 4.0]), (1, 1), seed=0)
    # Client 0 ends at 1, 2, 3, 4; client 1 at 2 and 4; client 2 at 4. Of one moment the first client comes first.
    assert np.concatenate(found.client).tolist() == [0, 0, 1, 0, 0, 1, 2]
    assert np.concatenate(found.start).tolist() == [0, 1, 0, 3, 4, 3, 0]
    assert found.seconds.tolist() == [1, 2, 2, 3, 4, 4, 4]
    # At the last moment all have uploaded, and none has begun again.
    assert found.unfinished.tolist() == []


def test_two_tiers_of_three_clients_on_a_shared_link_are_as_worked_by_hand() -> None:
    """A download takes 1 ms of the server's link and 10 ms of a client's, an upload 2 ms and 20 ms, latency is 1 ms."""
    links = {name: np.full(3, value) for name, value in (("down", 1e5), ("up", 1e5), ("latency", 1e-3))}
    options = ScheduleOptions(name="tiers", tiers=2)
    made = fleet(3, server_down=1e6, server_up=1e6, **links)
    found = timeline(options, 8, made, np.array([0.1, 0.15, 0.4705]), (1000, 2000), seed=0)
    # Tier 0 has clients 0 and 1. Its round takes 186 ms: 2 to send both downloads, 11 until client 1 has its own,
    # 150, then 21 and 2. Client 2 comes to the server's link at 505.5 ms, when client 0 takes it until 507.
    assert [ids.tolist() for ids in found.client] == [[0, 1], [0, 1], [2], [0, 1], [0, 1], [0, 1], [2], [0, 1]]
    assert [of.tolist() for of in found.start] == [[0, 0], [1, 1], [0], [2, 2], [4, 4], [5, 5], [3], [6, 6]]
    assert found.group.tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    np.testing.assert_allclose(
        found.seconds, [0.186, 0.372, 0.509, 0.558, 0.744, 0.93, 1.0145, 1.116], rtol=0, atol=1e-9
    )
    assert found.unfinished.tolist() == [7]


def test_weights_of_tiers_are_those_of_the_paper() -> None:
    assert tier_weights(np.array([6, 2])).tolist() == [2 / 8, 6 / 8]
    assert tier_weights(np.array([2, 5, 1])).tolist() == [2 / 8, 1 / 8, 5 / 8]
    assert tier_weights(np.array([1, 0, 0])).tolist() == [0, 0, 1]
    assert tier_weights(np.array([7])).tolist() == [1]


def test_tiers_are_groups_of_about_one_speed() -> None:
    groups = tiers_of(3, np.array([5.0, 1.0, 3.0, 3.0, 2.0, 9.0, 4.0]))
    assert [group.tolist() for group in groups] == [[1, 2, 4], [3, 6], [0, 5]]


def test_weights_of_staleness_are_those_of_the_papers() -> None:
    def of(steps: int, **keys: Any) -> float:
        return weight(ScheduleOptions(name="fedbuff", **keys), steps)

    assert [of(s, staleness="constant") for s in (0, 9)] == [1, 1]
    # FedBuff's: 1 / sqrt(1 + s).
    assert [of(s) for s in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [of(s, staleness="hinge", a=10, b=4) for s in (0, 4, 5, 6)] == pytest.approx([1, 1, 1 / 11, 1 / 21])
    asynchronous = ScheduleOptions(name="fedasync", mixing=0.5)
    assert [weight(asynchronous, s) for s in (0, 3)] == pytest.approx([0.5, 0.25])


@st.composite
def federations(draw: st.DrawFn) -> tuple[ScheduleOptions, list[int], int]:
    """Options, whole seconds of every client, and a seed."""
    clients = draw(st.integers(1, 7))
    of = st.integers(1, clients)
    options = ScheduleOptions(
        name=draw(st.sampled_from(["fedbuff", "fedasync"])), concurrency=draw(of), buffer=draw(of)
    )
    return options, draw(st.lists(st.integers(0, 5), min_size=clients, max_size=clients)), draw(st.integers(0, 99))


Steps = list[tuple[int, list[tuple[int, int]]]]


def by_ticks(options: ScheduleOptions, steps: int, compute: list[int], seed: int) -> Steps:
    """The time of every step, and its clients with their starts, by looking at all clients in every second."""
    size = 1 if options.name == "fedasync" else options.buffer
    ends, begun = dict[int, int](), dict[int, int]()
    buffer, found = list[int](), Steps()
    tick, draws = 0, 0
    while len(found) < steps:
        free = [i for i in range(len(compute)) if i not in ends and i not in buffer]
        count = min(options.concurrency - len(ends), len(free))
        if count:
            parts = (seed, len(found) + 1, "cohort") if not draws else (seed, len(found) + 1, "cohort", draws)
            rng = np.random.default_rng(key(*parts))
            chosen = free if count == len(free) else rng.choice(free, size=count, replace=False).tolist()
            draws += 1
            ends |= {i: tick + compute[i] for i in chosen}
            begun |= dict.fromkeys(chosen, len(found))
        tick = min(ends.values())
        for i in sorted(i for i, end in ends.items() if end == tick):
            del ends[i]
            buffer.append(i)
            if len(buffer) == size:
                found.append((tick, [(j, begun[j]) for j in sorted(buffer)]))
                buffer, draws = [], 0
    return found[:steps]


@settings(max_examples=200, deadline=None)
@given(federations(), st.integers(1, 12))
def test_order_is_that_of_ticks_and_a_longer_run_goes_on_with_it(
    drawn: tuple[ScheduleOptions, list[int], int], steps: int
) -> None:
    options, compute, seed = drawn
    made = [
        timeline(options, count, fleet(len(compute)), np.array(compute, float), (3, 4), seed)
        for count in (steps, steps + 5)
    ]
    for found in made:
        rows = [
            (int(second), list(zip(clients.tolist(), starts.tolist())))
            for second, clients, starts in zip(found.seconds, found.client, found.start)
        ]
        assert rows == by_ticks(options, len(rows), compute, seed)
    # Those who train at the end are in later steps, or train at the end of these, too.
    later = set(np.concatenate(made[1].start).tolist()) | set(made[1].unfinished.tolist())
    assert set(made[0].unfinished.tolist()) <= later
    assert len(made[0].unfinished) <= options.concurrency


numbers = st.floats(1e-3, 1e3, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_steps_of_all_clients_are_synchronous_rounds(data: st.DataObject, clients: int) -> None:
    column = st.lists(numbers, min_size=clients, max_size=clients).map(np.array)
    links = {name: data.draw(column) for name in ("down", "up", "latency")}
    servers = {name: data.draw(numbers) for name in ("server_down", "server_up")}
    made, compute = fleet(clients, **links, **servers), data.draw(column)
    options = ScheduleOptions(name="fedbuff", concurrency=clients, buffer=clients)
    found: Timeline = timeline(options, 3, made, compute, (5, 7), seed=0)
    everyone = np.arange(clients)
    a_round = schedule(made, everyone, np.full(clients, 5.0), np.full(clients, 7.0), compute)
    np.testing.assert_allclose(found.seconds, a_round.end * np.arange(1, 4), rtol=1e-9)
    assert (np.array(found.client) == everyone).all()
    assert (np.array(found.start) == np.arange(3)[:, None]).all()


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 7), st.integers(0, 99))
def test_steps_of_tiers_are_those_of_ticks(data: st.DataObject, clients: int, seed: int) -> None:
    count = data.draw(st.integers(1, clients))
    compute = data.draw(st.lists(st.integers(1, 6), min_size=clients, max_size=clients))
    size = data.draw(st.integers(1, clients // count))
    options, cohort = ScheduleOptions(name="tiers", tiers=count), ParticipationOptions(count=size)
    found = timeline(options, 9, fleet(clients), np.array(compute, float), (3, 4), seed, cohort)
    order = sorted(range(clients), key=lambda i: (compute[i], i))
    extra, rows = clients % count, Steps()
    groups = [
        sorted(order[m * (clients // count) + min(m, extra) :][: clients // count + (m < extra)]) for m in range(count)
    ]
    ends, begun, draws, tick = [-1] * count, [(0, [0])] * count, 0, 0
    while len(rows) < 9:
        for m in sorted((m for m in range(count) if ends[m] == tick), key=lambda m: _last(begun[m][1], compute)):
            rows.append((tick, [(i, begun[m][0]) for i in begun[m][1]]))
            ends[m], draws = -1, 0
        for m, members in enumerate(groups):
            if ends[m] < 0:
                rng = np.random.default_rng(key(*(seed, len(rows) + 1, "cohort"), *([draws] if draws else [])))
                chosen = members if size == len(members) else sorted(rng.choice(members, size, replace=False).tolist())
                begun[m], ends[m], draws = (len(rows), chosen), tick + max(compute[i] for i in chosen), draws + 1
        tick += 1
    zipped = zip(found.seconds, found.client, found.start)
    assert [(int(at), list(zip(ids.tolist(), of.tolist()))) for at, ids, of in zipped] == rows[:9]


def _last(ids: list[int], compute: list[int]) -> int:
    """The client that completes a cohort: of those who are last the one with the largest number."""
    return max(ids, key=lambda i: (compute[i], i))


def test_files_of_ours_are_known_by_name() -> None:
    for folder, name in (("devices", "kind"), ("networks", "network")):
        for path in (SHIPPED / folder).glob("*.csv"):
            options = DeviceOptions(**{name: path.stem}).in_steps  # type: ignore[arg-type]
            assert (getattr(options, name), options.files) == (path.stem, {})
            devices = read_classes(str(options.kind), "devices", DEVICES)
            assert Fleet.of(devices, read_network(str(options.network)), 10, 0).device.shape == (10,)
    own = DeviceOptions(kind="mine.csv", network="none")
    assert own.files == {"devices.kind": str(Path("mine.csv").absolute())}
    assert read_network("none") is None
