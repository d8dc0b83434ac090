"""Simulated time: schedules worked by hand, properties of the queue, files, and tables of runs."""

import json
import math
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused
from support.small_runs import small_run
from typer.testing import CliRunner

import shoal
from shoal.cli.cli import app
from shoal.clock.clock_page import headline
from shoal.clock.intervals import format_interval
from shoal.clock.report import Asked, _round, client_work, clocked
from shoal.engine.config.config import SHIPPED, load_config
from shoal.engine.preparing.identity import store_path
from shoal.engine.records.metrics import METRICS, Metrics, read_metrics
from shoal.engine.simulation.schedule import DEVICES, NETWORKS, Fleet, Round, clock, read_classes, schedule
from shoal.engine.simulation.work import ClientWork, Work

MICROSECOND = 1e-6
NOTHING = Work(np.zeros(3), np.zeros(3))


def fleet(**changes: Any) -> Fleet:
    """Three clients, two slow devices and one that is twice as fast, on equal links."""
    ones = np.ones(3)
    made = Fleet(
        device=np.array([0, 0, 1]), flops=np.array([1e9, 1e9, 2e9]), traffic=1e12 * ones,
        watts=np.array([5.0, 5.0, 10.0]), idle_watts=ones, per_hour=np.array([3600.0, 0, 0]), down=1e6 * ones,
        up=5e5 * ones, latency=0.01 * ones, per_byte=1e-6 * ones, server_down=1e6, server_up=4e6,
    )  # fmt: skip
    return replace(made, **changes)


COHORT, DOWN, UP = np.arange(3), np.full(3, 1e6), np.full(3, 5e5)


def test_schedule_of_three_clients_is_as_worked_by_hand() -> None:
    work = Work(np.full(3, 2e9), np.full(3, 1e9))
    found = schedule(fleet(), COHORT, DOWN, UP, fleet().seconds(work))
    # The server sends 0.25 s each, one behind another; then 0.01 s and 1 s of the client's own link.
    np.testing.assert_allclose(found.received, [1.26, 1.51, 1.76], atol=MICROSECOND)
    np.testing.assert_allclose(found.ready, [3.26, 3.51, 2.76], atol=MICROSECOND)
    np.testing.assert_allclose(found.arrived, [4.27, 4.52, 3.77], atol=MICROSECOND)
    # The server receives 0.5 s each: client 2, client 0 as it arrives, and client 1 after a wait of 0.25 s.
    np.testing.assert_allclose(found.finished, [4.77, 5.27, 4.27], atol=MICROSECOND)
    assert found.end == pytest.approx(5.27, abs=MICROSECOND)
    assert not found.late.any()


def test_deadline_ends_the_round_and_names_the_late() -> None:
    seconds = fleet().seconds(Work(np.full(3, 2e9), np.zeros(3)))
    found = schedule(fleet(), COHORT, DOWN, UP, seconds, deadline=5.0)
    assert (found.late.tolist(), found.end) == ([False, True, False], 5.0)


def test_memory_bounds_where_it_takes_longer() -> None:
    slow = fleet(traffic=np.array([1e9, 1e9, 1e8]))
    assert slow.seconds(Work(np.full(3, 2e9), np.full(3, 3e9))).tolist() == [3.0, 3.0, 30.0]


def test_energy_money_and_idle_time_are_as_worked_by_hand() -> None:
    work = ClientWork(Work(np.full(3, 1e9), np.zeros(3)), Work(np.full(3, 1e9), np.zeros(3)), NOTHING)
    made = clock([Round(COHORT, DOWN, UP, 0.1, True)], work, fleet())
    # 5.27 s and 0.1 s of the server; 2, 2 and 1 s of compute at 5, 5 and 10 W, 1 W in the rest.
    assert made.seconds[0] == pytest.approx(5.37, abs=MICROSECOND)
    assert made.joules[0] == pytest.approx(10 + 10 + 10 + 3.37 + 3.37 + 4.37, abs=MICROSECOND)
    assert made.money[0] == pytest.approx(5.37 + 3 * 1.5, abs=MICROSECOND)
    # Own messages take 0.25 + 1.01 + 1.01 + 0.5 = 2.77 s.
    assert made.idle[0] == pytest.approx(0.6 + 0.6 + 1.6, abs=MICROSECOND)
    assert (made.flops[0], made.visits_of.tolist(), made.late_of.tolist()) == (6e9, [2, 1], [0, 0])


