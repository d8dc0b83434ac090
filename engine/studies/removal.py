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
from shoal.engine.preparing.identity import remote_of, store_or_overlay, store_path
from shoal.engine.records.metrics import read_metrics
from shoal.engine.screen.output import put
from shoal.engine.screen.progress import say
from shoal.engine.studies.listing import Kept, kept_in, kind_of, listed
from shoal.engine.studies.sweep_folder import SWEEP, is_sweep, read_rows
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import LOCK, open_lock
from shoal.storage.store.manifest import NAME as MANIFEST
from shoal.storage.store.manifest import read_manifest

ROUND = r"round-\d{6,18}"
BELOW = r"((whole/)?(training/[^/]+/)?|domains/)"
REPORT = r"report/(index\.html|figures/[^/]+\.(svg|png|pdf))"
# Paths of the files that Shoal writes into a folder of a kind, and of the links.
FILES = {
    "run": (
        r"config\.yaml|metrics\.jsonl|clients\.arrows|uploads\.arrows|(fork|influence)\.json|summary\.json|failure\.txt|run\.log|metrics\.csv|\.lock|\.address|run\.json",
        rf"(checkpoints|best)/{ROUND}(\.unfinished|\.unusable\d*)?/(state\.safetensors|state\.json|metrics\.jsonl)",
        rf"records/{ROUND}\.safetensors|code/[0-9a-f]{{8}}/.+\.py|tensorboard/events\.out\.tfevents\..+|wandb/.+",
        rf"export/(best-\w+/)?((models|beside)\.safetensors|predictions(-domains)?\.arrow)|{REPORT}",
    ),
    "store": (
        rf"{BELOW}(manifest\.json|progress\.jsonl|assignment\.npy|nodes/ids\.arrow|\.lock)",
        rf"{BELOW}(clients|(splits|hops)/[^/]+)/\d{{5,}}(-\d{{5,}})?\.arrow",
        rf"{BELOW}tables/(clients|(splits|hops)/[^/]+)\.arrow",
    ),
    "sweep": (rf"(sweep|search|forecast)\.json|table\.(csv|parquet|json)|said/[^/]+\.txt|{REPORT}",),
}
LINKS = {"run": "wandb/.+", "store": rf"{BELOW}(clients|nodes|(splits|hops)/[^/]+)", "sweep": "runs/[^/]+"}
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
        written, links = re.compile(f"({'|'.join(FILES[kind])})(\\.unfinished)?"), re.compile(LINKS[kind])
        own: list[Path] = []
        others: list[Path] = []
        for folder, folders, names in os.walk(root, onerror=_raise):
            for path in (Path(folder, name) for name in (*names, *folders)):
                mode, place = path.lstat().st_mode, path.relative_to(root).as_posix()
                if S_ISLNK(mode):
                    (own if links.fullmatch(place) else others).append(path)
                elif path.name not in folders:
                    (own if S_ISREG(mode) and written.fullmatch(place) else others).append(path)
        last = (MARKS[kind], LOCK)
        return sorted(own, key=lambda path: last.index(path.name) + 1 if path.name in last else 0), sorted(others)

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
    if kind is None:
        raise ShoalError(path, "neither a store, a run nor a sweep; remove other folders by hand")
    read: dict[str, Callable[[Path], object]] = {"run": _require_run, "store": read_manifest, "sweep": read_rows}
    try:
        read[kind](path)
    except ShoalError:
        raise ShoalError(
            path / MARKS[kind], "is not as Shoal writes it; remove what Shoal did not write by hand"
        ) from None
    return Kept(kind, path)


def _require_run(folder: Path) -> None:
    """Raises ShoalError: the config is not as a run kept it, or was copied to where no run is."""
    name = require_as_kept(folder / CONFIG)
    # A run folder may have another name by now.
    if (new_run(folder) is None or name not in (None, folder.name)) and not read_metrics(folder):
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
    """Runs of a sweep that no other sweep in its folder has; what is another one by now stays, with a line."""
    others = {
        Path(row.run).resolve()
        for other in sweep.resolve().parent.iterdir()
        if other != sweep.resolve() and is_sweep(other)
        for row in read_rows(other)
    }
    found = []
    for run in (Path(row.run) for row in read_rows(sweep)):
        if run.resolve() in others or not os.path.lexists(run):
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
