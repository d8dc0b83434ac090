"""Who is online in which round: periods and sessions by their laws, sessions of a file by hand."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.runs.plan import RunPlan
from shoal.engine.schedules.availability.availability import online_in, online_of, read_trace
from shoal.engine.schedules.availability.section import AvailabilityOptions

KINDS = [
    AvailabilityOptions("periodic", 10, 0.3),
    *(AvailabilityOptions("weibull", 12, share, shape) for share, shape in ((0.5, 1.0), (0.2, 0.5), (0.8, 3.0))),
]


def changes_of(online_TB: np.ndarray) -> np.ndarray:
    return np.diff(online_TB.astype(int), axis=0)


def test_periods_repeat_from_a_place_of_each_client() -> None:
    online_TB = online_of(KINDS[0], 4000, 50, 1)
    np.testing.assert_array_equal(online_TB[:40], online_TB[10:])
    assert (online_TB[:10].sum(0) == 3).all()
    # One session of three rounds a period, and begins are spread evenly: five deviations of 4000 draws.
    assert ((changes_of(online_TB) == 1).sum(0) <= 5).all()
    begins = (changes_of(online_TB[:11]) == 1).sum(1)
    assert np.abs(begins - 400).max() < 5 * np.sqrt(4000 * 0.1 * 0.9)


@pytest.mark.parametrize("options", KINDS[1:])
def test_sessions_have_the_share_and_the_mean_length(options: AvailabilityOptions) -> None:
    online_TB = online_of(options, 2000, 600, 0)
    assert online_TB.mean() == pytest.approx(options.share, abs=0.02)
    if options.shape == 1:
        # Exponential with means of 6 rounds: a Markov chain, of which one that leaves may be back a round later.
        assert online_TB[1:][online_TB[:-1]].mean() == pytest.approx(0.5 + 0.5 * np.exp(-2 / 6), abs=0.005)


@pytest.mark.parametrize("options", KINDS)
def test_clients_are_the_same_among_others_and_in_longer_runs(options: AvailabilityOptions) -> None:
    online_TB = online_of(options, 60, 40, 3)
    np.testing.assert_array_equal(online_of(options, 20, 25, 3), online_TB[:25, :20])
    assert (online_of(options, 60, 40, 4) != online_TB).any()


def test_sessions_of_a_file_are_as_worked_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "s.csv"
    file.write_text("client,from,to\n0,1,2\n2,2,9\n0,4,4\n")
    found = online_of(AvailabilityOptions(str(file)), 3, 5, 0)
    assert found.T.astype(int).tolist() == [[1, 1, 0, 1, 0], [0] * 5, [0, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,to\n0,1\n", "from"),
        ("client,from,to\n0,a,3\n", "whole numbers client, from, to"),
        ("client,from,to\n0,1.5,3\n", "whole numbers client, from, to"),
        ("client,from,to\n0,1,2\n3,1,2\n", "below 3, rounds count from 1; found 3, 1, 2"),
        ("client,from,to\n-1,1,2\n", "found -1, 1, 2"),
        ("client,from,to\n0,0,2\n", "found 0, 0, 2"),
        ("client,from,to\n0,3,2\n", "found 0, 3, 2"),
        ("client,from,to\n0,,2\n", "found 0, nan, 2"),
        ("", "whole numbers"),
    ],
)
def test_wrong_file_of_sessions_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "s.csv"
    file.write_text(text)
    with refused(file, says=says):
        online_of(AvailabilityOptions(str(file)), 3, 5, 0)


def test_missing_file_and_rounds_without_clients_are_refused(tmp_path: Path) -> None:
    def plan(**changes: Any) -> RunPlan:
        return RunPlan.of(parse_config(small_run(tmp_path, participation=changes), "x"))

    with refused(tmp_path / "no.csv", says="No such file"):
        plan(availability=str(tmp_path / "no.csv"))
    late = tmp_path / "late.csv"
    late.write_text("client,from,to\n0,9,9\n")
    with refused("participation.availability", says="there are 0 at most in the first 3 rounds"):
        plan(availability=str(late))
    late.write_text("client,from,to\n0,2,9\n")
    online = plan(availability=str(late)).rounds.online
    assert online is not None
    assert online.sum() == 2
    with refused("participation.at_least", says="2 clients must be online"):
        plan(availability=str(late), at_least=2)


def test_run_is_known_by_the_content_of_its_sessions(tmp_path: Path) -> None:
    def folder(name: str, text: str) -> Path:
        file = tmp_path / name
        file.write_text(text)
        return RunPlan.of(parse_config(small_run(tmp_path, participation={"availability": str(file)}), "x")).folder

    one = folder("a.csv", "client,from,to\n0,1,9\n")
    assert folder("b.csv", "client,from,to\n0,1,9\n") == one
    assert folder("a.csv", "client,from,to\n1,1,9\n") != one


def test_long_weibull_sessions_have_their_mean_and_begin_in_their_share() -> None:
    """Sessions and pauses of a hundred rounds and more: whole rounds are no coarse measure of them."""
    options = AvailabilityOptions("weibull", 400, 0.75, 2.0)
    online_TB = online_of(options, 3000, 4000, 5)
    # Five deviations of 3,000 draws.
    assert online_TB[0].mean() == pytest.approx(0.75, abs=5 * np.sqrt(0.75 * 0.25 / 3000))
    change = changes_of(online_TB)
    lengths = []
    for client in range(500):
        starts, ends = np.flatnonzero(change[:, client] == 1), np.flatnonzero(change[:, client] == -1)
        ends = ends[ends > starts[0]]
        # The first five are long over by the end, whatever their lengths.
        lengths += (ends[:5] - starts[:5]).tolist()
    assert np.mean(lengths) == pytest.approx(300, rel=0.03)
    # A Weibull law of shape 2: its deviation is sqrt(4 / pi - 1) means.
    assert np.std(lengths) == pytest.approx(300 * np.sqrt(4 / np.pi - 1), rel=0.06)


def test_trace_file(tmp_path: Path) -> None:
    trace, gone = str(tmp_path / "trace.npy"), str(tmp_path / "gone.npy")
    np.save(trace, np.array([[1, 0, 1], [0, 1, 1]]))
    assert read_trace(trace, 3).tolist() == [[True, False, True], [False, True, True]]
    with refused(trace, says="all 4 clients"):
        read_trace(trace, 4)
    with refused(gone, says="participation.trace cannot be read"):
        read_trace(gone, 4)


@pytest.mark.parametrize(
    ("at_least", "rounds", "key"),
    [
        # Two are online in the second round, none in others.
        (2, 2, None),
        (3, 9, "participation.at_least"),
        (2, 1, "participation.at_least"),
        (1, 1, "participation.trace"),
    ],
)
def test_rounds_without_enough_clients_online_are_refused(
    tmp_path: Path, at_least: int, rounds: int, key: str | None
) -> None:
    trace = tmp_path / "trace.npy"
    np.save(trace, np.array([[0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]))
    part = {"trace": str(trace), "at_least": at_least}
    partition = {"method": "random", "clients": 4}
    config = parse_config(small_run(tmp_path, rounds=rounds, participation=part, partition=partition), "a small run")
    with refused(key) if key else nullcontext():
        online_in(config, ())
    # A newcomer takes part in no round.
    with refused("participation.at_least" if at_least > 1 else "participation.trace"):
        online_in(config, (1, 2))
