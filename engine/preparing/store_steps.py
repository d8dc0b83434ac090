"""The steps of a prepare: shards, splits, hops, a manifest after each. Every finished file survives an interruption."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.engine.config.config import Config
from shoal.engine.preparing.client_files import hops_memory, kept_rows, write_hops
from shoal.engine.screen.progress import progress, say
from shoal.engine.sections.sections import load_crossing
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import require_disk
from shoal.storage.files.names import place_in
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions
from shoal.storage.runner import Runner, Work, parts, runner
from shoal.storage.shards.arrow_file import FileRecord, Pack
from shoal.storage.shards.hops import hops_bytes
from shoal.storage.store.client_table import Clients, Files, SplitRecord, ranges, sizes
from shoal.storage.store.manifest import NAME, CopiesRecord, Manifest
from shoal.storage.store.store import IDS, Place, Store, hops_path, shard_path, split_path
from shoal.storage.store.writer import StoreWriter


def shards_on_disk(path: Path, manifest: Manifest) -> bool:
    """Returns whether every shard of a manifest, and the ids of nodes, are on disk."""
    ids = manifest.ids is None or (path / IDS).exists()
    return ids and _all_exist(path, shard_path, manifest.clients.files)


def split_on_disk(path: Path, manifest: Manifest, split: SplitOptions) -> bool:
    """Returns whether a split was made, and is on disk."""
    record = manifest.splits.get(split.split_name)
    return record is not None and _all_exist(path, partial(split_path, split.split_name), record.files)


def hops_on_disk(path: Path, manifest: Manifest, propagation: PropagationOptions) -> bool:
    """Returns whether hops were made, and are on disk."""
    if (folder := propagation.folder) is None:
        return True
    records = manifest.hops.get(folder)
    return records is not None and _all_exist(path, partial(hops_path, folder), records)


def _all_exist(store: Path, place: Place, files: Files) -> bool:
    """Returns whether all files of a kind exist. A deleted one is made again; a damaged one is found by `verify`."""
    return all((store / place(clients)).exists() for clients, _ in files.files())


class StoreSteps(ABC):
    """A prepare of a store folder; files that are on disk are kept."""

    def __init__(
        self, path: Path, made: dict[str, Any], published: Callable[[], dict[str, str]], config: Config
    ) -> None:
        """Reads the files of an earlier prepare; `published` gives digests of the files that the store is made from.

        Raises:
            ShoalError: The folder holds an unfinished store of other data, or is damaged.
        """
        self.path, self.made, self.config = path, made, config
        self.old = Store(path).manifest if (path / NAME).exists() else None
        # Digests are a part of the identity: a store must not have shards of files before and after a change.
        digests = self.old.published if self.old else published()
        self.writer = StoreWriter(path, {**made, "published": digests}, say)

    @abstractmethod
    def _shards(self) -> Manifest:
        """Makes the shards that are missing; returns the manifest of a store that has no split and no hops."""

    @abstractmethod
    def _splits(self, shards: Store, options: SplitOptions) -> SplitRecord:
        """Makes the split of every client."""

    def _copies(self, shards: Store, options: SplitOptions, split: SplitRecord) -> CopiesRecord | None:
        """Counts the training graphs that a node lies in, if that is known and may be more than one."""
        return None

    def run(self, split: SplitOptions, propagation: PropagationOptions) -> Store:
        """Makes shards, one split and one kernel's hops, as far as they are missing.

        The manifest is written after each, so that the next step needs neither the raw files nor their derivatives.
        """
        old = self.old
        if old is None:
            manifest = self._shards()
        elif shards_on_disk(self.path, old):
            manifest = old
        else:
            made = self._shards()
            manifest = replace(made, clients=old.clients, splits=old.splits, hops=old.hops, provenance=old.provenance)
            if made.clients != old.clients:
                raise ShoalError(
                    self.path,
                    "shards that were made again are not what they were, splits and hops are of others; "
                    "delete the folder and run `shoal prepare` again",
                )
        if manifest is not old:
            manifest.write(self.path)
        # Both steps read the same store, so that each shard is checked once.
        shards = Store(self.path, manifest=manifest)
        if not split_on_disk(self.path, manifest, split):
            record = self._splits(shards, split)
            copies = self._copies(shards, split, record)
            manifest = replace(
                manifest,
                splits={**manifest.splits, split.split_name: record},
                copies=manifest.copies if copies is None else {**manifest.copies, split.split_name: copies},
            )
            manifest.write(self.path)
        if not hops_on_disk(self.path, manifest, propagation):
            if propagation.boundaries:
                edges = {propagation.boundaries: load_crossing().make_boundaries(self, shards, propagation)}
                manifest = replace(manifest, boundaries={**manifest.boundaries, **edges})
                manifest.write(self.path)
                shards = Store(self.path, manifest=manifest)
            hops = self._hops(shards, propagation, str(propagation.folder))
            manifest = replace(manifest, hops={**manifest.hops, str(propagation.folder): hops})
            manifest.write(self.path)
        return Store(self.path)

    def _hops(self, shards: Store, propagation: PropagationOptions, folder: str) -> Files:
        manifest, count = shards.manifest, shards.clients
        place, of_all = partial(hops_path, folder), propagation.rows == "all" and not propagation.computed
        missing = self.list_missing(place, count, manifest.pack)
        files = self.list_files_to_see(missing)
        if of_all:
            rows = int(manifest.clients.count("nodes")[[client for pack in missing for client in pack]].sum())
        else:
            of_files = [manifest.clients.files.file(pack[0]).bytes for pack in missing]
            here, memory = runner(sum(of_files), self.path, files), max(of_files, default=0)
            counts = here.results(
                kept_rows, (shards, propagation), parts(missing, here.room(memory, memory).groups), memory
            )
            rows = sum(of_pack for _, of_pack in counts)
        needed = hops_bytes(rows, manifest.features, propagation, manifest.relations)
        require_disk(self.path, needed, "the hops")
        if not of_all and not propagation.computed:
            say(f"hops: kept for the labelled nodes and their neighbours, {rows:,} rows; methods see no other node")
        elif not of_all:
            say(f"hops: kept for the labelled nodes, {rows:,} rows; others are computed when a visit reads them")
        here, memory = runner(needed, self.path, files), hops_memory(manifest, propagation, missing)
        groups = parts(missing, here.room(memory, memory).groups)
        if propagation.boundaries:
            load_crossing().make_hops(self, shards, propagation, missing)
            return self.list_files(place, "hops", count, manifest.pack)
        self.make_files(f"hops {folder}", place, count, here, write_hops, (shards, propagation), groups, memory)
        return self.list_files(place, "hops", count, manifest.pack)

    def make_files(
        self,
        what: str,
        place: Place,
        clients: int,
        here: Runner,
        work: Work[range, FileRecord],
        given: Any,
        groups: Sequence[Sequence[range]],
        memory: int,
    ) -> None:
        """Lets groups of packs be written, and notes each that is done, of a store with so many clients."""
        done = clients - sum(len(pack) for group in groups for pack in group)
        with progress(what, clients, "clients", done) as step:
            for pack, record in here.results(work, given, groups, memory):
                self.writer.add(place(pack), record)
                step.advance(len(pack))

    def list_files_to_see(self, packs: Sequence[range]) -> list[Path]:
        """Returns files that a machine must see to read the shards of packs; in an overlay they are links."""
        return [self.path / shard_path(pack) for pack in packs[:1]]

    def list_missing(self, place: Place, clients: int, pack: int) -> list[range]:
        """Returns clients of every file of a kind that is not finished. Raises ShoalError: they would lie elsewhere."""
        missing = [packed for packed in ranges(clients, pack) if self.writer.finished(place(packed)) is None]
        if missing:
            place_in(self.path, place(missing[0]))
        return missing

    def list_files(self, place: Place, kind: str, clients: int, pack: int) -> Files:
        """Lists all files of a kind, which are finished."""
        places = [place(numbers) for numbers in ranges(clients, pack)]
        records = [record for record in map(self.writer.finished, places) if record is not None]
        return Files.of_packs([self.path / relative for relative in places], kind, records, clients, pack)

    def _clients(self, clients: int, pack: int, classes: int) -> tuple[Clients, int]:
        """Makes the table of all clients from finished shards, and counts their values of sparse features."""
        files = self.list_files(shard_path, "shard", clients, pack)
        packs = (Pack(self.path / shard_path(numbers), "shard") for numbers in ranges(clients, pack))
        columns, values = sizes(packs, classes)
        return Clients(columns, files), values
