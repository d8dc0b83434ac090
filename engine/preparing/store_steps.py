"""The steps of a prepare: shards, splits, hops, a manifest after each. Every finished file survives an interruption."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.config.config import Config
from shoal.engine.preparing.client_files import kept_rows, write_client_hops
from shoal.engine.screen.progress import progress, say
from shoal.storage.errors import ShoalError
from shoal.storage.files.disk import require_disk
from shoal.storage.graph.rows import CsrRows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions
from shoal.storage.runner import parts, runner
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.hops import hop_memory, hops_bytes
from shoal.storage.store.manifest import NAME, ClientRecord, CopiesRecord, Manifest, SplitRecord
from shoal.storage.store.shard import open_shard
from shoal.storage.store.store import IDS, Store, hops_path, shard_path, split_path
from shoal.storage.store.writer import StoreWriter


def shards_on_disk(path: Path, manifest: Manifest) -> bool:
    """Whether every shard of a manifest, and the ids of nodes, are on disk."""
    ids = manifest.ids is None or (path / IDS).exists()
    return ids and _all_exist(path, shard_path, [client.file for client in manifest.clients])


def split_on_disk(path: Path, manifest: Manifest, split: SplitOptions) -> bool:
    """Whether a split was made, and is on disk."""
    record = manifest.splits.get(split.split_name)
    return record is not None and _all_exist(path, partial(split_path, split.split_name), record.files)


def hops_on_disk(path: Path, manifest: Manifest, propagation: PropagationOptions) -> bool:
    """Whether hops were made, and are on disk."""
    records = manifest.hops.get(propagation.name)
    return not propagation.stored or (
        records is not None and _all_exist(path, partial(hops_path, propagation.name), records)
    )


def _all_exist(store: Path, place: Callable[[int], Path], records: Sequence[FileRecord]) -> bool:
    """Whether all files of one kind exist; a deleted one is made again. Whether they are sound is for `verify`."""
    return all((store / place(client)).exists() for client in range(len(records)))


class StoreSteps(ABC):
    """One prepare of one store folder; what is on disk is kept."""

    def __init__(
        self, path: Path, made: dict[str, Any], published: Callable[[], dict[str, str]], config: Config
    ) -> None:
        """Reads what an earlier prepare left; `published` gives the digests of the files that the store is made from.

        Raises:
            ShoalError: The folder holds an unfinished store of something else, or is damaged.
        """
        self.path, self.made, self.config = path, made, config
        self.old = Store(path).manifest if (path / NAME).exists() else None
        # Files that change while a prepare is interrupted would give shards of two graphs.
        found = self.old.published if self.old else published()
        self.writer = StoreWriter(path, {**made, "published": found}, say)

    @abstractmethod
    def _shards(self) -> Manifest:
        """Makes the shards that are missing; gives the manifest of a store that has no split and no hops."""

    @abstractmethod
    def _splits(self, shards: Store, options: SplitOptions) -> SplitRecord:
        """Makes the split of every client."""

    def _copies(self, shards: Store, options: SplitOptions, split: SplitRecord) -> CopiesRecord | None:
        """How many training graphs a node lies in, where that is known and may be more than one."""
        return None

    def run(self, split: SplitOptions, propagation: PropagationOptions) -> Store:
        """Makes shards, one split and one kernel's hops, as far as they are missing.

        The manifest is written after each, so that what comes next needs neither the raw files nor their derivatives.
        """
        old = self.old
        if old is None:
            manifest = self._shards()
        elif shards_on_disk(self.path, old):
            manifest = old
        else:
            manifest = replace(self._shards(), splits=old.splits, hops=old.hops, provenance=old.provenance)
            if manifest.clients != old.clients:
                raise ShoalError(
                    self.path,
                    "shards that were made again are not what they were, splits and hops are of others; "
                    "delete the folder and run `shoal prepare` again",
                )
        if manifest is not old:
            manifest.write(self.path)
        # One for both, so that each shard is checked once.
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
            manifest = replace(manifest, hops={**manifest.hops, propagation.name: self._hops(shards, propagation)})
            manifest.write(self.path)
        return Store(self.path)

    def _hops(self, shards: Store, propagation: PropagationOptions) -> list[FileRecord]:
        manifest = shards.manifest
        missing = [c for c in manifest.clients if self.writer.finished(hops_path(propagation.name, c.client)) is None]
        of_shards = sum(client.file.bytes for client in missing)
        files = self._seen(missing)
        if propagation.rows == "all":
            rows = sum(client.nodes for client in missing)
        else:
            here = runner(of_shards, self.path, files)
            memory = max((client.file.bytes for client in missing), default=0)
            found = here.results(kept_rows, shards, parts(missing, here.room(memory, memory).groups), memory)
            rows = sum(count for _, count in found)
        needed = hops_bytes(rows, manifest.features, propagation)
        require_disk(self.path, needed, "the hops")
        if propagation.rows == "labelled":
            say(f"hops: kept for the labelled nodes and their neighbours, {rows:,} rows; methods see no other node")
        count = len(manifest.clients)
        here = runner(needed, self.path, files)
        shape = manifest.features, propagation, manifest.weighted
        memory = max((hop_memory(client.nodes, client.entries, *shape) for client in missing), default=0)
        groups = parts(missing, here.room(memory, memory).groups)
        with progress(f"hops {propagation.name}", count, "clients", count - len(missing)) as step:
            for client, record in here.results(write_client_hops, (self.path, shards, propagation), groups, memory):
                self.writer.add(hops_path(propagation.name, client.client), record)
                step.advance()
        made = [self.writer.finished(hops_path(propagation.name, client)) for client in range(count)]
        return [file for file in made if file is not None]

    def _seen(self, clients: Sequence[ClientRecord]) -> list[Path]:
        """What a machine must see to read the shards of clients; in an overlay they are links."""
        return [self.path / shard_path(client.client) for client in clients[:1]]

    def _record(self, client: int, file: FileRecord, classes: int) -> ClientRecord:
        shard = open_shard(self.path / shard_path(client), client, file)
        label = shard.item_label
        labelled = label[label >= 0]
        counts = np.bincount(labelled, minlength=classes).tolist()
        graphs = None if shard.graph is None else shard.items
        pairs = None if shard.pairs is None else shard.items
        return ClientRecord(client, shard.nodes, shard.entries, len(labelled), counts, file, graphs, pairs)

    def _stored_values(self, clients: Sequence[ClientRecord]) -> int:
        """How many values shards keep of sparse features."""
        shards = (open_shard(self.path / shard_path(each.client), each.client, each.file) for each in clients)
        return sum(shard.x.entries for shard in shards if isinstance(shard.x, CsrRows))
