"""Studies that are started while another process is at work on them, or on one of their runs."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.small_runs import small_config

from shoal.engine.config.config import load_config
from shoal.engine.records.run_folder import RunFolder, run_path
from shoal.kept.removal import remove
from shoal.past.forked_sweep import ForkedSweep
from shoal.storage.errors import BusyError
from shoal.storage.files.disk import writing
from shoal.study.study import Study
from shoal.study.sweep_folder import lock_study, read_rows
from shoal.sweeps.sweep import Sweep


def config_in(folder: Path, **changes: Any) -> str:
    return small_config(folder, name="searched", **changes)


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
