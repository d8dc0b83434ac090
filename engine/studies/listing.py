"""Finds, describes and removes folders of runs, sweeps and stores."""

import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.config.config import load_config
from shoal.engine.config.sizes import size
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.overlay import store_or_overlay
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import CONFIG, finished, read_summary, started
from shoal.engine.screen.progress import say
from shoal.engine.studies.sweep_folder import SWEEP, figures_of, is_sweep, read_rows, title_of
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import LOCK
from shoal.storage.store.manifest import NAME as MANIFEST
from shoal.storage.store.manifest import read_manifest


@dataclass(frozen=True)
class Kept:
    """A folder that Shoal wrote.

    Attributes:
        kind: `store`, `run` or `sweep`.
        path: The folder.
    """

    kind: str
    path: Path

    @property
    def bytes(self) -> int:
        """Size of all files in it, without those that links lead to."""
        return sum(file.lstat().st_size for file in self.path.rglob("*") if file.is_file() and not file.is_symlink())


def kind_of(path: Path) -> str | None:
    """`store`, `run` or `sweep`; None of a folder that is none of these."""
    if is_sweep(path):
        return "sweep"
    if (path / MANIFEST).exists():
        return "store"
    # The lock tells a run's config from a user's own.
    return "run" if all((path / name).exists() for name in (CONFIG, LOCK)) else None


def kept_in(root: Path) -> Iterator[Kept]:
    """Folders of Shoal in a folder, and in its `sweeps` and `stores`; in the order of names."""
    for folder in (root, root / "sweeps", root / "stores"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            kind = kind_of(path) if path.is_dir() else None
            if kind is not None:
                yield Kept(kind, path)


def listed(found: list[Kept]) -> TextTable:
    """A row for each folder: kind, name, age, size, state, and content or result. Damage is in the row."""
    rows = [(each.kind, each.path.name, _age(each.path), size(each.bytes), *_state(each)) for each in found]
    heads = ("kind", "name", "age", "size", "state", "what")
    return TextTable(heads, tuple(rows), len(heads), notes=() if rows else ("no runs, sweeps or stores",))


def _state(each: Kept) -> tuple[str, str]:
    try:
        return {"run": _of_run, "store": _of_store, "sweep": _of_sweep}[each.kind](each.path)
    except ShoalError as error:
        return "damaged", str(error)


def _of_run(path: Path) -> tuple[str, str]:
    config = load_config(path)
    graph = config.data.name or config.data.dataset
    what = f"{config.algorithm.name} on {graph}, {config.partition.clients} clients, seed {config.seed}"
    if not finished(path):
        return ("unfinished" if started(path) else "not begun"), what
    figures = figures_of(read_summary(path))
    scope = next((scope for scope in ("served", "trained", "global") if f"{scope}.best.test" in figures), None)
    reached = "" if scope is None else f": {100 * figures[f'{scope}.best.test']:.2f} % {scope}"
    return "finished", what + reached


def _of_store(path: Path) -> tuple[str, str]:
    manifest = read_manifest(path)
    return "finished", f"{manifest.name}, {len(manifest.clients)} clients, {manifest.nodes:,} nodes"


def _of_sweep(path: Path) -> tuple[str, str]:
    rows = read_rows(path)
    done = sum(row.state in ("finished", "not chosen") for row in rows)
    return ("finished" if done == len(rows) else f"{done} of {len(rows)}"), title_of(path)


def _age(path: Path) -> str:
    """Time since its newest file was written."""
    names = (path / name for name in (SWEEP, MANIFEST, METRICS, CONFIG))
    newest = max((file.stat().st_mtime for file in names if file.exists()), default=path.stat().st_mtime)
    seconds = max(time.time() - newest, 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def remove(paths: Sequence[Path], ask: Callable[[str], bool]) -> bool:
    """Removes folders after asking once; of a sweep also the runs that are in no other sweep.

    Returns:
        Whether they were removed.

    Raises:
        ShoalError: A path is none of Shoal's folders, a run is being written, or a folder cannot be removed.
    """
    wanted: dict[Path, Kept] = {}
    for path in paths:
        kind = kind_of(path)
        if kind is None:
            raise ShoalError(path, "neither a store, a run nor a sweep; remove other folders by hand")
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
        raise ShoalError(run, "is being written by a run; stop that first") from None
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
        raise ShoalError(error.filename, f"cannot be removed: {error.strerror}; remove it by hand") from error
    say(f"removed: {path}")
