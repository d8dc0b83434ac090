"""Verifies the checksums of a store, with the stores below it, or of a run folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from shoal.engine.records.verify_run import is_run, verify_run
from shoal.engine.screen.progress import progress
from shoal.engine.screen.tables import console
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, stores_below
from shoal.storage.store.verify import files_to_verify, unnamed_files, verify


def verify_folder(path: Path) -> None:
    """Checks every file; of a store, names the files that belong to nothing.

    Raises:
        ShoalError: A file is damaged or missing; the first one and how many more.
    """
    faults: list[str] = []
    if not (path / NAME).exists() and is_run(path):
        faults = verify_run(path)
        if faults:
            _refuse(faults, "shoal run with --resume continues from the files that are sound")
        console.print(f"{path}: all files as the run wrote them", soft_wrap=True)
        return
    for folder in (path, *stores_below(path)):
        faults += _verify(Store(folder))
    if faults:
        _refuse(faults, "delete the damaged files and run `shoal prepare` again")


def _refuse(faults: Sequence[str], advice: str) -> NoReturn:
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise ShoalError(f"{faults[0]}{more}; {advice}")


def _verify(store: Store) -> list[str]:
    files = files_to_verify(store)
    with progress(f"verify {store.path}", files, "files") as step:
        faults = verify(store, step.advance)
    for path in unnamed_files(store):
        console.print(f"{path}: nothing names this file, and no run reads it", soft_wrap=True)
    if faults:
        for fault in faults:
            console.print(fault, soft_wrap=True)
    else:
        console.print(f"{store.path}: {files} files, all as they were written", soft_wrap=True)
    return faults
