"""What a terminal and a plain log show of a run at work."""

from io import StringIO

import pytest
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from engine.screen import live_view
from engine.screen.live_view import LiveView
from engine.wire.live import Live

LINE = {
    "round": 2,
    "cohort": [0, 1, 4],
    "loss": 0.25,
    "retries": 1,
    "hosts": {"alive": 1, "of": 2},
    "bytes_up": 2048,
    "bytes_down": 3 * 2**20,
    "seconds": {"round": 1.5},
    "scopes": {"served": {"val": {"nodes": 0.5}}},
}


def test_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_view, "SECONDS_BETWEEN_LINES", 0.0)
    view = LiveView("name", 3, 1, None)
    view.watch(Live(2, 3, 10, 1024, 0, (2, 2), 0))
    view.advance(LINE)
    view.watch(Live(3, 1, 10, 0, 0, (1, 2), 2))
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("name: round 2: 3/10 clients, ")
    assert first.endswith("1.0 KiB up, 0 B down, 2/2 hosts")
    assert second.startswith("name: 2/3 rounds, ")
    assert second.endswith(
        "loss 0.250, served val 50.0 %, 3 clients, 2.0/s, 2.0 KiB up, 3.0 MiB down, 1/2 hosts, 1 retries"
    )
    assert third.endswith("1/2 hosts, 3 retries")


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    view = LiveView("name", 3, 0, None)
    for number in (1, 2, 3):
        view.watch(Live(number, 3, 10, 0, 0, (1, 1), 0))
        view.advance({**LINE, "round": number, "cohort": [], "loss": None})
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bars() -> None:
    shown = StringIO()
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(file=shown, force_terminal=True, width=150)) as bars:
        view = LiveView("name", 3, 0, bars)
        view.watch(Live(2, 3, 10, 1024, 0, (2, 2), 0))
        bars.refresh()
        assert "3/10" in shown.getvalue()
        view.advance(LINE)
        view.back_to(1)
        bars.refresh()
    last = shown.getvalue()[shown.getvalue().rindex("name") :]
    assert "1/3" in last
    assert "1/2 hosts, 1 retries" in last


def test_domains_are_their_mean(capsys: pytest.CaptureFixture[str]) -> None:
    scopes = {"served": {"val": {"nodes": 0.5}}, "domains": {"val": {"nodes": 0.75, "clients": 0.25}}}
    LiveView("name", 2, 1, None).advance({**LINE, "scopes": scopes})
    assert "served val 50.0 %, domains val 25.0 %, " in capsys.readouterr().err