def test_evaluation_is_work_of_rounds_that_score_alone() -> None:
    once = Work(np.full(3, 1e9), np.zeros(3))
    rounds = [Round(COHORT, DOWN, UP, 0.0, scored) for scored in (False, True)]
    made = clock(rounds, ClientWork(once, NOTHING, once), fleet())
    assert made.flops.tolist() == [3e9, 6e9]
    assert made.seconds[0] < made.seconds[1]


def test_late_client_computes_until_the_deadline() -> None:
    work = ClientWork(Work(np.full(3, 2e9), np.zeros(3)), NOTHING, NOTHING)
    made = clock([Round(COHORT, DOWN, UP, 0.0, False)], work, fleet(idle_watts=np.zeros(3)), deadline=2.0)
    assert made.seconds[0] == 2.0
    assert made.late[0] == 3
    assert made.joules[0] == pytest.approx(5 * 0.74 + 5 * 0.49 + 10 * 0.24, abs=MICROSECOND)


numbers = st.floats(1e-3, 1e3, allow_nan=False)


@st.composite
def rounds_of(draw: st.DrawFn) -> tuple[Fleet, np.ndarray, np.ndarray, np.ndarray]:
    """A fleet of 1 to 8 clients, bytes down and up, and seconds of compute."""
    count = draw(st.integers(1, 8))
    column = st.lists(numbers, min_size=count, max_size=count).map(np.array)
    flat = {name: np.zeros(count) for name in ("watts", "idle_watts", "per_hour", "per_byte")}
    of = {name: draw(column) for name in ("flops", "traffic", "down", "up", "latency")}
    made = Fleet(np.zeros(count, int), **flat, **of, server_down=draw(numbers), server_up=draw(numbers))
    return made, draw(column), draw(column), draw(column)


@settings(max_examples=200, deadline=None)
@given(rounds_of())
def test_queue_is_one_of_events_and_no_wait_is_negative(
    drawn: tuple[Fleet, np.ndarray, np.ndarray, np.ndarray],
) -> None:
    made, down, up, compute = drawn
    cohort = np.arange(len(down))
    found = schedule(made, cohort, down, up, compute)
    free, finished = 0.0, np.zeros(len(down))
    for i in sorted(cohort, key=lambda i: (found.arrived[i], i)):
        free = max(free, found.arrived[i]) + up[i] / made.server_down
        finished[i] = free
    np.testing.assert_allclose(found.finished, finished, rtol=1e-9)
    waits = found.finished - compute - found.moving
    assert (waits >= -1e-9 * found.finished).all()
    # The server's link is never at work longer than the round.
    assert up.sum() / made.server_down <= found.end * (1 + 1e-9)
    assert down.sum() / made.server_up <= found.end * (1 + 1e-9)
    work = ClientWork(Work(compute * made.flops, 0 * compute), *[Work(0 * compute, 0 * compute)] * 2)
    made_clock = clock([Round(cohort, down, up, 0.0, True)] * 2, work, made)
    assert made_clock.flops.sum() == pytest.approx(2 * work.train.flops.sum())
    time_of_all = (compute + found.moving).sum() + made_clock.idle[0]
    assert time_of_all == pytest.approx(len(cohort) * made_clock.seconds[0])


@settings(max_examples=200, deadline=None)
@given(rounds_of(), st.floats(0, 1), st.integers(0, 7))
def test_faster_device_is_never_later(
    drawn: tuple[Fleet, np.ndarray, np.ndarray, np.ndarray], share: float, client: int
) -> None:
    made, down, up, compute = drawn
    client %= len(down)
    faster = compute.copy()
    faster[client] *= share
    before, after = (schedule(made, np.arange(len(down)), down, up, each) for each in (compute, faster))
    assert after.finished[client] <= before.finished[client] * (1 + 1e-9)
    assert after.end <= before.end * (1 + 1e-9)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_devices_are_drawn_by_seed_and_client(tmp_path: Path) -> None:
    file = written(
        tmp_path / "d.csv",
        "# ours\nclass,share,gflops,gb_per_s,watts,spread\nslow,0.75,1,2,3,0.5\nfast,0.25,10,20,30,0\n",
    )
    classes = read_classes(str(file), "devices", DEVICES)
    number, speed = classes.draw(20_000, 0, "device")
    few, its_speed = classes.draw(100, 0, "device")
    assert (number[:100] == few).all()
    assert (speed[:100] == its_speed).all()
    assert (classes.draw(100, 1, "device")[0] != few).any()
    assert number.mean() == pytest.approx(0.25, abs=0.015)
    # Log-normal of median 1; a class without a spread has one speed.
    assert np.log(speed[number == 0]).std() == pytest.approx(0.5, abs=0.02)
    assert np.median(speed[number == 0]) == pytest.approx(1, abs=0.03)
    assert (speed[number == 1] == 1).all()
    networks = read_classes("institutions", "networks", NETWORKS)
    found = Fleet.of(classes, networks, 20_000, 0)
    assert (found.flops[number == 1] == 1e10).all()
    assert (found.traffic[number == 1] == 2e10).all()
    assert sorted(set(found.up)) == [12.5e6, 125e6]
    assert sorted(set(found.latency)) == [0.01, 0.02]
    assert (found.server_up, found.server_down) == (1.25e9, 1.25e9)


