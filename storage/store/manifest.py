"""manifest.json and its tables: what a store holds. It is written after what it names, and seals the tables.

A folder without it has no finished shards.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import SEAL, sealed, unsealed
from shoal.storage.files.digest import text_digest
from shoal.storage.files.names import FOLDER, place_in, require_name
from shoal.storage.files.reading import cannot_read, read_bytes
from shoal.storage.graph.edges.kinds import Kinds
from shoal.storage.graph.layout import Layout
from shoal.storage.graph.rows import dense_bytes, sparse_bytes
from shoal.storage.graph.targets import Scale, describe_outputs
from shoal.storage.options.target_names import CLASSIFICATION, Target
from shoal.storage.shards.arrow_file import FileRecord, read_record
from shoal.storage.shards.bounds import Limits
from shoal.storage.store.client_table import TABLES, BoundaryRecord, ClientRecord, Clients, Files, SplitRecord, Table

# Formats of the manifest, and of the one before, which had no tables: every client was in it.
FORMAT, WITHOUT_TABLES = 3, 2
NAME = "manifest.json"
# Each of these kinds has names in the manifest, and for every name a table and a folder.
KINDS = ("splits", "hops", "boundaries")
# Paths below a store of what is written here.
WRITTEN = (re.escape(NAME), rf"{TABLES}/(clients|({'|'.join(KINDS)})/{FOLDER})\.arrow")


@dataclass(frozen=True)
class CopiesRecord:
    """The counts of training graphs that share a node of the graph that they were cut out of, by a split.

    Attributes:
        mean: Over the nodes that lie in any, of all clients' training graphs.
        most: The most of them that one node lies in.
        clients: The most that are of one client, by client.
    """

    mean: float
    most: int
    clients: list[int]


@dataclass(frozen=True)
class DomainRecord:
    """A graph that some clients of a store come from.

    Attributes:
        nodes: Nodes of the whole graph, with those that no client holds.
        clients: The first of its clients, and how many there are, in the order of their numbers.
    """

    name: str
    nodes: int
    clients: list[int]

    @property
    def numbers(self) -> range:
        """Numbers of its clients."""
        first, count = self.clients
        return range(first, first + count)

    def __contains__(self, client: int) -> bool:
        return client in self.numbers


@dataclass(frozen=True)
class Manifest:
    """Everything a run needs to know of a store before it opens a shard.

    Attributes:
        identity: What this store was made from (dataset and partition), compared with a config.
        nodes: Nodes of the graph, or of all graphs.
        quality: Cut, balance, skew of the partition.
        clients: Sizes of all clients, and their shards.
        splits: Finished splits by name.
        hops: Finished hop features by kernel name.
        provenance: When and with what it was made, and where the user's graphs lay: `places`, a path or None each.
        published: Digest of every published file of the dataset, by its path below the data root.
        layout: Whether shards keep features dense or sparse; each hop of sparse ones is kept as it is smaller.
        feature_values: Values that all shards keep of sparse features; 0 for dense ones.
        graphs: Graphs of the dataset, where labels are of graphs; None: they are of nodes, or of pairs of them.
        pairs: Pairs of all clients, where labels are of pairs of nodes.
        label_names: What every class is called; None: classes are numbers.
        feature_names: What every feature of the user's own graph is called; None: that is not known.
        ids: File of what the user calls the nodes; None: they are 0 to N - 1.
        boundaries: Edges between clients, by the name of the choice of them.
        target: What labels are; `classes` is the number of targets where these are no classes.
        edge_features: Number of features of an edge; 0 where edges have none.
        edge_names: What every feature of edges is called; None: that is not known.
        kinds: `Kinds` of nodes and edges as plain values; None: edges have no features, or it was made before.
        copies: Where graphs were cut out of a large one, how many of them a node lies in, by split.
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
    clients: Clients
    splits: dict[str, SplitRecord] = field(default_factory=dict)
    hops: dict[str, Files] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    published: dict[str, str] = field(default_factory=dict)
    layout: Layout = "dense"
    feature_values: int = 0
    domains: list[DomainRecord] = field(default_factory=list)
    graphs: int | None = None
    pairs: int | None = None
    label_names: list[str] | None = None
    weighted: bool = False
    feature_names: list[str] | None = None
    ids: FileRecord | None = None
    copies: dict[str, CopiesRecord] = field(default_factory=dict)
    boundaries: dict[str, BoundaryRecord] = field(default_factory=dict)
    target: Target = CLASSIFICATION
    edge_features: int = 0
    edge_names: list[str] | None = None
    kinds: list[Any] | None = None

    @property
    def items(self) -> int:
        """Number of items: nodes, graphs, or pairs of nodes."""
        return count_of_items(self.nodes, self.graphs, self.pairs)

    @property
    def item_name(self) -> str:
        """Name of an item, for messages."""
        return "pair" if self.pairs is not None else "node" if self.graphs is None else "graph"

    @property
    def outputs(self) -> str:
        """Number of classes, or of targets, in words."""
        return describe_outputs(self.classes, self.target == CLASSIFICATION)

    @property
    def task(self) -> str:
        """The task of runs on this store."""
        return "edge" if self.pairs is not None else self.item_name

    @property
    def feature_bytes(self) -> int:
        """Bytes of the features of all shards."""
        if self.layout == "sparse":
            return sparse_bytes(self.nodes, self.feature_values, self.dtype)
        return dense_bytes(self.nodes, self.features, self.dtype)

    @property
    def relations(self) -> int:
        """Number of kinds of edges, where features of edges are kinds."""
        kinds = Kinds.read(self.kinds)
        return (0 if kinds is None else kinds.edges) or self.edge_features

    @property
    def limits(self) -> Limits:
        """Bounds for the files of all clients."""
        pairs, targets = self.pairs is not None, 0 if self.target == CLASSIFICATION else self.classes
        return Limits(
            self.nodes, self.features, self.classes, self.layout, self.graphs, pairs, self.weighted, targets,
            self.edge_features, self.relations,
        )  # fmt: skip

    def content(self, split: str, propagation: str | None) -> str:
        """Digests all that a run reads of a store, 32 digits; `propagation` is None for a run without hops."""
        read = {
            "identity": self.identity,
            "nodes": self.nodes,
            "features": self.features,
            "classes": self.classes,
            "dtype": self.dtype,
            "clients": [_plain(record) for record in self.clients] if self.pack == 1 else self.clients.digest,
            "split": self.splits[split].content(),
            "hops": self.hops[propagation].content() if propagation else [],
        }
        if self.layout != "dense":
            read["layout"] = self.layout
        if self.domains:
            read["domains"] = [asdict(domain) for domain in self.domains]
        return text_digest(json.dumps(read, sort_keys=True))

    @property
    def pack(self) -> int:
        """Clients that share a file; 1: each has files of its own."""
        return self.clients.files.pack

    def tables(self) -> Iterator[tuple[Path, Table]]:
        """Lists every table, and its path below the store."""
        yield table_path("clients"), self.clients
        named: tuple[Mapping[str, Table], ...] = (self.splits, self.hops, self.boundaries)
        for kind, several in zip(KINDS, named):
            for name, table in several.items():
                yield table_path(kind, name), table

    def write(self, store: Path) -> None:
        """Writes the tables that are missing, and the manifest atomically, with its seal.

        Raises ShoalError: the disk is full.
        """
        for path, table in self.tables():
            table.write(place_in(store, path))
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["clients"] = {"count": len(self.clients), "pack": self.pack, "table": self.clients.table}
        plain["splits"] = {
            name: {"unreachable": split.unreachable, "table": split.table, **_plain_rest(split)}
            for name, split in self.splits.items()
        }
        plain["hops"] = {name: {"table": files.table} for name, files in self.hops.items()}
        plain["boundaries"] = {name: {"table": record.table} for name, record in self.boundaries.items()}
        plain = {key: value for key, value in plain.items() if key not in USUAL or value != USUAL[key]}
        if self.layout == "dense":
            del plain["layout"], plain["feature_values"]
        with replacing(store / NAME) as unfinished:
            unfinished.write_text(sealed({"format": FORMAT, **plain}, indent=1))


