"""Finding a command or a key: help that fits a screen, and a search over keys, meanings, options and scores."""

import re
from pathlib import Path

import pytest
from support.errors import refused
from typer.testing import CliRunner

from shoal.algorithms.methods.registry.names import METHODS
from shoal.cli.cli import GROUPS, app
from shoal.cli.explain import explanation
from shoal.cli.past import possible_path


def test_help_fits_a_screen_in_four_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    assert len(text.splitlines()) <= 56
    assert [name for name in re.findall(r"─ ([A-Z][\w ]+?) ─", text) if name != "Options"] == list(GROUPS)
    # Every command is in it once, with a line of its own.
    listed = re.findall(r"^│ ([a-z]\w+)  +\S", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(str(command.name) for command in app.registered_commands)


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("batch", "train.batch_size"),
        ("GPU", "engine.device"),
        ("checkpoints", "run.checkpoint_every"),
        ("Privacy", "privacy.epsilon"),
    ],
)
def test_a_word_finds_the_keys_that_it_is_about(word: str, key: str) -> None:
    assert any(re.match(rf"{key}\b", line) for line in explanation(word)), explanation(word)


def test_a_part_of_a_name_finds_methods() -> None:
    (line,) = [line for line in explanation("sage_plus") if line.startswith("Methods, models and datasets: ")]
    assert {"fedsage_plus", "fedsage_plus_fedgta"} <= set(re.split(r"[ ,.]+", line)) & set(METHODS)


def test_a_word_of_nothing_is_refused() -> None:
    with refused("zzzz", says="no such key, method or model; shoal explain lists all"):
        explanation("zzzz")


def test_a_run_is_found_by_the_name_that_list_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/mine-1", "runs/sweeps/mine-2", "runs/here", "here"):
        (tmp_path / name).mkdir(parents=True)
    found = [str(possible_path(name)) for name in ("mine-1", "mine-2", "here", "runs/mine-1", "other", "../mine-1")]
    assert found == ["runs/mine-1", "runs/sweeps/mine-2", "here", "runs/mine-1", "other", "../mine-1"]