@pytest.mark.parametrize("folder", ["devices", "networks"])
def test_files_of_ours_are_read(folder: str) -> None:
    known = {"devices": DEVICES, "networks": NETWORKS}[folder]
    names = [path.stem for path in (SHIPPED / folder).glob("*.csv")]
    assert len(names) == 2
    for name in names:
        assert len(read_classes(name, folder, known).names) == 3


HEADS = "class,share,gflops,gb_per_s,watts"


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        (f"{HEADS}\na,1,-1,1,1\n", "a.gflops", "from 1e-12 to 1e+18"),
        (f"{HEADS}\na,1,0,1,1\n", "a.gflops", "from 1e-12 to 1e+18"),
        (f"{HEADS}\na,1,1e-320,1,1\n", "a.gflops", "'1e-320'"),
        (f"{HEADS}\na,1,1e308,1,1\n", "a.gflops", "'1e308'"),
        (f"{HEADS}\na,1,1,1e-300,1\n", "a.gb_per_s", "'1e-300'"),
        (f"{HEADS}\na,1,1,1,1e308\n", "a.watts", "from 0 to 1e+12"),
        (f"{HEADS},spread\na,1,1,1,1,800\n", "a.spread", "from 0 to 10"),
        (f"{HEADS}\na,1,1,1,-1\n", "a.watts", "from 0"),
        (f"{HEADS},watts\na,1,1,1,1,2\n", "watts", "column is given twice"),
        (f"{HEADS}\na,0.5,1,1,1\na,0.5,2,1,1\n", "a", "class is given twice"),
        (f"# ours\n{HEADS}\na,1,1,1,{'1' * 140_000}\n", "line 3", "got 140,008"),
        (f"{HEADS}\na,1,1,nan,1\n", "a.gb_per_s", "'nan'"),
        (f"{HEADS}\na,1,1,fast,1\n", "a.gb_per_s", "'fast'"),
        (f"{HEADS}\na,1,1,1\n", "a.watts", "None"),
        (f"{HEADS}\na,0.5,1,1,1\nb,0.4,1,1,1\n", "share", "0.9"),
        (f"{HEADS}\n", "share", "found 0"),
        (f"{HEADS},gflop\na,1,1,1,1,1\n", "gflop", "did you mean"),
        ("class,share,gflops,watts\na,1,1,1\n", "gb_per_s", "missing"),
        ("", "class", "missing"),
        # Of the file as a whole.
        (f"{HEADS},\na,1,1,1,1,1\n", None, "a name for every column"),
        (f"{HEADS}\n,1,1,1,1\n", None, "a name for every class"),
        (f'{HEADS}\na,1,1,1,"' + f"{'1' * 1000}\n" * 140, None, "field larger"),
    ],
)
def test_wrong_file_of_devices_is_refused(tmp_path: Path, text: str, key: str | None, says: str) -> None:
    file = written(tmp_path / "d.csv", text)
    with refused(file, *([key] if key else []), says=says):
        read_classes(str(file), "devices", DEVICES)


