"""Every file of a store against what was written of it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.shards.arrow_file import FileRecord, require_content
from shoal.storage.store.client_table import Files
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, stores_below
from shoal.storage.store.writer import PROGRESS, noted_files

OF_A_STORE = (NAME, PROGRESS, ".lock")


def verify(store: Store, step: Callable[[], None] = lambda: None) -> list[str]:
    """Lists a line for each fault of any byte of a store, journal or bound of indices; calls `step` once a file."""
    faults: list[str] = []
    for checks in _checks(store, faults):
        faults += _faults_of(checks)
        step()
    return faults


def _faults_of(checks: Sequence[Callable[[], object]]) -> list[str]:
    """Lists a line for each client with a fault in a file, or one for all clients of a file that have the same."""
    errors = []
    for check in checks:
        try:
            check()
        except ShoalError as error:
            errors.append(error)
    if 1 < len(checks) == len(errors) and len({error.args[-1] for error in errors}) == 1:
        errors = [ShoalError(errors[0].places[0], errors[0].args[-1])]
    # All faults share one way out.
    return [error.line.rpartition("; ")[0] for error in errors]


def files_to_verify(store: Store) -> int:
    """Counts the steps of `verify`."""
    return len(list(_checks(store, [])))


def unnamed_files(store: Store) -> list[Path]:
    """Lists files below a store that neither manifest nor journal names; those of stores below it are theirs."""
    named = {store.path / name for name in OF_A_STORE} | {store.path / path for path, _ in store.files()}
    named |= {store.path / path for path in _read_notes(store, [])}
    unnamed = (path for path in store.path.rglob("*") if path.is_file() and path not in named)
    below = stores_below(store.path)
    return sorted(path for path in unnamed if not any(path.is_relative_to(folder) for folder in below))


def _checks(store: Store, faults: list[str]) -> Iterator[Sequence[Callable[[], object]]]:
    """Lists the checks of each file: one call, or one a client."""
    # The store is opened anew, so that what was read before is read again.
    manifest = store.manifest
    fresh = Store(store.path, manifest=manifest)
    if manifest.ids is not None:
        yield [fresh.ids]
    kinds: list[tuple[Files, Callable[[int], object]]] = [(manifest.clients.files, fresh.shard)]
    kinds += [(split.files, partial(fresh.split, name)) for name, split in manifest.splits.items()]
    kinds += [(files, partial(fresh.hops_file, name)) for name, files in manifest.hops.items()]
    kinds += [(record.files, partial(fresh.boundary, name)) for name, record in manifest.boundaries.items()]
    for files, open_data in kinds:
        for clients, _ in files.files():
            yield [partial(open_data, client) for client in clients]
    for path, table in manifest.tables():
        if table.table is not None:
            yield [partial(require_content, store.path / path, table.table)]
    named = {path for path, _ in store.files()}
    for path, record in _read_notes(store, faults).items():
        # A file that the manifest does not name is made again where it is missing.
        if path not in named and (store.path / path).exists():
            yield [partial(require_content, store.path / path, record, PROGRESS)]


def _read_notes(store: Store, faults: list[str]) -> dict[Path, FileRecord]:
    try:
        return noted_files(store.path)
    except ShoalError as error:
        faults.append(error.line.rpartition("; ")[0])
        return {}
