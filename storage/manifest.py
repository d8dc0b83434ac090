"""manifest.json: what a store holds. It is written after what it names; a folder without it has no finished shards."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from storage.arrow_file import FileRecord
from storage.atomic import replacing
from storage.digest import text_digest
from storage.errors import ShoalError

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class ClientRecord:
    """What a client's shard holds, known without opening it.

    Attributes:
        client: Number of the client.
        nodes: Rows of the shard.
        entries: Directed entries of its adjacency.
        labelled: Rows with a label.
        classes: Number of labelled rows of every class, `[C]`.
        file: Size and checksum of the shard.
    """

    client: int
    nodes: int
    entries: int
    labelled: int
    classes: list[int]
    file: FileRecord


@dataclass(frozen=True)
class SplitRecord:
    """Training, validation and test rows of every client, and what no client can learn from it.

    Attributes:
        counts: `[clients][3]` rows that train, validate, test.
        without_training: Clients without a training row.
        unreachable: Test rows whose class has no training row at their client, over all clients.
        files: Size and checksum of the split of every client.
    """

    counts: list[list[int]]
    without_training: list[int]
    unreachable: int
    files: list[FileRecord]


@dataclass(frozen=True)
class Manifest:
    """Everything a run needs to know of a store before it opens a shard.

    Attributes:
        identity: What this store was made from (dataset and partition), compared with a config.
        name: Name of the dataset.
        synthetic: True if the graph was generated and not published.
        nodes: Nodes of all clients.
        features: Width F of the features.
        classes: Number of classes C.
        dtype: How features are stored.
        cleaning: What was done to the edges as published.
        quality: Cut, balance, skew of the partition.
        clients: One record a client, by number.
        splits: Finished splits by name.
        hops: Finished hop features: a record a client, by kernel name.
        provenance: Versions and date.
        published: Digest of every published file of the dataset, by its path below the data root.
    """

    identity: dict[str, Any]
    name: str
    synthetic: bool
    nodes: int
    features: int
    classes: int
    dtype: str
    cleaning: dict[str, int]
    quality: dict[str, Any]
    clients: list[ClientRecord]
    splits: dict[str, SplitRecord] = field(default_factory=dict)
    hops: dict[str, list[FileRecord]] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)

    def content(self, split: str, kernel: str | None) -> str:
        """Digest of all that a run reads, 32 digits: what it was made from, its sizes and the checksums of its files.

        Args:
            split: Name of the split.
            kernel: Name of the hops; None: none are read.
        """
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("splits", "hops", "provenance")}
        kept["clients"] = [asdict(client) for client in self.clients]
        kept["split"] = asdict(self.splits[split])
        kept["hops"] = None if kernel is None else [asdict(file) for file in self.hops[kernel]]
        return text_digest(json.dumps(kept, sort_keys=True))

    def write(self, store: Path) -> None:
        """Writes the manifest atomically.

        Raises:
            ShoalError: The disk is full.
        """
        with replacing(store / NAME) as unfinished:
            unfinished.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1))


def read_manifest(store: Path) -> Manifest:
    """Reads the manifest of a store.

    Raises:
        ShoalError: There is none, or it is damaged or of another version.
    """
    path = store / NAME
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise ShoalError(f"{store}: no {NAME}, so no finished store; run `shoal prepare` on the config") from None
    except (ValueError, OSError) as error:
        raise ShoalError(
            f"{path}: damaged ({error}); delete it and run `shoal prepare` again, finished shards are kept"
        ) from error
    if not isinstance(raw, dict) or raw.pop("format", None) != FORMAT:
        raise ShoalError(f"{path}: not a manifest of format {FORMAT}; delete the store and run `shoal prepare` again")
    try:
        raw["clients"] = [ClientRecord(**{**c, "file": FileRecord(**c["file"])}) for c in raw["clients"]]
        raw["splits"] = {
            name: SplitRecord(**{**s, "files": [FileRecord(**f) for f in s["files"]]})
            for name, s in raw["splits"].items()
        }
        raw["hops"] = {name: [FileRecord(**f) for f in files] for name, files in raw["hops"].items()}
        return Manifest(**raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ShoalError(
            f"{path}: damaged ({error}); delete it and run `shoal prepare` again, finished shards are kept"
        ) from error
