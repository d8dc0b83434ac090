"""How far a long step is, on a plain log and on a terminal."""

import re
from io import StringIO

import pytest
from rich.console import Console

from shoal.engine.screen import progress as shown
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


def test_a_bar(terminal: StringIO) -> None:
    with progress("edges", 3000, "rows", done=1000) as step:
        step.advance(2000)
    assert "edges" in terminal.getvalue()
    assert "3000/3000" in terminal.getvalue()
    assert "rows/s" in terminal.getvalue()


def test_say_prints_markup_as_text(terminal: StringIO) -> None:
    line = f"/runs/[red]x: resuming after round 3{' and on' * 30}"
    say(line)
    assert terminal.getvalue() == line + "\n"