def table_path(*names: str) -> Path:
    """Returns the path of a table inside a store: of `clients`, of `splits` or `hops` and a name."""
    return Path(TABLES, *names[:-1], f"{names[-1]}.arrow")


def count_of_items(nodes: int, graphs: int | None, pairs: int | None) -> int:
    """Counts items: pairs or graphs, where these have labels, else nodes."""
    return next(count for count in (pairs, graphs, nodes) if count is not None)


# Keys that came later: they are written only where they say more than this.
USUAL: dict[str, object] = {
    **dict.fromkeys(("label_names", "feature_names", "ids", "graphs", "pairs", "edge_names", "kinds")),
    **{"domains": [], "weighted": False, "copies": {}, "boundaries": {}, "target": CLASSIFICATION, "edge_features": 0},
}


def _plain_rest(split: SplitRecord) -> dict[str, Any]:
    """Returns what a manifest says of the numbers that are predicted, and of items that clients share, if any."""
    scale, distinct = split.scale, split.distinct
    of_scale = {} if scale is None else {"scale": [scale.mean_T.tolist(), scale.spread_T.tolist()]}
    return of_scale | ({} if distinct is None else {"distinct": distinct})


def _plain(record: ClientRecord) -> dict[str, Any]:
    """Returns the fields of a record as they are digested."""
    return {key: value for key, value in asdict(record).items() if key not in USUAL or value != USUAL[key]}


