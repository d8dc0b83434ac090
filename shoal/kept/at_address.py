"""Copies, lists, verifies and removes runs and stores at addresses."""

import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from shoal.engine.config.sizes import size
from shoal.engine.runs.remote_run import DRIVERS, LIST, Seat, copies_of, copy_of
from shoal.engine.runs.remote_run import THERE as THERE_OF_RUNS
from shoal.engine.runs.remote_run import WRITTEN as OF_LIST
from shoal.engine.runs.verify import verify_folder
from shoal.engine.screen.output import put
from shoal.engine.screen.progress import progress, say
from shoal.kept.listing import Kept, make_tables
from shoal.kept.removal import FILES
from shoal.storage.errors import FetchError, ShoalError
from shoal.storage.files.addresses import AT_ONCE, Folder, below
from shoal.storage.files.atomic import OF_UNFINISHED
from shoal.storage.files.places import COPIES, cache_folder
from shoal.storage.options.types import address_fault
from shoal.storage.store.manifest import NAME
from shoal.storage.store.remote_store import Remote, RemoteStore, files_below

# `THERE` has the paths that Shoal writes below an address, by kind; `MARKS` the file by which a kind is recognized.
THERE = {"run": (*THERE_OF_RUNS, *OF_LIST), "store": FILES["store"]}
MARKS = {"run": LIST, "store": NAME}


def local_copy(address: str) -> Path:
    """Copies a run or a store at an address to this machine: its small files, and manifests, as they are there now.

    Raises ShoalError: there is neither; FetchError.
    """
    kind = _kind(address)
    return copy_of(address) if kind == "run" else _store(address).path


def kept_at(address: str) -> list[Kept]:
    """Finds the run or the store at an address, or those in the folders there; says which of them cannot be read."""
    inside = [path for path, size in _folder(address).sizes().items() if size is None]
    # A name may have characters that have a meaning in an address.
    places = [address, *(below(address, quote(path)) for path in inside)]
    folders = []
    for place in places:
        try:
            if kind := _kind_of(Folder(place)):
                folders.append(Kept(kind, local_copy(place), _change(place)))
        except ShoalError as error:
            if place == address:
                raise
            say(error.line)
    return folders


def verify_at(address: str) -> None:
    """Reads all of a run or a store at an address. Raises as `verify_folder`."""
    place = str(_folder(address))
    if _kind(address) == "store":
        _verify_store(_store(address))
        return
    copies = cache_folder() / COPIES[0]
    copies.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=copies) as folder:
        try:
            path = copy_of(address, Path(folder))
            verify_folder(path, place)
        except FetchError:
            raise
        except ShoalError as error:
            raise ShoalError(error.line.replace(f"{folder}/{place.rpartition('/')[2]}", place)) from None


def _verify_store(store: RemoteStore) -> None:
    folder, files = Folder(store.remote.address), files_below(store.path)

    def fault(relative: Path, size: int, xxh3: str) -> str | None:
        try:
            same = folder.is_as(str(relative), size, xxh3)
        except FetchError as error:
            return error.line.rpartition("; ")[0]
        return None if same else f"{folder}/{relative}: is not what the manifest says"

    with ThreadPoolExecutor(AT_ONCE) as threads, progress(f"verify {store}", len(files), "files") as step:
        faults = []
        for line in threads.map(lambda file: fault(file[0], file[1].bytes, file[1].xxh3), files):
            faults += [line] if line else []
            step.advance()
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ShoalError(f"{faults[0]}{more}; delete {folder}/{NAME}, and `shoal prepare` makes all again")
    say(f"{store}: {len(files)} files, all as they were written")


def remove_at(addresses: Sequence[str], ask: Callable[[str], bool]) -> bool:
    """Removes runs and stores at addresses after asking once, with their copies on this machine. Gives whether it did.

    Only what Shoal wrote is removed; whatever else is there stays and is named. Refuses a run that is being written.
    """
    folders = [_find(address) for address in addresses]
    put("\n".join(table.text() for table in make_tables(folders)), end="")
    if not ask(f"remove {len(folders)} folder{'s' * (len(folders) > 1)}, {size(sum(kept.bytes for kept in folders))}?"):
        return False
    for address, kept in zip(addresses, folders):
        folder = _folder(address)
        if kept.kind == "run":
            with closing(Seat(folder)):
                _remove(folder, kept.kind)
            for path in copies_of(address):
                shutil.rmtree(path, ignore_errors=True)
        else:
            _remove(folder, kept.kind)
        folder.delete_if_empty()
    return True


def _find(address: str) -> Kept:
    """Finds a run or a store to remove, also where it cannot be copied any more since another removal began."""
    kind = _kind(address)
    try:
        path = local_copy(address)
    except ShoalError as error:
        say(error.line)
        path = copies_of(address)[0]
    return Kept(kind, path, _change(address))


def _remove(folder: Folder, kind: str) -> None:
    written = re.compile(f"({'|'.join(THERE[kind])})({OF_UNFINISHED})?")
    names = [name for name, info in folder.list_files(everything=True).items() if info.size is not None]
    written_here = [name for name in names if written.fullmatch(name) and not name.startswith(f"{DRIVERS}/")]
    # The marks come last, so that what an interruption leaves is still recognized and can be removed.
    written_here.sort(key=lambda name: name.endswith(MARKS[kind]))
    for name in written_here:
        folder.delete(name)
    others = sorted(set(names) - {name for name in names if written.fullmatch(name)})
    say(f"{folder}: stays with what Shoal did not write: {', '.join(others[:5])}" if others else f"removed: {folder}")


def _folder(address: str) -> Folder:
    if fault := address_fault(address):
        raise ShoalError(address, fault)
    return Folder(address)


def _kind(address: str) -> str:
    """Returns `run` or `store`, by what is at an address. Raises ShoalError: neither is there."""
    folder = _folder(address)
    kind = _kind_of(folder)
    if kind is None:
        raise ShoalError(str(folder), "neither a run nor a store; name the folder of one")
    return kind


def _kind_of(folder: Folder) -> str | None:
    names = folder.sizes()
    return next((kind for kind, name in MARKS.items() if name in names), None)


def _store(address: str) -> RemoteStore:
    store = Remote(address).find()
    assert store is not None
    return store


def _change(address: str) -> tuple[int, float]:
    infos = [info for info in Folder(address).list_files(everything=True).values() if info.size is not None]
    return sum(info.size for info in infos), max(info.mtime.timestamp() for info in infos)
