"""Orders of asynchronous visits: worked by hand, against ticks of a clock, and against synchronous rounds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.algorithms.rng import key
from shoal.engine.config.config import SHIPPED
from shoal.engine.config.round_sections import ScheduleOptions
from shoal.engine.simulation.events import Asynchronous, Timeline, timeline, weight
from shoal.engine.simulation.schedule import Fleet, schedule


def fleet(clients: int, **changes: Any) -> Fleet:
    """Links on which messages take no time."""
    fast, none = np.full(clients, math.inf), np.zeros(clients)
    plain: dict[str, Any] = {"down": fast, "up": fast, "latency": none, "server_down": math.inf, "server_up": math.inf}
    return Fleet(np.zeros(clients, dtype=int), fast, fast, none, none, none, per_byte=none, **{**plain, **changes})


def test_steps_of_three_clients_are_as_worked_by_hand() -> None:
    options = ScheduleOptions(name="fedasync", concurrency=3)
    found = timeline(options, 7, fleet(3), np.array([1.0, 2.0, 4.0]), (1, 1), seed=0)
    # Client 0 ends at 1, 2, 3, 4; client 1 at 2 and 4; client 2 at 4. Of one moment the first client comes first.
    assert found.client.ravel().tolist() == [0, 0, 1, 0, 0, 1, 2]
    assert found.start.ravel().tolist() == [0, 1, 0, 3, 4, 3, 0]
    assert found.seconds.tolist() == [1, 2, 2, 3, 4, 4, 4]
    # At the last moment all have uploaded, and none has begun again.
    assert found.unfinished.tolist() == []


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
            (int(second), list(zip(clients, starts)))
            for second, clients, starts in zip(found.seconds, found.client.tolist(), found.start.tolist())
        ]
        assert rows == by_ticks(options, len(rows), compute, seed)
    # Those who train at the end are in later steps, or train at the end of these, too.
    later = set(made[1].start.ravel().tolist()) | set(made[1].unfinished.tolist())
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
    assert (found.client == everyone).all()
    assert (found.start == np.arange(3)[:, None]).all()


def test_more_clients_than_there_are_is_refused() -> None:
    for keys in ({"concurrency": 11}, {"name": "fedbuff", "buffer": 11}):
        (name,) = keys.keys() - {"name"}
        with refused(f"schedule.{name}", says="11 of 10 clients; choose from 1 to 10"):
            Asynchronous.of(ScheduleOptions(**{"name": "fedasync", **keys}), 10)  # type: ignore[arg-type]


def test_files_of_ours_are_known_by_name() -> None:
    for folder, name in (("devices", "devices"), ("networks", "network")):
        for path in (SHIPPED / folder).glob("*.csv"):
            options = ScheduleOptions(name="fedbuff", **{name: path.stem})  # type: ignore[arg-type]
            assert (getattr(options, name), options.files) == (path.stem, {})
            assert Asynchronous.of(options, 10).fleet(10).device.shape == (10,)
    own = ScheduleOptions(name="fedbuff", devices="mine.csv", network="none")
    assert own.files == {"schedule.devices": str(Path("mine.csv").absolute())}
    assert Asynchronous.of(ScheduleOptions(name="fedbuff", network="none"), 10).network is None
