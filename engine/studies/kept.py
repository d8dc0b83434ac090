"""What lies in folders of runs and stores: found, described, and who else needs it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.records.metrics import METRICS
from engine.records.run_folder import CONFIG, LOCK, finished, read_summary, started
from engine.settings.config import load_config
from engine.settings.sizes import size
from engine.studies.run_figures import figures_of
from engine.studies.sweep_folder import SWEEP, is_sweep, read_rows, title_of
from engine.studies.text_table import TextTable
from storage.errors import ShoalError
from storage.manifest import NAME as MANIFEST
from storage.manifest import read_manifest


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
    """What lies in a folder, and in `sweeps` and `stores` of it; in the order of names."""
    for folder in (root, root / "sweeps", root / "stores"):
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            kind = kind_of(path) if path.is_dir() else None
            if kind is not None:
                yield Kept(kind, path)


def listed(found: list[Kept]) -> TextTable:
    """A row each: kind, name, age, size, state, and what it is or came to. What is damaged says so in its row."""
    rows = [(each.kind, each.path.name, _age(each.path), size(each.bytes), *_state(each)) for each in found]
    heads = ("kind", "name", "age", "size", "state", "what")
    return TextTable(heads, tuple(rows), len(heads), notes=() if rows else ("nothing is here",))


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
    """Since the newest of its own files was written."""
    names = (path / name for name in (SWEEP, MANIFEST, METRICS, CONFIG))
    newest = max((file.stat().st_mtime for file in names if file.exists()), default=path.stat().st_mtime)
    seconds = max(time.time() - newest, 0)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
