"""What of a store is on disk, as its manifest says it should be."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from storage.arrow_file import FileRecord
from storage.kernel import Kernel
from storage.manifest import Manifest
from storage.split_options import SplitOptions
from storage.store import hops_path, shard_path, split_path


def shards_on_disk(path: Path, manifest: Manifest) -> bool:
    """Whether every shard of a manifest is on disk."""
    return _all_exist(path, shard_path, [client.file for client in manifest.clients])


def split_on_disk(path: Path, manifest: Manifest, split: SplitOptions) -> bool:
    """Whether a split was made, and is on disk."""
    record = manifest.splits.get(split.split_name)
    return record is not None and _all_exist(path, partial(split_path, split.split_name), record.files)


def hops_on_disk(path: Path, manifest: Manifest, kernel: Kernel) -> bool:
    """Whether hops were made, and are on disk."""
    records = manifest.hops.get(kernel.name)
    return not kernel.stored or (records is not None and _all_exist(path, partial(hops_path, kernel.name), records))


def _all_exist(store: Path, place: Callable[[int], Path], records: Sequence[FileRecord]) -> bool:
    """Whether all files of one kind exist; a deleted one is made again. Whether they are sound is for `verify`."""
    return all((store / place(client)).exists() for client in range(len(records)))
