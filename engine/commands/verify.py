"""A store, and that of the whole graph below it, against what was written of them."""

from pathlib import Path

from engine.screen.progress import progress
from engine.screen.report import console
from storage.errors import ShoalError
from storage.manifest import NAME
from storage.store import WHOLE, Store
from storage.verify import files_to_verify, unnamed_files, verify


def verify_stores(path: Path) -> None:
    """Checks every file there is, and names those that belong to nothing.

    Raises:
        ShoalError: A file is damaged or missing; the first one and how many more.
    """
    faults: list[str] = []
    for folder in (path, path / WHOLE):
        if folder == path or (folder / NAME).exists():
            faults += _verify(Store(folder))
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ShoalError(f"{faults[0]}{more}; delete the damaged files and run `shoal prepare` again")


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
