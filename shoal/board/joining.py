"""A method that joins a board: it runs in every setting, with the seeds and the budget of what is there."""

from pathlib import Path

from shoal.board.board import Board
from shoal.board.entries import Entry
from shoal.engine.config.config import Config, load_config, require_names
from shoal.engine.records.run_folder import finished, started
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.screen.progress import progress
from shoal.storage.errors import ShoalError
from shoal.study.study import combinations

GO_ON = "the same shoal board"


def run_method(board: Board, method: str) -> list[Path]:
    """Runs a method once for every setting and seed of a board; returns the folders of the runs.

    Data, model, rounds and local training are those of the runs that are there. Finished runs are taken as they are;
    interrupted, the same command goes on. Raises ShoalError: the method is wrong, checked before the first run; a run
    of the board is gone; or one fails.

    Args:
        method: A name or `my_file.py:Mine`, with options as `fedprox{mu:0.1}`; several values are several runs.
    """
    selections = combinations([f"algorithm={method}"])
    plans = [
        RunPlan.of(_config(Path(there.run), selection.overrides))
        for entry in _references(board)
        for there in entry.runs
        for selection in selections
    ]
    with progress(f"run {method}", len(plans), "runs") as step:
        for plan in plans:
            if not finished(plan.folder):
                run(plan, resume=started(plan.folder), go_on=GO_ON)
            step.advance()
    return [plan.folder for plan in plans]


def _references(board: Board) -> list[Entry]:
    """Returns of each setting an entry of the usual budget, with the most seeds."""
    ranked = [entry for entry in board.entries if not entry.unlike]
    return [
        max((entry for entry in ranked if entry.setting == setting), key=lambda entry: len(entry.runs))
        for setting in board.settings
    ]


def _config(there: Path, overrides: tuple[str, ...]) -> Config:
    """Reads the config of a run with another method, which keeps digests of its uploads."""
    if not (there / "config.yaml").exists():
        raise ShoalError(there, "a run of the board is gone; bring it back")
    config = load_config(there, [*overrides, "run.keep_digests=true", f"run.root={there.parent}"])
    require_names(config)
    return config
