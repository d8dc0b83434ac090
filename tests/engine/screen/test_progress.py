"""How far a long step or a run is, on a plain log and on a terminal."""

import re
import signal
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
from rich.progress import Progress

from shoal.engine.rounds.costs import Live, Meter
from shoal.engine.screen import live_view
from shoal.engine.screen import progress as shown
from shoal.engine.screen.interrupt import graceful
from shoal.engine.screen.live_view import LiveView, columns
from shoal.engine.screen.output import Console
from shoal.engine.screen.progress import progress, say, watch


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    text = StringIO()
    monkeypatch.setattr(shown, "console", Console(file=text, force_terminal=True, width=100))
    return text


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "SECONDS_BETWEEN_LINES", 0.0)
    with progress("edges", 3000, "rows", done=1000) as step:
        step.advance()
        step.advance(0)
        step.advance(1999)
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"edges: 1001/3000 rows, [\d.,]+/s, \d+ s left", first)
    assert re.fullmatch(r"edges: 3000/3000 rows, [\d,]+/s, 0 s left", last)


def test_few_lines_but_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    with watch("edges", 500, "rows", 0) as advance:
        for _ in range(500):
            advance(1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("edges: 500/500 rows, ")


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_steps_inside_of_a_step_add_no_lines(
    on_a_terminal: bool, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bar a phase, and it ends full."""
    terminal = request.getfixturevalue("terminal") if on_a_terminal else None
    with progress("hops", 4, "clients") as step:
        for _ in range(4 - on_a_terminal):
            with watch("edges of 1 clients", 2, "entries", 0) as advance:
                advance(2)
            step.advance()
    if terminal is None:
        assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == ["hops: 4/4 clients"]
    else:
        assert "edges" not in terminal.getvalue()
        assert "4/4" in terminal.getvalue()


def test_a_bar(terminal: StringIO) -> None:
    with progress("edges of [/b]", 3000, "rows", done=1000) as step:
        step.advance(2000)
    assert "edges of [/b]" in terminal.getvalue()
    assert "3000/3000" in terminal.getvalue()
    assert "rows/s" in terminal.getvalue()


def test_say_prints_markup_as_text(terminal: StringIO) -> None:
    line = f"/runs/[red]x: resuming after round 3{' and on' * 30}"
    say(line)
    assert terminal.getvalue() == line + "\n"


LINE = {
    "round": 2,
    "cohort": [0, 1, 4],
    "loss": 0.25,
    "retries": 1,
    "hosts": {"alive": 1, "of": 2},
    "bytes_up": 2048,
    "bytes_down": 3 * 2**20,
    "seconds": {"round": 1.5},
    "scopes": {"deployed": {"val": {"nodes": 0.5}}, "domains": {"val": {"nodes": 0.75, "clients": 0.25}}},
}


def test_view_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "SECONDS_BETWEEN_LINES", 0.0)
    view = LiveView("name", 3, 1, None)
    view.watch(Live(2, 3, 10, 1024, 0, (2, 2), 0))
    view.advance(LINE)
    view.watch(Live(3, 1, 10, 0, 0, (1, 2), 2))
    view.advance({**LINE, "round": 3, "hosts": {"alive": 2, "of": 2, "busy": {"0": 0.5, "1": 0.25}}})
    first, second, third, last = capsys.readouterr().err.splitlines()
    assert first.startswith("name: round 2: 3/10 clients, ")
    assert first.endswith("1.0 KiB up, 0 B down, 2 of 2 hosts")
    assert second.startswith("name: 2/3 rounds, ")
    assert second.endswith(
        "deployed val 50.0 %, domains val 25.0 %, loss 0.250, 3 clients, 2.0/s, 2.0 KiB up, 3.0 MiB down, "
        "1 of 2 hosts, 1 retry"
    )
    assert third.endswith("1 of 2 hosts, 3 retries")
    assert last.endswith("2 of 2 hosts, 2 retries, 38 % busy")


def test_scoring_is_a_phase_of_its_own(terminal: StringIO) -> None:
    lives: list[Live] = []
    pool = SimpleNamespace(hosts=(1, 1), retried=0, transfer=0.0)
    meter = Meter(1, [], pool, lives.append)  # type: ignore[arg-type]
    for visits, scored in ((10, False), (300, True), (200, True)):
        meter.expect(visits, scored)
    assert [(live.expected, live.scored) for live in lives] == [(10, False), (300, True), (200, True)]
    with live_view.live_view("name", 3, 0) as view:
        view.watch(lives[-1])
    assert "round 1, scores" in terminal.getvalue()


def test_kernels_take_the_place_of_a_round_that_waits_for_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "SECONDS_BETWEEN_LINES", 0.0)
    view, live = LiveView("name", 3, 0, None), Live(1, 0, 10, 0, 0, (2, 2), 0)
    for kernel in ((1, "adam"), (4, "multiply")):
        view.watch(replace(live, kernel=kernel))
    # Visits go on: the number stays, and no kernel is compiled.
    view.watch(replace(live, visits=3, kernel=(4, "multiply")))
    # Scores need one more.
    for kernel in ((4, "multiply"), (5, "exp")):
        view.watch(replace(live, scored=True, kernel=kernel))
    kernels_first, kernels_later, visits, scores, kernels_of_scores = capsys.readouterr().err.splitlines()
    assert kernels_first == "name: compiling kernels, once per machine: number 1, adam, 0 s"
    assert kernels_later == "name: compiling kernels, once per machine: number 4, multiply, 0 s"
    assert visits.startswith("name: round 1: 3/10 clients, ")
    assert scores.startswith("name: round 1: 0/10 clients scored, ")
    assert kernels_of_scores == "name: compiling kernels, once per machine: number 5, exp, 0 s"


def test_lines_about_kernels_are_rarer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(float(second) for second in range(10_000))
    monkeypatch.setattr(live_view.time, "monotonic", lambda: next(now) / 4)
    view, live = LiveView("name", 3, 0, None), Live(1, 0, 10, 0, 0, (2, 2), 0)
    for kernel in range(1, 100):
        view.watch(replace(live, kernel=(kernel, "adam")))
    lines = capsys.readouterr().err.splitlines()
    # The first after as long as any other line.
    assert lines[0].endswith(": number 10, adam, 4 s")
    assert 2 <= len(lines) <= 4
    assert all("compiling kernels" in line for line in lines)


def test_kernels_on_a_terminal(terminal: StringIO) -> None:
    with live_view.live_view("name", 3, 0) as view:
        view.watch(Live(1, 0, 10, 0, 0, (2, 2), 0, kernel=(4, "adam")))
    shown = terminal.getvalue()
    assert "compiling kernels, once per machine" in shown
    assert "4/?" in shown
    assert " adam\n" in shown


def test_view_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView("name", 3, 0, None)
    for number in (1, 2, 3):
        view.watch(Live(number, 3, 10, 0, 0, (1, 1), 0))
        view.advance({**LINE, "round": number, "cohort": [], "loss": None})
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("width", "run", "this_round"),
    [
        (50, "--:--", "00:00"),
        (80, "--:-- deployed val 50.0 %", "00:00 3 clients, 2.0/s, 2.0 KiB up"),
        (
            120,
            "--:-- deployed val 50.0 %, trained val 75.0 %, loss 0.250, 1 rounds/s",
            "00:00 3 clients, 2.0/s, 2.0 KiB up, 3.0 MiB down, 1 of 2 hosts, 1 retry",
        ),
    ],
)
def test_bars_fit_the_terminal(width: int, run: str, this_round: str) -> None:
    """Both lines have a bar, a count and the time left, and no part of a note is cut."""
    shown = StringIO()
    scopes = {"trained": {"val": {"nodes": 0.75}}, "deployed": {"val": {"nodes": 0.5}}}
    with Progress(*columns(), console=Console(file=shown, force_terminal=True, width=width)) as bars:
        view = LiveView("a-name-that-is-rather-long", 300, 0, bars)
        view.watch(Live(2, 3, 500, 1024, 0, (2, 2), 0))
        view.advance({**LINE, "scopes": scopes})
        bars.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    first, second = [line.rstrip() for line in plain.replace("\r", "\n").splitlines() if line.strip()][-2:]
    assert max(len(first), len(second)) <= width
    assert "2/300" in first
    assert "3/3" in second
    assert "━" in first
    assert ":" in first
    assert re.sub(r"[\d.]+ rounds", "1 rounds", first).endswith(run)
    assert second.endswith(this_round)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_graceful_second_signal_interrupts(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), graceful() as interrupt:  # noqa: PT012
        assert not interrupt.asked
        signal.raise_signal(number)
        assert interrupt.asked
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_graceful_without_a_signal_runs_to_the_end() -> None:
    with graceful() as interrupt:
        pass
    assert not interrupt.asked
    # Each run is asked by itself.
    with graceful() as again:
        signal.raise_signal(signal.SIGTERM)
    assert (interrupt.asked, again.asked) == (False, True)
