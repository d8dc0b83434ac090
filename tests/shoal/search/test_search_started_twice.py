"""Searches that are started while another process is at work on them, or on one of their runs."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rooms import ROOT
from support.errors import refused
from support.small_runs import small_config

from shoal.engine.records.run_folder import RunFolder
from shoal.search.search import FAILED, Asked, Search
from shoal.storage.errors import BusyError
from shoal.storage.files.checksummed_json import unsealed
from shoal.study.study import Study
from shoal.study.sweep_folder import lock_study, read_rows

SPACE = ("train.lr=0.001:0.1:log",)
# Forks a process for each command, all at once, after it has imported everything; prints their statuses and messages.
STARTER = """
import json, os, sys
import optuna, scipy.sparse
import shoal.cli.cli, shoal.engine.runs.run, shoal.search.search
from shoal.cli.main import main

folder, number, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
children = []
for place in range(number):
    child = os.fork()
    if child == 0:
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/said-{place}-{stream}", os.O_WRONLY | os.O_CREAT), stream)
        sys.argv[1:] = words
        status = 1
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps([[status, open(f"{folder}/said-{place}-2").read()] for place, status in enumerate(statuses)]))
"""


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
    command = [sys.executable, "-c", STARTER, str(tmp_path), "4", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    ended = json.loads(done.stdout)
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