def test_extremes_that_a_file_may_have_give_finite_numbers(tmp_path: Path) -> None:
    work = ClientWork(Work(np.full(3, 1e18), np.full(3, 1e15)), NOTHING, Work(np.full(3, 1e18), np.zeros(3)))
    for speed, other, spread in ((1e-12, 1e12, 10), (1e18, 0, 10), (1e-12, 0, 0)):
        tail = f"{other},{other},{spread},{other}"
        devices = written(tmp_path / "d.csv", f"{HEADS},idle_watts,spread,per_hour\na,1,{speed},{speed},{tail}\n")
        link = f"{speed},{speed},{other},{spread},{other}\n"
        heads = "class,share,down_mbit,up_mbit,latency_ms,spread,per_gb\n"
        network = written(tmp_path / "n.csv", f"{heads}a,1,{link}server,0,{link}")
        classes = read_classes(str(devices), "devices", DEVICES), read_classes(str(network), "networks", NETWORKS)
        made = clock([Round(COHORT, 1e15 + DOWN, 1e15 + UP, 0.1, True)] * 3, work, Fleet.of(*classes, 3, 0))
        for column in (made.seconds, made.joules, made.money, made.idle, made.of_clients):
            assert np.isfinite(column.sum())


def test_network_without_the_server_is_refused(tmp_path: Path) -> None:
    for last in ("", "server,0.5,1,1,1\n"):
        share = 0.5 if last else 1
        file = written(tmp_path / "n.csv", f"class,share,down_mbit,up_mbit,latency_ms\na,{share},1,1,1\n{last}")
        networks = read_classes(str(file), "networks", NETWORKS)
        with refused(file, "server"):
            Fleet.of(read_classes("phones", "devices", DEVICES), networks, 3, 0)


def test_wrong_options_are_refused() -> None:
    with refused(Path("nowhere.csv"), says="phones"):
        Asked.of("nowhere.csv", "consumer", None, None, 0)
    with refused("--deadline"):
        Asked.of("phones", "consumer", -1.0, None, 0)
    with refused("--target"):
        Asked.of("phones", "consumer", None, 1.5, 0)


def test_interval_is_of_students_t() -> None:
    # t of 0.975 and one degree of freedom is 12.7062.
    assert format_interval([1.0, 3.0], "{:.3f}".format) == "2.000 ± 12.706"
    assert (format_interval([2.0], "{:.0f}".format), format_interval([], str)) == ("2", "-")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        # The half-width of two values is 12.7062 times half of their difference.
        ([1.0, 3.0], "2 ± 13"),
        ([1.0, 1.01], "1.005 ± 0.064"),
        ([1000.0, 3000.0], "2,000 ± 12,706"),
        ([0.5, 0.50001], "0.500005 ± 0.000064"),
        ([2.0, 2.0], "2.00"),
        ([0.031384], "0.0314"),
        ([123456.0], "123,456"),
        ([9.996], "10.0"),
        ([3e-7], "3e-07"),
        ([0.0], "0"),
        ([], "-"),
    ],
)
def test_costs_have_the_digits_that_their_interval_leaves(values: list[float], text: str) -> None:
    assert format_interval(values) == text


def test_headline_is_who_is_first_and_how_much_longer_others_take() -> None:
    first, text = headline({"A": [30.0], "B": [20.0], "C": []}, "80.0 % test accuracy")
    assert (first, text) == (
        "20.0 s",
        "simulated until B reaches 80.0 % test accuracy; A takes 1.5 times as long; C does not reach it",
    )
    assert headline({"A": [1.0, 3.0]}, "x") == ("2 ± 13 s", "simulated until A reaches x (95 % interval of 2 runs)")
    assert headline({"A": [600.0]}, "x")[0] == "10.0 min"
    assert headline({"A": []}, "x") == ("", "")
    many = {name: [float(place)] for place, name in enumerate("ABCDE", 1)}
    assert headline(many, "x") == ("1.00 s", "simulated until A reaches x, the first of 5 combinations")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """FedAvg with half of the clients, by two seeds, and FedProto, of uploads of different sizes."""
    folder = tmp_path_factory.mktemp("runs")
    some = {"participation": {"ratio": 0.5}, "rounds": 4}
    avg = [shoal.run(small_run(folder, name="avg", seed=seed, **some)).path for seed in (0, 1)]
    return [*avg, shoal.run(small_run(folder, name="proto", algorithm={"name": "fedproto"}, **some)).path]


def test_lines_have_the_bytes_of_every_client(runs: list[Path]) -> None:
    for run in runs:
        for line in read_metrics(run):
            for way in ("up", "down"):
                column = np.broadcast_to(line["client_bytes"][way], len(line["cohort"]))
                assert column.sum() == line[f"bytes_{way}"]
    # 8 features and a bias for each of three classes, and a weight, in float32.
    assert {tuple(line["client_bytes"]["up"]) for line in read_metrics(runs[0])} == {(4 * 28,)}


