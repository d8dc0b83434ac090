"""A store at an address: its manifests on this machine, and each file in the cache from when it is first opened."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from shoal.storage.errors import FetchError
from shoal.storage.files.addresses import AT_ONCE, Folder
from shoal.storage.files.digest import text_digest
from shoal.storage.files.names import place_in, require_name
from shoal.storage.files.object_cache import ObjectCache
from shoal.storage.files.places import cache_folder
from shoal.storage.progress import step
from shoal.storage.shards.arrow_file import FileRecord, record_of
from shoal.storage.store.manifest import NAME, tables_of
from shoal.storage.store.store import DOMAINS, TRAINING, WHOLE, Store, stores_below


@dataclass(frozen=True)
class Remote:
    """A store at an address, as the command found it and as hosts open it.

    Attributes:
        cache: Folder of each machine for what it reads; None: below its `cache_folder`.
        limit: Bytes of the cache; None: as of `ObjectCache`.
        manifests: Records of the manifests of the store and of those below it, and of their tables, by path; none
            before it is found.
    """

    address: str
    cache: str | None = None
    limit: int | None = None
    manifests: tuple[tuple[str, FileRecord], ...] = ()

    def __str__(self) -> str:
        return str(Folder(self.address))

    def cache_here(self) -> Path:
        """Returns the folder of the cache on this machine."""
        return cache_folder() / "stores" if self.cache is None else Path(self.cache)

    def scratch(self) -> Path:
        """Returns the folder in which this machine makes the store, or what is missing of it, before it is sent."""
        return self.cache_here() / "prepare" / text_digest(self.address) / "store"

    def find(self) -> "RemoteStore | None":
        """Finds the store as it is there now; None where there is none. Raises FetchError."""
        folder, cache = Folder(self.address), ObjectCache(self.cache_here(), self.limit)
        records = {}
        with cache.writing(), TemporaryDirectory(dir=cache.folder) as new:
            for number, (relative, size) in enumerate(_manifests(folder, "")):
                file = Path(new) / str(number)
                folder.fetch(relative, size, None, file)
                records[relative] = record_of(file)
                cache.get(records[relative].xxh3, size, partial(shutil.copyfile, file))
                # Its tables lie beside it on every machine.
                for table, record in tables_of(file, f"{folder}/{relative}"):
                    records[str(PurePosixPath(relative).parent / table)] = record
        return replace(self, manifests=tuple(records.items())).open() if NAME in records else None

    def open(self) -> "RemoteStore":
        """Opens the store on this machine. Raises FetchError: manifests changed, or are out of reach."""
        return RemoteStore(self, Folder(self.address), ObjectCache(self.cache_here(), self.limit))


def _manifests(folder: Folder, below: str) -> Iterator[tuple[str, int]]:
    """Lists paths and sizes of the manifests of a store, and of the stores below it."""
    for path, size in folder.sizes(below).items():
        name, outer = PurePosixPath(path).name, PurePosixPath(path).parent.name
        if size is not None and name == NAME:
            yield path, size
        elif size is None and (name in (WHOLE, DOMAINS, TRAINING) or outer == TRAINING):
            yield from _manifests(folder, path)


class RemoteStore:
    """The files of a store at an address, which this process reads through the cache of its machine.

    Attributes:
        path: A folder with the manifests, as in a store; it has no other files.
    """

    def __init__(self, remote: Remote, folder: Folder, cache: ObjectCache) -> None:
        """Fetches the manifests. Raises FetchError."""
        self.remote, self._folder, self._cache = remote, folder, cache
        self.path = cache.folder / "manifests" / text_digest(f"{remote.address} {remote.manifests}")
        for name, record in remote.manifests:
            require_name(remote, name)
            here, link = self.fetch(Path(name), record), place_in(self.path, Path(name).parent) / Path(name).name
            # Other processes make the same link.
            new = link.with_name(f"{link.name}.{os.getpid()}")
            with cache.writing():
                link.parent.mkdir(parents=True, exist_ok=True)
                new.unlink(missing_ok=True)
                new.symlink_to(here)
                os.replace(new, link)

    def __str__(self) -> str:
        return str(self.remote)

    def store(self, below: Path = Path(), first_read: bool = True) -> Store:
        """Opens the store, or one below it."""
        return Store(self.path / below, first_read, remote=self)

    def fetch(self, relative: Path, record: FileRecord) -> Path:
        """Returns the path of a file in the cache. Raises FetchError."""
        fetch = partial(self._folder.fetch, str(relative), record.bytes, record.xxh3)
        return self._cache.get(record.xxh3, record.bytes, fetch)

    def link_into(self, scratch: Path) -> None:
        """Gives a folder the manifests and all files but hops, so that what is missing can be made there."""
        files = [file for file in files_below(self.path) if "hops" not in file[0].parts]
        files += [(Path(name), record) for name, record in self.remote.manifests]
        with ThreadPoolExecutor(AT_ONCE) as threads, self._cache.writing():
            for (relative, _), here in zip(files, threads.map(lambda file: self.fetch(*file), files)):
                (scratch / relative).parent.mkdir(parents=True, exist_ok=True)
                (scratch / relative).unlink(missing_ok=True)
                os.link(here, scratch / relative)


def files_below(path: Path) -> list[tuple[Path, FileRecord]]:
    """Lists files of a store and of the stores below it, but their manifests, with records; relative paths."""
    stores = [Store(folder) for folder in (path, *stores_below(path))]
    return [(store.path.relative_to(path) / relative, record) for store in stores for relative, record in store.files()]


def publish(remote: Remote, old: RemoteStore | None) -> None:
    """Sends what was made in the scratch folder to the address, manifests last; it then moves into the cache.

    Files that the `old` store there has stay. Raises FetchError.
    """
    folder, cache, scratch = Folder(remote.address), ObjectCache(remote.cache_here(), remote.limit), remote.scratch()
    there = set(files_below(old.path)) if old is not None else set()
    files = [file for file in files_below(scratch) if file not in there]
    with ThreadPoolExecutor(AT_ONCE) as threads, step("send", len(files), "files") as advance:
        for _ in threads.map(lambda file: folder.send(str(file[0]), scratch / file[0]), files):
            advance(1)
    for store in (*stores_below(scratch), scratch):
        folder.send(str((store / NAME).relative_to(scratch)), store / NAME)
    # A full cache is no fault of the store: it can be fetched.
    with suppress(FetchError):
        for relative, record in files:
            cache.get(record.xxh3, record.bytes, partial(os.replace, scratch / relative))
    shutil.rmtree(scratch)