def read_manifest(store: Path) -> Manifest:
    """Reads the manifest of a store. Raises ShoalError: it is missing, unreadable, damaged, or of another version."""
    path = store / NAME
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        raise ShoalError(store, f"no {NAME}, so no finished store; run `shoal prepare` on the config") from None
    except OSError as error:
        raise cannot_read(path, error) from error
    damaged = "delete it and run `shoal prepare` again, finished shards are kept"
    try:
        raw = unsealed(text)
    except ValueError as error:
        without_seal = _without_seal(text)
        if without_seal is not None and without_seal.get("format") != 1:
            raise ShoalError(path, "is no manifest of Shoal; set data.store to another folder") from None
        if without_seal is not None:
            raise ShoalError(
                path,
                f"made by an older Shoal, which noted no checksums that can be compared at every run; "
                f"delete the folder {store} and run `shoal prepare` again, or set data.store to another folder",
            ) from None
        raise ShoalError(path, f"damaged ({error}); {damaged}") from error
    version = raw.pop("format", None)
    if version not in (FORMAT, WITHOUT_TABLES):
        raise ShoalError(
            path,
            f"not a manifest of format {FORMAT}, a newer Shoal may have made it; use that, "
            "or set data.store to another folder",
        )
    try:
        _require_names(path, raw)
        (_with_tables if version == FORMAT else _with_records)(raw, store)
        raw["ids"] = read_record(path, raw["ids"]) if raw.get("ids") else None
        raw["copies"] = {name: CopiesRecord(**record) for name, record in raw.get("copies", {}).items()}
        raw["domains"] = [DomainRecord(**domain) for domain in raw.get("domains", [])]
        return Manifest(**raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ShoalError(path, f"damaged ({error}); {damaged}") from error


def require_sealed(store: Path) -> None:
    """Raises ShoalError: the manifest of a store is missing, cannot be read, or has not our seal; no table is read."""
    path = store / NAME
    try:
        unsealed(read_bytes(path))
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        raise ShoalError(path, f"damaged ({error})") from None


def _require_names(where: object, raw: Mapping[str, Any]) -> None:
    """Raises ShoalError: a manifest names splits, hops or edges otherwise than we name them."""
    for kind in KINDS:
        for name in raw.get(kind, {}):
            require_name(where, name, FOLDER)


def tables_of(manifest: Path, where: object) -> list[tuple[Path, FileRecord]]:
    """Lists paths below the store, and records, of the tables that a manifest names; none if it is damaged.

    Args:
        manifest: A file of its content.
        where: What errors call it.

    Raises:
        ShoalError: It names what is no table of ours.
    """
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        raw = unsealed(read_bytes(manifest))
        _require_names(where, raw)
        named = {table_path("clients"): raw["clients"]}
        named |= {table_path(kind, name): record for kind in KINDS for name, record in raw.get(kind, {}).items()}
        return [(path, read_record(where, record["table"])) for path, record in named.items()]
    return []


def _with_tables(raw: dict[str, Any], store: Path) -> None:
    """Reads the tables that the manifest names."""

    def table(named: dict[str, Any], *names: str) -> tuple[dict[str, Any], FileRecord]:
        record = read_record(store / NAME, named["table"])
        return Table.read(store / table_path(*names), record, store / NAME), record

    pack = raw["clients"]["pack"]
    if not isinstance(pack, int) or pack < 1:
        raise TypeError(f"{pack!r} clients in a pack")
    columns, record = table(raw["clients"], "clients")
    raw["clients"] = Clients(columns, Files(pack, columns), record)
    for name, named in raw["splits"].items():
        columns, record = table(named, "splits", name)
        mean, spread = named.get("scale") or (None, None)
        scale = None if mean is None else Scale(np.array(mean), np.array(spread))
        raw["splits"][name] = SplitRecord(
            columns["counts"], named["unreachable"], Files(pack, columns), record, scale, named.get("distinct")
        )
    for name, named in raw["hops"].items():
        columns, record = table(named, "hops", name)
        raw["hops"][name] = Files(pack, columns, record)
    for name, named in raw.get("boundaries", {}).items():
        columns, record = table(named, "boundaries", name)
        raw["boundaries"][name] = BoundaryRecord(columns["counts"], Files(pack, columns), record)


def _with_records(raw: dict[str, Any], store: Path) -> None:
    """Does the same for a manifest without tables, which has a record a client."""

    def files(records: list[dict[str, Any]]) -> Files:
        return Files.of([read_record(store / NAME, record) for record in records])

    where = store / NAME
    raw["clients"] = Clients.of([ClientRecord(**{**c, "file": read_record(where, c["file"])}) for c in raw["clients"]])
    raw["splits"] = {
        name: SplitRecord(split["counts"], split["unreachable"], files(split["files"]))
        for name, split in raw["splits"].items()
    }
    raw["hops"] = {name: files(records) for name, records in raw["hops"].items()}


def _without_seal(text: bytes) -> dict[str, Any] | None:
    """Reads an object that never had a seal, of another program or of before there were seals; else None."""
    with suppress(ValueError, RecursionError):
        plain = json.loads(text)
        return plain if isinstance(plain, dict) and SEAL not in plain else None
    return None
