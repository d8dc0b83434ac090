"""Searches that are started while another process is at work on them, or on one of their runs."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.small_runs import small_config
from support.started_at_once import start_at_once

from shoal.engine.records.run_folder import RunFolder
from shoal.search.search import FAILED, Asked, Search
from shoal.storage.errors import BusyError
from shoal.storage.files.checksummed_json import unsealed
from shoal.study.study import Study
from shoal.study.sweep_folder import lock_study, read_rows

SPACE = ("train.lr=0.001:0.1:log",)


def config_in(folder: Path, **changes: Any) -> str:
    return small_config(folder, name="searched", **changes)


def search_of(config: str) -> Search:
    return Search(Study(config, ()), Asked(SPACE, 3, seeds=1))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A search that was started once."""
    search = search_of(config_in(tmp_path_factory.mktemp("alone")))
    assert search.go()
    return search


def test_of_several_starts_of_a_search_all_that_go_on_are_the_search_of_one(tmp_path: Path, alone: Search) -> None:
    config = config_in(tmp_path)
    words = ["sweep", config, "--no-report", *Asked(SPACE, 3, seeds=1).words]
    ended = start_at_once(tmp_path, 4, words, ["optuna", "shoal.search.search"])
    assert {status for status, _ in ended} <= {0, 2}, ended
    assert any(status == 0 for status, _ in ended)
    refusals = [said for status, said in ended if status]
    assert refusals
    assert all("another process is at work on this study" in said for said in refusals)
    (found,) = (tmp_path / "runs" / "sweeps").glob("*/search.json")
    expected = unsealed((alone.folder / "search.json").read_bytes())
    assert unsealed(found.read_bytes()) == expected
    assert [(row.columns, row.figures["deployed.best.test"]) for row in read_rows(found.parent)] == [
        (row.columns, row.figures["deployed.best.test"]) for row in read_rows(alone.folder)
    ]


def test_a_search_in_a_folder_that_is_locked_is_refused(tmp_path: Path) -> None:
    search = search_of(config_in(tmp_path))
    with lock_study(search.folder), refused(search.folder, kind=BusyError):
        search.go()
    assert not list((tmp_path / "runs").glob("searched-*"))
    assert not (search.folder / "search.json").exists()


def test_a_trial_of_which_a_run_is_locked_never_fails(tmp_path: Path, alone: Search) -> None:
    search = search_of(config_in(tmp_path))
    (second, *_) = [row.path.name for row in alone.parts[0].runs.values()][1:]
    held = RunFolder(tmp_path / "runs" / second)
    with closing(held), pytest.raises(BusyError, match="another run of this config is writing here"):
        search.go()
    assert FAILED not in {trial.state for trial in search.parts[0].trials}
    again = search_of(config_in(tmp_path))
    assert again.go()
    assert again.parts[0].plain() == alone.parts[0].plain()
