"""`--out`, `--json` and `--seeds` mean the same in every command that has them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import shoal
from shoal.cli.cli import app

Capture, Status, Refused = pytest.CaptureFixture[str], Callable[..., int], Callable[..., str]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def options_of(name: str) -> dict[str, Any]:
    return {option: each for each in COMMANDS[name].params for option in each.opts}


def printed(status: Status, capsys: Capture, *words: object) -> Any:
    capsys.readouterr()
    assert status(*words) == 0, words
    return json.loads(capsys.readouterr().out)


def test_options_of_one_name_have_one_meaning() -> None:
    having = {
        option: {name for name in COMMANDS if option in options_of(name)} for option in ("--json", "--seeds", "--out")
    }
    assert {options_of(name)["--json"].help for name in having["--json"]} == {"Print JSON."}
    assert having["--seeds"] == {"sweep", "reproduce"}
    assert {options_of(name)["--seeds"].help.split()[0].rstrip(";") for name in having["--seeds"]} == {"Repetitions"}
    assert all("write" in options_of(name)["--out"].help for name in having["--out"])
    # What shows tables of a run gives their rows to programs.
    tables = {
        "bisect",
        "table",
        "clock",
        "compare",
        "list",
        "inspect",
        "doctor",
        "influence",
        "privacy",
        "attack",
        "read",
        "replay",
        "unlearn",
        "values",
    }
    assert having["--json"] == tables


def test_json_is_all_that_is_printed_and_out_is_written_as_well(
    finished: shoal.Run, tmp_path: Path, status: Status, capsys: Capture
) -> None:
    run = finished.path
    rows = printed(status, capsys, "table", run, "--json", "--out", tmp_path / "t.csv")
    assert rows[0]["deployed.best.test.nodes"] == finished.summary["scopes"]["deployed"]["best"]["test"]["nodes"]
    assert (tmp_path / "t.csv").read_text().startswith("figure,averaged,")
    made = printed(status, capsys, "privacy", run, "--json", "--out", tmp_path / "privacy")
    clients = [line.split(",") for line in (tmp_path / "privacy" / "clients.csv").read_text().splitlines()]
    assert [list(row) for row in made["rows"]["clients"]] == [clients[0]] * 4
    assert [[str(cell) for cell in row.values()] for row in made["rows"]["clients"]] == clients[1:]
    assert printed(status, capsys, "compare", run, run, "--json")["config"] == []
    printed(status, capsys, "clock", run, "--json", "--out", tmp_path / "clock")
    assert (tmp_path / "clock" / "index.html").exists()


def test_a_page_goes_into_a_folder_or_alone_into_a_file(
    finished: shoal.Run, tmp_path: Path, status: Status, refused: Refused
) -> None:
    for command in ("report", "clock"):
        page = tmp_path / command / "page.html"
        assert status(command, finished.path, "--out", page) == 0
        assert [path.name for path in page.parent.iterdir()] == ["page.html"]
        text = page.read_text()
        assert text.startswith("<!doctype html>")
        assert 'href="figures' not in text
        line = f"shoal: {tmp_path}/file: is a file; a page goes into a folder, or alone into a file that ends in .html"
        (tmp_path / "file").touch()
        assert refused(command, finished.path, "--out", tmp_path / "file") == line


@pytest.mark.parametrize("command", ["table", "attack", "influence", "predict"])
def test_a_folder_where_a_file_is_needed_is_refused(
    command: str, finished: shoal.Run, tmp_path: Path, refused: Refused
) -> None:
    out = tmp_path / "folder.csv"
    out.mkdir()
    graph = ["none"] * (command == "predict")
    assert refused(command, finished.path, *graph, "--out", out) == f"shoal: {out}: is a folder; name a file in it"


def test_a_file_where_a_folder_is_needed_is_refused(finished: shoal.Run, tmp_path: Path, refused: Refused) -> None:
    line = refused("privacy", finished.path, "--out", tmp_path / "all.csv")
    assert line == f"shoal: {tmp_path}/all.csv: expected a folder, for entries.csv, clients.csv"


@pytest.mark.parametrize(("ending", "begin"), [("md", "test accuracy"), ("tex", "% test accuracy"), ("html", "<table")])
def test_a_table_is_written_in_the_form_of_its_ending(
    ending: str, begin: str, finished: shoal.Run, tmp_path: Path, status: Status
) -> None:
    out = tmp_path / f"table.{ending}"
    assert status("table", finished.path, "--out", out) == 0
    assert out.read_text().startswith(begin)


def test_seeds_of_a_sweep_are_its_axis(small: dict[str, Any], tmp_path: Path, printed: Callable[..., str]) -> None:
    import yaml

    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    lines = [
        printed("sweep", tmp_path / "small.yaml", "train.lr=0.1,0.2", *words, "--dry-run")
        for words in (["--seeds", "2"], ["seeds=2"])
    ]
    assert lines[0] == lines[1]
    assert "4 runs" in lines[0]
