"""Studies that are started while another process is at work on them, or on one of their runs."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.small_runs import small_config
from support.started_at_once import start_at_once

from shoal.engine.config.config import load_config
from shoal.engine.records.run_folder import RunFolder, run_path
from shoal.kept.removal import remove
from shoal.past.forked_sweep import ForkedSweep
from shoal.storage.errors import BusyError
from shoal.storage.files.checksummed_json import unsealed
from shoal.storage.files.disk import writing
from shoal.study.study import Study
from shoal.study.sweep_folder import lock_study, read_rows
from shoal.sweeps.search import FAILED, Asked, Search
from shoal.sweeps.sweep import Sweep

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
    ended = start_at_once(tmp_path, 4, "sweep", config, "--no-report", *Asked(SPACE, 3, seeds=1).words)
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


@pytest.mark.parametrize("at_once", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_locked_run_of_a_sweep_waits_and_the_others_go_on(
    tmp_path: Path, at_once: int, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_in(tmp_path)
    sweep = Sweep(Study(config, ("seed=0,1,2",)), at_once)
    with closing(RunFolder(sweep.plans[1].folder)):
        assert not sweep.go()
    assert [row.state for row in read_rows(sweep.folder)] == ["finished", "waiting", "finished"]
    # When it came to it, and once more in the end.
    assert capsys.readouterr().err.count("another run of this config is writing here") == 2
    assert Sweep(Study(config, ("seed=0,1,2",))).go()


def test_validation_chooses_by_all_runs_or_not_at_all(tmp_path: Path) -> None:
    choice = Sweep(Study(config_in(tmp_path), ("seed=0,1,2", "train.lr=0.1,0.01"), choose="train.lr"))
    with closing(RunFolder(choice.plans[2].folder)), pytest.raises(BusyError):
        choice.go()


def test_a_run_that_is_free_in_the_end_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(Study(config_in(tmp_path), ("seed=0,1",)))
    held = RunFolder(sweep.plans[0].folder)
    take_over: Callable[[Sweep, int], None] = Sweep._take_over

    def freed(self: Sweep, place: int) -> None:
        held.close()
        take_over(self, place)

    monkeypatch.setattr(Sweep, "_take_over", freed)
    assert sweep.go()
    assert [(row.state, row.error) for row in sweep.rows] == [("finished", "")] * 2


def test_a_locked_fork_of_a_sweep_never_starts_without_its_parent(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    sweep = ForkedSweep(Study(config, ("train.lr=0.1,0.01",), fork_at=1), 1)
    with closing(RunFolder(sweep.plans[0].folder)):
        assert not sweep.go()
    assert [row.state for row in sweep.rows] == ["waiting", "finished"]
    assert ForkedSweep(Study(config, ("train.lr=0.1,0.01",), fork_at=1), 1).go()
    assert (sweep.plans[0].folder / "fork.json").exists()


def test_a_store_that_another_process_writes_is_no_failure_of_a_run(tmp_path: Path) -> None:
    sweep = Sweep(Study(config_in(tmp_path, data={"store": str(tmp_path / "store")}), ("seed=0,1",)))
    with writing(tmp_path / "store"), refused(tmp_path / "store", kind=BusyError):
        sweep.go()
    assert sweep.go()


def test_a_study_at_work_is_not_removed_and_its_lock_goes_with_it(tmp_path: Path) -> None:
    sweep = Sweep(Study(config_in(tmp_path), ("seed=0,1",)))
    assert sweep.go()
    with lock_study(sweep.folder), refused(sweep.folder, says="is being written"):
        remove([sweep.folder], lambda question: True)
    assert remove([sweep.folder], lambda question: True)
    assert not sweep.folder.exists()
    assert not run_path(load_config(tmp_path / "config.yaml")).exists()
