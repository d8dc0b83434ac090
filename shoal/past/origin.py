"""Finds the run that trained a round: a fork shares its first rounds with its parent, which has another config."""

from pathlib import Path
from typing import Any

from shoal.engine.config.config_text import CONFIG
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import name_of_parent, parent_of
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address


def find_origin(run: Path, number: int) -> Path:
    """Returns the folder of the run that trained a round: a run itself, or of a fork its parent, or that one's.

    Raises ShoalError: the parent is gone, or has other rounds by now.
    """
    while (parent := parent_of(run)) and number <= parent["round"]:
        run = find_parent(run, parent)
    return run


def list_origins(run: Path, rounds: int) -> list[tuple[Path, int]]:
    """Returns the folders of the runs that trained the first rounds of a run, and how many each, in their order.

    Raises as `find_origin`.
    """
    parent = parent_of(run)
    shared = min(parent["round"], rounds) if parent else 0
    before = list_origins(find_parent(run, parent), shared) if parent and shared else []
    return [*before, (run, rounds - shared)] if rounds > shared else before


def find_parent(run: Path, parent: dict[str, Any]) -> Path:
    """Returns the folder of the parent of a fork, where it was or beside the fork.

    Args:
        run: The fork.
        parent: The note of `shoal.engine.records.run_folder.parent_of`.

    Raises ShoalError: as `find_origin`.
    """
    place, number = parent["run"], parent["round"]
    path: Path | None
    if is_address(place):
        from shoal.kept.at_address import local_copy

        path = local_copy(place)
    else:
        places = (Path(place), run.parent / name_of_parent(parent))
        path = next((folder for folder in places if (folder / CONFIG).exists()), None)
    if path is None:
        raise ShoalError(
            run, f"its rounds 1 to {number} are of {place}, which is gone; bring it back, or take a later round"
        )
    # A run of the same name may have been made again since.
    theirs, ours = (read_metrics(folder)[number - 1 : number] for folder in (path, run))
    if not theirs or any(theirs[0][key] != ours[0][key] for key in ("cohort", "loss")):
        raise ShoalError(run, f"its rounds 1 to {number} are not those of {path} any more; bring that run back")
    return path
