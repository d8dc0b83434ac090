"""Every file of a store against what was written of it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.store.arrow_file import FileRecord, require_content
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, stores_below
from shoal.storage.store.writer import PROGRESS, noted_files

OF_A_STORE = (NAME, PROGRESS, ".lock")


def verify(store: Store, step: Callable[[], None] = lambda: None) -> list[str]:
    """A line for each fault of any byte of a store, journal or bound of indices; calls `step` once a file."""
    faults: list[str] = []
    for check in _checks(store, faults):
        try:
            check()
        except ShoalError as error:
            # One way out for all faults.
            faults.append(error.line.rpartition("; ")[0])
        step()
    return faults


def files_to_verify(store: Store) -> int:
    """Number of steps of `verify`."""
    return len(list(_checks(store, [])))


def unnamed_files(store: Store) -> list[Path]:
    """Files below a store that neither manifest nor journal name; those of stores below it are theirs."""
    known = {store.path / name for name in OF_A_STORE} | {store.path / path for path, _ in store.files()}
    known |= {store.path / path for path in _noted(store, [])}
    found = (path for path in store.path.rglob("*") if path.is_file() and path not in known)
    below = stores_below(store.path)
    return sorted(path for path in found if not any(path.is_relative_to(folder) for folder in below))


def _checks(store: Store, faults: list[str]) -> Iterator[Callable[[], object]]:
    # Opened anew, so that what was read before is read again.
    fresh = Store(store.path, manifest=store.manifest)
    if store.manifest.ids is not None:
        yield fresh.ids
    for client in range(store.clients):
        yield partial(fresh.shard, client)
        for split in store.manifest.splits:
            yield partial(fresh.split, split, client)
        for propagation in store.manifest.hops:
            yield partial(fresh.hops_file, propagation, client)
    named = {path for path, _ in store.files()}
    for path, record in _noted(store, faults).items():
        # What the manifest does not name is made again where it is missing.
        if path not in named and (store.path / path).exists():
            yield partial(require_content, store.path / path, record, PROGRESS)


def _noted(store: Store, faults: list[str]) -> dict[Path, FileRecord]:
    try:
        return noted_files(store.path)
    except ShoalError as error:
        faults.append(error.line.rpartition("; ")[0])
        return {}