def test_bytes_of_older_runs_are_shared_equally() -> None:
    line = {"cohort": [1, 4], "bytes_up": 10, "bytes_down": 6, "seconds": {"aggregate": 0.5}}
    older = _round(line)
    assert (older.up.tolist(), older.down.tolist(), older.server, older.scored) == ([5, 5], [3, 3], 0.5, False)
    known = _round(line | {"client_bytes": {"up": [9, 1], "down": [3]}, "scopes": {}})
    assert (known.up.tolist(), known.down.tolist(), known.scored) == ([9, 1], [3, 3], True)
    empty = _round(line | {"cohort": [], "bytes_up": 0, "bytes_down": 0})
    assert (len(empty.up), clock([empty], ClientWork(NOTHING, NOTHING, NOTHING), fleet()).seconds.tolist()) == (
        0,
        [0.5],
    )


def invoked(*arguments: object) -> str:
    found = CliRunner().invoke(app, ["clock", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


def test_command_gives_rounds_and_costs_to_a_score(runs: list[Path]) -> None:
    # Half of the clients take part, so that the score is the server's.
    lowest = min(line["scopes"]["global"]["test"]["nodes"] for run in runs[:2] for line in read_metrics(run))
    plain = json.loads(invoked(*runs[:2], "--json", "--target", f"{lowest + 1e-9}"))
    assert plain["scope"] == "global"
    (method,) = plain["methods"]
    assert [each["run"] for each in method["runs"]] == [str(run) for run in runs[:2]]
    for each, run in zip(method["runs"], runs):
        lines, rounds = read_metrics(run), each["rounds"]
        reached = [line["scopes"]["global"]["test"]["nodes"] >= plain["target"] for line in lines]
        assert len(rounds["seconds"]) == 4
        assert min(rounds["seconds"]) > 0
        if not any(reached):
            assert each["reached"] is None
            continue
        count = reached.index(True) + 1
        assert each["reached"]["rounds"] == count
        for name in ("seconds", "joules", "money"):
            assert each["reached"][name] == pytest.approx(math.fsum(rounds[name][:count]))
        sent = sum(line["bytes_up"] + line["bytes_down"] for line in lines[:count])
        assert each["reached"]["bytes"] == sent


def test_command_writes_a_page_and_names_the_late(runs: list[Path], tmp_path: Path) -> None:
    text = invoked(*runs, "--deadline", "0.05", "--out", tmp_path)
    assert "late after 0.05 s: " in text
    assert "fedproto: what it computes" in text
    page = (tmp_path / "index.html").read_text()
    assert "simulated seconds" in page
    assert "phones.csv" in page
    assert "(dotted: always the most frequent class, " in page
    # What was clocked, the command, and units; the file of devices has no price, that of links has prices in dollars.
    for shown in ("FedAvg, FedProto", "sbm, 120 nodes", "money (USD)", "energy (J)"):
        assert shown in page
    assert f"shoal clock {' '.join(map(str, runs))} --deadline 0.05</pre>" in page
    rows = (tmp_path / "rounds.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 4
    assert rows[0].startswith('"run","round","seconds","joules","money"')


def test_page_names_the_command_that_makes_it_again(runs: list[Path], tmp_path: Path) -> None:
    again = tmp_path / "again"
    invoked(runs[0], "--devices", "hospital", "--network", "none", "--no-evaluation", "--out", tmp_path)
    page = (tmp_path / "index.html").read_text()
    words = shlex.split(page.partition('<pre class="command">')[2].partition("</pre>")[0])
    invoked(*words[2:], "--out", again)
    assert (again / "index.html").read_text() == page
    # Nothing has a price here; programs have the column all the same.
    assert "money" not in page
    assert (again / "target.csv").read_text().startswith("method,reached,rounds,seconds,bytes,joules,money\n")


def test_money_is_in_the_unit_of_the_files(tmp_path: Path) -> None:
    links = written(
        tmp_path / "links.csv", "class,share,down_mbit,up_mbit,latency_ms,per_gb\na,1,1,1,1,2\nserver,0,1,1,1,0\n"
    )
    assert Asked.of("phones", "consumer", None, None, 0).currency == "USD"
    assert Asked.of("phones", "institutions", None, None, 0).currency == ""
    assert Asked.of("phones", str(links), None, None, 0).currency == "unit of links.csv"


def columns(*arguments: object) -> dict[str, np.ndarray]:
    """Returns the rounds of the first run that a command gives as JSON."""
    plain = json.loads(invoked(*arguments, "--json"))
    return {name: np.array(values) for name, values in plain["methods"][0]["runs"][0]["rounds"].items()}


def test_server_and_evaluations_are_left_out_on_demand(runs: list[Path], tmp_path: Path) -> None:
    lines, work = read_metrics(runs[0]), client_work(runs[0])
    whole, of_links, of_training = (
        columns(runs[0], *flags) for flags in ((), ("--no-server",), ("--no-server", "--no-evaluation"))
    )
    server = [line["seconds"]["aggregate"] for line in lines]
    np.testing.assert_allclose(whole["seconds"] - of_links["seconds"], server)
    scored = [work.evaluate.flops[line["cohort"]].sum() for line in lines]
    np.testing.assert_array_equal(of_links["flops"] - of_training["flops"], scored)
    assert (of_links["seconds"] > of_training["seconds"]).all()
    text = invoked(runs[0], "--no-server", "--no-evaluation", "--out", tmp_path)
    note = "without seconds of the server and evaluations of clients"
    assert note in text
    assert note.removeprefix("without ") in (tmp_path / "index.html").read_text()


def test_server_does_not_pay_for_the_scores_of_the_simulator(tmp_path: Path) -> None:
    run = shoal.run(small_run(tmp_path, partition={"clients": 20}, rounds=20, evaluation={"every": 2})).path
    lines = read_metrics(run)[2:]
    scored, plain = ([line["seconds"] for line in lines if ("scopes" in line) == such] for such in (True, False))
    # Both parts were one number, ten and more times as large where a round was scored.
    least = [min(seconds["aggregate"] for seconds in both) for both in (scored, plain)]
    assert least[0] < 3 * least[1]
    assert min(seconds["scoring"] for seconds in scored) > 3 * min(seconds["scoring"] for seconds in plain) >= 0
    assert "older runs" not in invoked(run)


def test_older_runs_say_that_their_server_scored(runs: list[Path], tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(runs[0], older)
    lines = read_metrics(older)
    for line in lines:
        line["seconds"]["aggregate"] += line["seconds"].pop("scoring")
    (older / METRICS).unlink()
    metrics = Metrics(older)
    for line in lines:
        metrics.append(line)
    assert "server's seconds hold the simulator's own scoring" in " ".join(invoked(older).split())
    assert "older runs" not in invoked(older, "--no-server")
    now, then = (columns(run, "--no-server")["seconds"] for run in (runs[0], older))
    assert now.tolist() == then.tolist()


def test_devices_of_a_client_are_the_same_in_all_runs_and_follow_the_seed(runs: list[Path]) -> None:
    first, again, other = (columns(runs[0], "--seed", seed)["seconds"].tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_steps_have_the_time_that_the_run_gave_them(tmp_path: Path) -> None:
    steps = {"name": "fedbuff", "buffer": 2, "concurrency": 3, "seed": 4}
    run = shoal.run(small_run(tmp_path, rounds=5, evaluation={"every": 5}, schedule=steps)).path
    lines, work = read_metrics(run), client_work(run)
    own = columns(run, "--seed", 4)
    time = np.array([0.0, *(line["simulated"] for line in lines)])
    server = [line["seconds"]["aggregate"] for line in lines]
    np.testing.assert_allclose(own["seconds"], np.diff(time) + server)
    phones = read_classes("phones", "devices", DEVICES)
    made = Fleet.of(phones, read_classes("consumer", "networks", NETWORKS), 4, 4)
    compute = made.seconds(work.train)
    for line, joules, flops in zip(lines, own["joules"], own["flops"]):
        number, visits = line["round"], zip(line["cohort"], line["staleness"]["of_clients"])
        spent = {i: time[number] - time[number - 1 - s] for i, s in visits}
        used = [made.watts[i] * compute[i] + made.idle_watts[i] * (spent[i] - compute[i]) for i in spent]
        assert joules == pytest.approx(sum(used))
        assert flops == sum(work.train.flops[i] for i in spent)
    asked = "--devices phones --network consumer --seed 4"
    for devices, seed in (("phones", 3), ("hospital", 4)):
        with refused(run, says=asked):
            clocked([run], Asked.of(devices, "consumer", None, None, seed))
    with refused(run, says=asked):
        clocked([run], Asked.of("phones", "none", None, None, 4))
    with refused(run, "--deadline", says="fedbuff"):
        clocked([run], Asked.of("phones", "consumer", 1.0, None, 4))


def test_those_that_do_not_count_take_their_places_but_no_time_of_the_server() -> None:
    """Client 1 drops out behind the download: the round of the other two is as worked by hand above, without it."""
    work = ClientWork(Work(np.full(3, 2e9), np.zeros(3)), NOTHING, NOTHING)
    counted, up = np.array([True, False, True]), np.array([5e5, 0, 5e5])
    made = clock([Round(COHORT, DOWN, up, 0.1, False, counted=counted)], work, fleet())
    # Client 2 still waits for the downloads of both others, and its upload comes first.
    assert made.seconds[0] == pytest.approx(4.87, abs=MICROSECOND)
    # It is there for 4.87 s, of which it computes 2 s: 10 J and 2.87 J.
    assert made.joules[0] == pytest.approx((10 + 2.87) * 2 + 10 + 3.87, abs=MICROSECOND)
    assert (made.flops[0], made.visits_of.tolist(), made.late_of.tolist()) == (6e9, [2, 1], [0, 0])
    # The run's round ended after 3 s: the clients have the model after 1.26, 1.51 and 1.76 s.
    short = clock([Round(COHORT, DOWN, up, 0.0, False, counted=~counted, end=3.0)], work, fleet(idle_watts=np.zeros(3)))
    assert short.seconds[0] == 3.0
    assert short.joules[0] == pytest.approx(5 * 1.74 + 5 * 1.49 + 10 * 1, abs=MICROSECOND)


def test_clients_that_were_drawn_and_dropped_are_in_the_clock(tmp_path: Path) -> None:
    own = {"count": 2, "over_selection": 2, "dropout": 0.4}
    on_devices = {"kind": "phones", "network": "consumer", "seed": 3}
    run = shoal.run(small_run(tmp_path, rounds=6, participation=own, devices=on_devices)).path
    lines, work, asked = read_metrics(run), client_work(run), Asked.of("phones", "consumer", None, None, 3)
    (((timed,),),) = [clocked([run], asked).runs]
    seen = set[str]()
    for line, flops, down, up, seconds in zip(lines, *(timed.columns()[n] for n in (
        "flops", "bytes_down", "bytes_up", "seconds"))):  # fmt: skip
        missing = line["missing"]
        assert {name: len(those) for name, those in missing.items()} == {n: line["participation"][n] for n in missing}
        drawn = [*line["cohort"], *(client for those in missing.values() for client in those)]
        assert len(set(drawn)) == len(drawn) == line["participation"]["drawn"] == 4
        assert flops == sum(work.train.flops[drawn] + work.evaluate.flops[drawn])
        # A model of 8 x 3 weights and 3 biases to each, one from each that does not drop out, and a number with it.
        assert down == 4 * 27 * 4
        assert up == (4 * 27 + 4) * (4 - len(missing["dropped"]))
        assert seconds == pytest.approx(line["participation"]["seconds"] + line["seconds"]["aggregate"])
        seen.update(name for name, those in missing.items() if those)
    assert seen == {"dropped", "surplus"}
    with refused(run, says="--seed 3"):
        clocked([run], Asked.of("phones", "consumer", None, None, 0))
    with refused(run, "--deadline", says="participation"):
        clocked([run], Asked.of("phones", "consumer", 1.0, None, 3))


def test_runs_that_cannot_be_clocked_are_refused(runs: list[Path], tmp_path: Path) -> None:
    drawn = {"name": "gcn", "hidden": 4, "head": "linear", "fanouts": [2, 2]}
    gcn = shoal.run(small_run(tmp_path, name="gcn", rounds=1, model=drawn)).path
    asked = Asked.of("phones", "consumer", None, None, 0)
    with refused(gcn, says="gcn"):
        clocked([gcn], asked)
    store = store_path(load_config(gcn))
    store.rename(tmp_path / "moved")
    with refused(gcn, says=f"there is none at {store}; make it by shoal prepare {gcn}"):
        clocked([gcn], asked)
    assert not store.exists()
    (gcn / "metrics.jsonl").write_text("")
    with refused(gcn / "metrics.jsonl"):
        clocked([gcn], asked)
