"""What a round costs, counted by hand."""

from collections.abc import Callable

import pytest
import torch

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Ask
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.costs import Live, Meter
from shoal.engine.rounds.server import Server

NAN = float("nan")
# Clients of 4, 0 and 12 training rows.
INFOS = [ClientInfo(i, 20, train, 3) for i, train in enumerate((4, 0, 12))]


@pytest.fixture
def seen() -> list[Live]:
    return []


@pytest.fixture
def meter(start: Callable[..., Server], seen: list[Live]) -> Meter:
    pool = start()._pool
    # Of rounds before this one.
    pool.retried, pool.transfer = 3, 0.5
    return Meter(7, INFOS, pool, seen.append)


def test_bytes_of_downloads_uploads_and_mixing(meter: Meter) -> None:
    ask = Ask("train", {}, shared={"w": torch.zeros(10), "n": torch.tensor(1)}, private={1: {"w": torch.zeros(3)}})
    meter.sent(ask, [0, 1])
    meter.mixed(100)
    meter.ran(2, Outcome(bytes_up=[12, 20]))
    line = meter.line([0, 1], None)
    # Client 1 is sent its own `w` in the place of the shared one.
    assert line["bytes_down"] == (40 + 8) + (12 + 8) + 100
    assert line["bytes_up"] == 32
    assert (line["scalars_up"], line["scalars_down"]) == (8, 42)


def test_the_loss_is_weighted_by_training_rows(meter: Meter) -> None:
    meter.trained(Outcome(ids=[0, 1], losses=[2.0, NAN]))
    meter.trained(Outcome(ids=[2], losses=[1.0]))
    assert meter.line([0, 1, 2], None)["loss"] == pytest.approx((4 * 2 + 12 * 1) / 16)
    # A client that was trained again in a later phase of the round.
    meter.trained(Outcome(ids=[2], losses=[0.5]))
    assert meter.line([0, 1, 2], None)["loss"] == pytest.approx((4 * 2 + 12 * 0.5) / 16)


def test_without_training_rows_there_is_no_loss(meter: Meter) -> None:
    assert meter.line([], None)["loss"] is None
    meter.trained(Outcome(ids=[1], losses=[NAN]))
    assert meter.line([1], None)["loss"] is None


def test_a_loss_is_a_finite_number_or_none(meter: Meter) -> None:
    meter.trained(Outcome(ids=[0, 2], losses=[NAN, 3.0]))
    assert meter.line([0, 2], None)["loss"] == 3.0
    meter.trained(Outcome(ids=[2], losses=[1e308]))
    assert meter.line([0, 2], None)["loss"] is None


def test_who_watches_is_told_after_every_cell(meter: Meter, seen: list[Live]) -> None:
    meter.expect(5)
    meter.ran(2, Outcome(bytes_up=[8, 8]))
    meter._pool.retried = 5
    meter.expect(1)
    meter.mixed(64)
    meter.ran(3, Outcome(bytes_up=[8]))
    assert seen == [
        Live(7, visits=2, expected=5, bytes_up=16, bytes_down=0, hosts=(1, 1), retries=0),
        Live(7, visits=5, expected=6, bytes_up=24, bytes_down=64, hosts=(1, 1), retries=2),
    ]
    assert meter.line([], None)["retries"] == 2


def test_where_the_time_went(meter: Meter) -> None:
    meter.ran(1, Outcome(seconds={"train": 2.0, "upload": 0.25, "evaluate": 0.0}))
    meter.ran(1, Outcome(seconds={"train": 1.0, "upload": 0.0, "evaluate": 0.5}))
    with meter.waiting() as pause:
        with pause.working():
            worked = sum(i * i for i in range(200_000))
        assert worked > 0
        waited_besides = pause.seconds
    meter._pool.transfer = 0.5 + 1e-6
    seconds = meter.line([], None)["seconds"]
    assert (seconds["train"], seconds["upload"], seconds["evaluate"]) == (3.0, 0.25, 0.5)
    assert seconds["hosts"] == 3.75
    assert seconds["transfer"] == pytest.approx(1e-6)
    # Work of this process inside of a wait is no waiting.
    assert 0 < waited_besides <= seconds["aggregate"]
    assert seconds["wait"] + seconds["transfer"] < waited_besides
    assert seconds["round"] == pytest.approx(seconds["aggregate"] + seconds["wait"] + seconds["transfer"])


def test_what_stands_in_the_line_only_where_there_is_something(meter: Meter) -> None:
    line = meter.line([0, 2], None)
    assert (line["round"], line["cohort"], line["hosts"]) == (7, [0, 2], {"alive": 1, "of": 1})
    assert not line.keys() & {"failures", "notes", "scopes"}
    meter.failures[2] = "client 2: no luck", "traceback"
    meter.notes["margin"] = 0.5
    line = meter.line([0], {"served": {}})
    assert line["failures"] == {"2": ("client 2: no luck", "traceback")}
    assert line["notes"] == {"margin": 0.5}
    assert line["scopes"] == {"served": {}}
