"""Names with the codes of a terminal: shown as they are written wherever a command prints them or a page has them."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.small_runs import small_run

from shoal.engine.config.config import load_config
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.output import Console, Table, put
from shoal.tables.text_table import TextTable

Capture = pytest.CaptureFixture[str]
RED, SHOWN = "\x1b[31mred", r"\x1b[31mred"


def test_lines_and_tables_have_no_codes(capsys: Capture) -> None:
    put(f"{RED}\nsecond")
    assert capsys.readouterr().out == f"{SHOWN}\nsecond\n"
    out = io.StringIO()
    console = Console(file=out, width=100)
    table = Table(RED, title=RED)
    table.add_column(f"{RED} too")
    table.add_row(RED, f"[bold]{RED}[/bold]")
    console.print(RED)
    console.print(table)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count(SHOWN) == 6
    assert "[bold]" in out.getvalue()


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "html", "csv"])
def test_tables_of_all_forms_have_no_codes(form: str) -> None:
    table = TextTable((RED, "n"), ((RED, "1\r2"), ("b\x07", "\ue000")), 1, frozenset({(0, 1)}), RED, (RED,), across=RED)
    text = getattr(table, form)()
    assert all(c.isprintable() or c == "\n" for c in text)
    # LaTeX has a command for the backslash.
    assert "x1b" in text


def test_no_command_prints_the_codes_of_a_graph(tmp_path: Path, status: Callable[..., int], capsys: Capture) -> None:
    """Of classes, columns and the folder of the graph; on the page of a run neither."""
    rng, folder = np.random.default_rng(0), tmp_path / f"gra{RED}ph"
    folder.mkdir()
    arrays: dict[str, Any] = {"edge_index": rng.integers(0, 60, (2, 200)), "x": rng.normal(size=(60, 3)).astype("f4")}
    arrays |= {"y": np.arange(60) % 3, "label_names": np.array([RED, "b\rb", "c\x9b2J"])}
    arrays |= {"vocabulary": np.array(["one\x1b[2J", "two\x07", "three"])}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    config = tmp_path / "config.yaml"
    data = {"dataset": "files", "path": str(folder), "options": {}}
    config.write_text(yaml.safe_dump(small_run(tmp_path, name="codes", rounds=1, data=data)))
    assert status("run", config) == 0
    (run,) = (tmp_path / "runs").glob("codes-*")
    printed, store = "".join(capsys.readouterr()), RunPlan.of(load_config(config)).prepare().path
    commands = (
        ("prepare", config),
        ("inspect", store),
        ("inspect", run),
        ("run", config, "--dry-run"),
        ("list", tmp_path),
    )
    for command in (*commands, ("table", run), ("report", run)):
        assert status(*command) == 0, command
        printed += "".join(capsys.readouterr())
    (page,) = [file.read_text() for file in tmp_path.rglob("*.html")]
    for text in (printed, page):
        # A terminal of the test has no colours, and carriage returns of ours.
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
        assert SHOWN in text
