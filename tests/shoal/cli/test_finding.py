"""Finding a command or a key: help that fits a screen, and a search over keys, meanings, options and scores."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused as says_why
from typer.testing import CliRunner

from shoal.algorithms.methods.registry.names import METHODS
from shoal.cli.cli import GROUPS, app
from shoal.cli.explain import explanation
from shoal.cli.kept import list_command
from shoal.cli.names import KINDS, describe_names
from shoal.cli.past import possible_path
from shoal.engine.config.config import config_from
from shoal.storage.datasets.registry import record
from shoal.storage.options.target_names import CLASSIFICATION

Refused, Shoal = Callable[..., str], Callable[..., None]


def test_help_fits_a_screen_in_four_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).stdout
    assert len(text.splitlines()) <= 50
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
        ("macro_f1", "evaluation.metrics"),
        ("wandb", "callbacks"),
    ],
)
def test_a_word_finds_the_keys_that_it_is_about(word: str, key: str) -> None:
    assert any(re.match(rf"{key}\b", line) for line in explanation(word)), explanation(word)


def test_a_part_of_a_name_finds_methods() -> None:
    (line,) = [line for line in explanation("sage_plus") if line.startswith("Methods, models and datasets: ")]
    assert {"fedsage_plus", "fedsage_plus_fedgta"} <= set(re.split(r"[ ,.]+", line)) & set(METHODS)


@pytest.mark.parametrize("word", ["noniid", "non-IID", "dirichlet_alpha"])
def test_a_word_of_papers_leads_to_the_key(word: str) -> None:
    with says_why(word, says="did you mean partition.alpha? no such key"):
        explanation(word)


def test_a_word_of_nothing_is_refused() -> None:
    with says_why("zzzz", says="no such key, method or model; shoal explain lists all"):
        explanation("zzzz")


def test_a_run_is_found_by_the_name_that_list_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/mine-1", "runs/sweeps/mine-2", "runs/here", "here"):
        (tmp_path / name).mkdir(parents=True)
    found = [str(possible_path(name)) for name in ("mine-1", "mine-2", "here", "runs/mine-1", "other", "../mine-1")]
    assert found == ["runs/mine-1", "runs/sweeps/mine-2", "here", "runs/mine-1", "other", "../mine-1"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_list_is_explained(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And a config takes it under the key that the list names."""
    list_command([kind])
    table, note = capsys.readouterr().out.rsplit("\nshoal explain NAME says more; ", 1)
    names = [line.split()[0] for line in table.splitlines()[1:] if not line.startswith(" ")]
    assert names == list(describe_names(kind))
    key = note.partition("=")[0]
    for name in names:
        first = explanation(name)[0]
        assert first.startswith((f"{key}={name}: ", f"{key}.name={name}: ", f"{key}.method={name}: ")), first
        section, _, option = key.partition(".")
        plain: dict[str, Any] = {"name": "a", "data": {"dataset": "digits"}, "algorithm": "fedavg"}
        plain |= {section: {option: name} if option else name}
        config_from({**plain, **({"task": "graph"} if name == "star" else {})})


def test_list_of_datasets_says_what_each_is_for_as_its_record_does() -> None:
    for name, line in describe_names("datasets").items():
        target = record(name).target
        assert (f"target: {target}" in line) == (target != CLASSIFICATION), line


def test_a_list_of_a_folder_that_is_not_there_is_refused(tmp_path: Path, refused: Refused, shoal: Shoal) -> None:
    there = "shoal list shows runs and stores, or datasets, methods, models, partitioners"
    for words, line in (
        ([str(tmp_path / "no")], f"{tmp_path}/no: no such folder; {there}"),
        (["method"], f"method: did you mean 'methods'? no such folder; {there}"),
        (
            ["methods", str(tmp_path)],
            f"{tmp_path}: is none of datasets, methods, models, partitioners; list folders alone",
        ),
    ):
        assert refused("list", *words) == f"shoal: {line}"
    shoal("list", tmp_path)


def test_options_that_share_a_text_have_it() -> None:
    assert explanation("data.options.nodes")[1] == "    How many there are; dataset sbm only, as the next two."
    assert "algorithm.strong ([0.8, 0.5]): Shares of the edges" in "\n".join(explanation("fgssl"))
