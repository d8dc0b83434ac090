"""Removes what Shoal wrote of runs, sweeps and stores, file by file; whatever else lies there stays and is named."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from stat import S_ISLNK, S_ISREG

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import CONFIG, new_run, require_as_kept
from shoal.engine.config.sizes import size
from shoal.engine.preparing.identity import store_or_overlay, store_path
from shoal.engine.records import checkpoint, client_scores, metrics, outputs, run_folder
from shoal.engine.records.graphs import remote_of
from shoal.engine.records.metrics import has_round
from shoal.engine.records.summary import METRICS
from shoal.engine.runs import remote_run
from shoal.engine.screen.output import put
from shoal.engine.screen.progress import say
from shoal.kept.listing import Kept, kept_in, kind_of, make_tables
from shoal.partition.methods import workspace
from shoal.storage.errors import ShoalError
from shoal.storage.files import disk
from shoal.storage.files.atomic import OF_UNFINISHED
from shoal.storage.files.disk import LOCK, open_lock
from shoal.storage.store import manifest, store, writer
from shoal.storage.store.manifest import NAME as MANIFEST
from shoal.storage.store.manifest import require_sealed
from shoal.study import sweep_folder
from shoal.study.sweep_folder import SWEEP, SWEEPS, is_sweep, sweep_of

# Paths below a folder, by kind, of the files and links that Shoal writes; the modules that write them name them.
FILES = {
    "run": (
        *(*run_folder.WRITTEN, *metrics.WRITTEN, *client_scores.WRITTEN, *checkpoint.WRITTEN, *remote_run.WRITTEN),
        *(*outputs.OF_RUNS, *outputs.PAGES, *disk.WRITTEN),
    ),
    "store": tuple(
        store.BELOW + f"({path})"
        for path in (*store.WRITTEN, *manifest.WRITTEN, *writer.WRITTEN, *workspace.WRITTEN, *disk.WRITTEN)
    ),
    "sweep": (*sweep_folder.WRITTEN, *outputs.OF_SWEEPS, *outputs.PAGES, *disk.WRITTEN),
}
LINKS = {
    "run": outputs.LINKS_OF_RUNS,
    "store": tuple(store.BELOW + f"({path})" for path in store.LINKS),
    "sweep": sweep_folder.LINKS,
}
# A file that is not finished, or still fetched, has such an end.
NOT_FINISHED = rf"({OF_UNFINISHED}|\.part)?"
MARKS = {"run": CONFIG, "store": MANIFEST, "sweep": SWEEP}
MOST_NAMED = 5


@dataclass(frozen=True)
class _Found:
    """A folder to remove, and its files: those that Shoal wrote, and others."""

    kept: Kept

    @cached_property
    def files(self) -> tuple[list[Path], list[Path]]:
        """The files that Shoal wrote, the marks of the folder last, and other files. Raises ShoalError: one is gone."""
        kind, root = self.kept.kind, self.kept.path
        written = re.compile(f"({'|'.join(FILES[kind])}){NOT_FINISHED}")
        links = re.compile("|".join(LINKS[kind]))
        ours: list[Path] = []
        others: list[Path] = []
        for folder, folders, names in os.walk(root, onerror=_raise):
            for path in (Path(folder, name) for name in (*names, *folders)):
                mode, place = path.lstat().st_mode, path.relative_to(root).as_posix()
                if S_ISLNK(mode):
                    (ours if links.fullmatch(place) else others).append(path)
                elif path.name not in folders:
                    (ours if S_ISREG(mode) and written.fullmatch(place) else others).append(path)
        # The marks of the folder come last, so that what an interruption leaves is recognized and can be removed.
        last = [root / name for name in (METRICS, MARKS[kind], LOCK)]
        return sorted(ours, key=lambda path: last.index(path) + 1 if path in last else 0), sorted(others)

    @property
    def bytes(self) -> int:
        """The size of the files that Shoal wrote."""
        return sum(path.lstat().st_size for path in self.files[0])

    def remove(self) -> None:
        """Removes the files that Shoal wrote, then folders that are empty. Raises ShoalError: one cannot be removed."""
        for path in self.files[0]:
            try:
                path.unlink()
            except OSError as error:
                _raise(error)
        for folder, _, _ in os.walk(self.kept.path, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)


def _raise(error: OSError) -> None:
    raise ShoalError(error.filename, f"cannot be removed: {error.strerror}; remove it by hand") from error


def remove(paths: Sequence[Path], ask: Callable[[str], bool]) -> bool:
    """Removes folders after asking once, with a sweep the runs that are in no other sweep. Returns whether it did.

    Only files that Shoal wrote are removed, then empty folders; links are not followed. Refuses folders that are none
    of Shoal's, and those that are being written.
    """
    wanted: dict[Path, Kept] = {}
    for path in paths:
        kept = _require_mark(path)
        for kept_run in [kept, *(_runs_of(path) if kept.kind == "sweep" else ())]:
            wanted.setdefault(kept_run.path.absolute(), kept_run)
    several = [_Found(kept) for kept in wanted.values()]
    with ExitStack() as locks:
        for folder in several:
            for path in folder.files[0]:
                if path.name == LOCK:
                    locks.enter_context(_lock(path.parent))
        put("\n".join(table.text() for table in make_tables([folder.kept for folder in several])), end="")
        for folder in several:
            for line in (*_needed_by(folder.kept, several), *_list_others(folder, "will stay")):
                say(line)
        if not ask(
            f"remove {len(several)} folder{'s' * (len(several) > 1)}, {size(sum(folder.bytes for folder in several))}?"
        ):
            return False
        for folder in several:
            folder.remove()
            for line in _list_others(folder, "stays") or [f"removed: {folder.kept.path}"]:
                say(line)
    return True


def _require_mark(path: Path) -> Kept:
    """Returns a folder that has the mark of Shoal. Raises ShoalError: it has none."""
    if path.is_symlink():
        raise ShoalError(path, f"is a link to {os.readlink(path)}; name that folder, or remove the link by hand")
    kind = kind_of(path)
    if kind is None and _is_last_lock(path):
        return Kept("run", path)
    if kind is None:
        raise ShoalError(path, "neither a store, a run nor a sweep; remove other folders by hand")
    read: dict[str, Callable[[Path], object]] = {"run": _require_run, "store": require_sealed, "sweep": sweep_of}
    try:
        read[kind](path)
    except ShoalError:
        raise ShoalError(
            path / MARKS[kind], "is not as Shoal writes it; remove what Shoal did not write by hand"
        ) from None
    return Kept(kind, path)


def _is_last_lock(folder: Path) -> bool:
    """Returns whether our lock is the only file in a folder: a removal was interrupted before its last file."""
    files = [file for file in folder.rglob("*") if file.is_symlink() or not file.is_dir()]
    return files == [folder / LOCK] and S_ISREG(files[0].lstat().st_mode) and not files[0].stat().st_size


def _require_run(folder: Path) -> None:
    """Raises ShoalError: the config is not as a run kept it, or was copied to where no run is."""
    name = require_as_kept(folder / CONFIG)
    # A run folder may have another name by now.
    if (new_run(folder) is None or name not in (None, folder.name)) and not has_round(folder):
        raise ShoalError(folder, "no run is here")


def _lock(folder: Path) -> ExitStack:
    """Holds the lock of a folder, where the file system has locks. Raises ShoalError: a process is writing there."""
    held = ExitStack()
    try:
        held.enter_context(open_lock(folder))
    except BlockingIOError:
        raise ShoalError(folder, "is being written by a run or a prepare; stop that first") from None
    except OSError as error:
        say(f"{folder}: removed without its lock: {error.strerror}")
    return held


def _list_others(folder: _Found, what: str) -> list[str]:
    """Returns a line that names the files that Shoal did not write, if there are any."""
    path, others = folder.kept.path, folder.files[1]
    if not others:
        return []
    names = ", ".join(str(other.relative_to(path)) for other in others[:MOST_NAMED])
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    return [f"{path}: {what} with what Shoal did not write: {names}{more}"]


def _runs_of(sweep: Path) -> list[Kept]:
    """Returns the runs beside a sweep that no other sweep there has; a run that was replaced since stays, with a line.

    A sweep may come from another user, and name any path: only runs in the folder beside it may be removed with it.
    """
    here = sweep.resolve().parent
    root = here.parent if here.name == SWEEPS else here
    others = {
        Path(run["run"]).resolve()
        for other in here.iterdir()
        if other != sweep.resolve() and is_sweep(other)
        for run in sweep_of(other)["runs"]
    }
    runs = []
    for run in (Path(run["run"]) for run in sweep_of(sweep)["runs"]):
        if run.resolve() in others or not os.path.lexists(run):
            continue
        if run.resolve().parent != root:
            say(f"{run}: stays, it does not lie in {root}; name it to remove it, too")
            continue
        try:
            kept = _require_mark(run)
            if kept.kind == "run" and require_as_kept(run / CONFIG) in (None, run.name):
                runs.append(kept)
                continue
        except ShoalError:
            pass
        say(f"{run}: stays, it is no run of this sweep any more")
    return runs


def _needed_by(each: Kept, removed: Sequence[_Found]) -> list[str]:
    """Returns lines that say which runs in `runs` need a store. Raises ShoalError: one of them is at work."""
    if each.kind != "store":
        return []
    gone = {other.kept.path.resolve() for other in removed}
    users = []
    for run in (kept for kept in kept_in(Path("runs")) if kept.kind == "run" and kept.path.resolve() not in gone):
        try:
            config = load_config(run.path)
            places = [] if remote_of(config) else [store_path(config).resolve(), store_or_overlay(config).resolve()]
        except ShoalError:
            continue
        if each.path.resolve() in places:
            _lock(run.path).close()
            users.append(run.path.name)
    return [f"{each.path.name}: is the store of {', '.join(users)}; prepare makes it again"] if users else []
