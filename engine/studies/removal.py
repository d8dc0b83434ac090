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
from shoal.engine.studies import sweep_folder
from shoal.engine.studies.listing import Kept, kept_in, kind_of, listed
from shoal.engine.studies.sweep_folder import SWEEP, SWEEPS, is_sweep, sweep_of
from shoal.partition.methods import workspace
from shoal.storage.errors import ShoalError
from shoal.storage.files import disk
from shoal.storage.files.atomic import OF_UNFINISHED
from shoal.storage.files.disk import LOCK, open_lock
from shoal.storage.store import manifest, store, writer
from shoal.storage.store.manifest import NAME as MANIFEST
from shoal.storage.store.manifest import require_sealed

# Paths below a folder of a kind of the files that Shoal writes, as who writes them says, and of links.
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
# What is added to the path of a file that is not finished, or still fetched.
NOT_FINISHED = rf"({OF_UNFINISHED}|\.part)?"
MARKS = {"run": CONFIG, "store": MANIFEST, "sweep": SWEEP}
MOST_NAMED = 5


@dataclass(frozen=True)
class _Found:
    """The files of a folder: those that Shoal wrote, and the others."""

    kept: Kept

    @cached_property
    def files(self) -> tuple[list[Path], list[Path]]:
        """Own files, so that those by which the folder is known come last, and others. Raises ShoalError."""
        kind, root = self.kept.kind, self.kept.path
        written = re.compile(f"({'|'.join(FILES[kind])}){NOT_FINISHED}")
        links = re.compile("|".join(LINKS[kind]))
        own: list[Path] = []
        others: list[Path] = []
        for folder, folders, names in os.walk(root, onerror=_raise):
            for path in (Path(folder, name) for name in (*names, *folders)):
                mode, place = path.lstat().st_mode, path.relative_to(root).as_posix()
                if S_ISLNK(mode):
                    (own if links.fullmatch(place) else others).append(path)
                elif path.name not in folders:
                    (own if S_ISREG(mode) and written.fullmatch(place) else others).append(path)
        # What is read to know the folder comes last, so that what an interruption leaves can be removed again.
        last = [root / name for name in (METRICS, MARKS[kind], LOCK)]
        return sorted(own, key=lambda path: last.index(path) + 1 if path in last else 0), sorted(others)

    @property
    def bytes(self) -> int:
        """Of the own files."""
        return sum(path.lstat().st_size for path in self.files[0])

    def remove(self) -> None:
        """Removes the own files, then the folders that are empty. Raises ShoalError."""
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
    """Removes folders after asking once; of a sweep also the runs that are in no other sweep. Gives whether it did.

    Only files that Shoal wrote are removed, then empty folders; links are not followed. Refuses folders that are none
    of Shoal's, and those that are being written.
    """
    wanted: dict[Path, Kept] = {}
    for path in paths:
        kept = _own(path)
        for each in [kept, *(_runs_of(path) if kept.kind == "sweep" else ())]:
            wanted.setdefault(each.path.absolute(), each)
    several = [_Found(kept) for kept in wanted.values()]
    with ExitStack() as locks:
        for found in several:
            for path in found.files[0]:
                if path.name == LOCK:
                    locks.enter_context(_lock(path.parent))
        put("\n".join(table.text() for table in listed([found.kept for found in several])), end="")
        for found in several:
            for line in (*_needed_by(found.kept, several), *_staying(found, "will stay")):
                say(line)
        if not ask(
            f"remove {len(several)} folder{'s' * (len(several) > 1)}, {size(sum(found.bytes for found in several))}?"
        ):
            return False
        for found in several:
            found.remove()
            for line in _staying(found, "stays") or [f"removed: {found.kept.path}"]:
                say(line)
    return True


def _own(path: Path) -> Kept:
    """A folder with the mark of Shoal. Raises ShoalError: it has none."""
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
    """Whether a lock of ours is the only file in a folder: a removal was cut off before its last file."""
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


def _staying(found: _Found, what: str) -> list[str]:
    """A line that names what Shoal did not write, if anything."""
    path, others = found.kept.path, found.files[1]
    if not others:
        return []
    names = ", ".join(str(other.relative_to(path)) for other in others[:MOST_NAMED])
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    return [f"{path}: {what} with what Shoal did not write: {names}{more}"]


def _runs_of(sweep: Path) -> list[Kept]:
    """Runs of a sweep beside it that no other sweep there has; what is another one by now stays, with a line.

    A sweep may come from anybody, and name any run of this user: only those in the folder in which it lies are its own.
    """
    here = sweep.resolve().parent
    root = here.parent if here.name == SWEEPS else here
    others = {
        Path(run["run"]).resolve()
        for other in here.iterdir()
        if other != sweep.resolve() and is_sweep(other)
        for run in sweep_of(other)["runs"]
    }
    found = []
    for run in (Path(run["run"]) for run in sweep_of(sweep)["runs"]):
        if run.resolve() in others or not os.path.lexists(run):
            continue
        if run.resolve().parent != root:
            say(f"{run}: stays, it does not lie in {root}; name it to remove it, too")
            continue
        try:
            kept = _own(run)
            if kept.kind == "run" and require_as_kept(run / CONFIG) in (None, run.name):
                found.append(kept)
                continue
        except ShoalError:
            pass
        say(f"{run}: stays, it is no run of this sweep any more")
    return found


def _needed_by(each: Kept, removed: Sequence[_Found]) -> list[str]:
    """Lines that say which runs in `runs` need a store; raises ShoalError if one of them is at work."""
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
