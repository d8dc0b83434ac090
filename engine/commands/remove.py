"""Removing runs, sweeps and stores: says what they are and who else needs them before it asks."""

import fcntl
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.preparing.overlay import store_or_overlay
from engine.preparing.prepare import store_path
from engine.records.run_folder import CONFIG, LOCK
from engine.screen.progress import say
from engine.settings.config import load_config
from engine.settings.sizes import size
from engine.studies.kept import Kept, kept_in, kind_of, listed
from engine.studies.sweep_folder import is_sweep, read_rows
from storage.errors import ShoalError


def remove(paths: Sequence[Path], ask: Callable[[str], bool]) -> bool:
    """Removes folders after asking once; of a sweep the runs, too, that are in no other sweep beside it.

    Returns:
        Whether they were removed.

    Raises:
        ShoalError: A path is none of Shoal's folders, a run is being written, or a folder cannot be removed.
    """
    wanted: dict[Path, Kept] = {}
    for path in paths:
        kind = kind_of(path)
        if kind is None:
            raise ShoalError(f"{path}: neither a store, a run nor a sweep; remove other folders by hand")
        for each in [Kept(kind, path), *(_runs_of(path) if kind == "sweep" else ())]:
            wanted.setdefault(each.path.absolute(), each)
    several = list(wanted.values())
    for each in several:
        if each.kind == "run":
            _require_idle(each.path)
    print(listed(several).text(), end="")
    for each in several:
        for line in _needed_by(each, several):
            say(line)
    if not ask(f"remove {len(several)} folders, {size(sum(each.bytes for each in several))}?"):
        return False
    for each in several:
        _remove(each.path)
    return True


def _runs_of(sweep: Path) -> list[Kept]:
    """Runs of a sweep that no other sweep in its folder has."""
    others = {
        Path(row.run).resolve()
        for other in sweep.resolve().parent.iterdir()
        if other != sweep.resolve() and is_sweep(other)
        for row in read_rows(other)
    }
    own = [Path(row.run) for row in read_rows(sweep)]
    return [Kept("run", run) for run in own if run.is_dir() and run.resolve() not in others]


def _needed_by(each: Kept, removed: Sequence[Kept]) -> list[str]:
    """Lines that say what else needs a folder: runs in `runs` need their store to go on and to be exported."""
    if each.kind != "store":
        return []
    gone = {other.path.resolve() for other in removed}
    users = []
    for run in (kept for kept in kept_in(Path("runs")) if kept.kind == "run" and kept.path.resolve() not in gone):
        try:
            if (run.path / CONFIG).exists() and each.path.resolve() in _stores_of(run.path):
                users.append(run.path.name)
        except ShoalError:
            continue
    return [f"{each.path.name}: is the store of {', '.join(users)}; prepare makes it again"] if users else []


def _stores_of(run: Path) -> tuple[Path, Path]:
    """The store of a run's config, and the overlay of that if there is one."""
    config = load_config(run)
    store = store_path(config)
    return store.resolve(), store_or_overlay(store, config).resolve()


def _require_idle(run: Path) -> None:
    try:
        with (run / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ShoalError(f"{run}: is being written by a run; stop that first") from None
    except OSError:
        # A file system without locks, or a folder that will say so itself.
        return


def _remove(path: Path) -> None:
    try:
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    except OSError as error:
        raise ShoalError(f"{error.filename}: cannot be removed: {error.strerror}; remove it by hand") from error
    say(f"removed: {path}")
