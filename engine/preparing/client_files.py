"""Shards, splits and hops of a pack of clients at a time, written by this process or by tasks of a cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, starmap
from pathlib import Path

import numpy as np
import pyarrow as pa

from shoal.engine.config.sections import DataConfig
from shoal.engine.preparing.alteration import Alteration, alter_shard
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_weights import weights_among
from shoal.storage.graph.gather import gather_features
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced, entries_among
from shoal.storage.graph.layout import Layout, stored_bytes
from shoal.storage.graph.pairs import OF_PAIR, Pairs
from shoal.storage.graph.rows import Rows
from shoal.storage.graph.targets import moments_of
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions
from shoal.storage.shards.arrow_file import FileRecord, Pack, write_pack
from shoal.storage.shards.hops import hop_columns, hop_memory, hops_bytes, rows_on_disk, training_graph
from shoal.storage.shards.shard import Shard, graph_columns, shard_columns, with_training_labels
from shoal.storage.shards.split import Split, from_codes, random_split, split_columns
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import Store, hops_path, shard_path, split_path
from shoal.storage.threads import ahead, batches, spread

PairsOf = Callable[[int, Induced], Pairs]


@dataclass(frozen=True)
class ShardSource:
    """The data that shards are made from.

    Attributes:
        path: Folder of the store.
        graph: The whole graph.
        assignment: Client of every node, int32 `[nodes]`; where nodes may have several, `[L, nodes]`, whose rows have
            consecutive clients, the same number each.
        kept: Number of neighbours of every node inside its client, int32, of the same shape.
        label: Label of every node, `[nodes]`.
        memory: Bytes to gather clients in.
        pairs_of: Makes the pairs of a client from its number and its graph; None: items are no pairs.
        target: Targets of every item, float32 `[items, T]`; None: classes are predicted.
        alterations: What features change of shards.
    """

    path: Path
    graph: Graph
    assignment: np.ndarray
    kept: np.ndarray
    label: np.ndarray
    layout: Layout
    data: DataConfig
    memory: int
    pairs_of: PairsOf | None
    target: np.ndarray | None
    alterations: Sequence[Alteration]


def shards_bytes(graph: Graph, layout: Layout, dtype: str, pairs: bool) -> int:
    """Bounds the bytes of the shards of a graph: edges between clients are dropped, and pairs are as few as edges.

    Splits, and the overhead of files, are not counted.
    """
    a_node = 16 if graph.graph_of is None else 24
    of_targets = 0 if graph.target is None else 4 * graph.classes * graph.items
    an_entry = 4 + (OF_PAIR if pairs else 0) + (0 if graph.edge_weight is None else 4)
    an_entry += 4 * graph.edge_features
    return stored_bytes(graph.x, layout, dtype) + a_node * graph.nodes + an_entry * graph.entries + of_targets


def write_shards(source: ShardSource, packs: Sequence[range]) -> Iterator[FileRecord]:
    """Writes the shards of some packs; yields each as it is done."""
    clients = [client for pack in packs for client in pack]
    columns = starmap(partial(_shard_columns, source), _gather(source, clients))
    # The next pack is made while a thread writes this one.
    for pack, several in ahead((pack, list(islice(columns, len(pack)))) for pack in packs):
        yield write_pack(source.path / shard_path(pack), "shard", several)


def _gather(source: ShardSource, clients: Sequence[int]) -> Iterator[tuple[int, Induced, Rows]]:
    """Gathers the graphs and the features of some clients, which ascend."""
    shape = source.data.dtype, source.memory, source.layout
    for client_N, kept_N in zip(np.atleast_2d(source.assignment), np.atleast_2d(source.kept)):
        here = clients if source.assignment.ndim == 1 else np.intersect1d(clients, client_N).tolist()
        if here:
            yield from gather_features(source.graph, client_N, kept_N, here, *shape)


def _shard_columns(source: ShardSource, client: int, part: Induced, x: Rows) -> dict[str, pa.Array]:
    graph, data = source.graph, source.data
    kept, pairs = part, None
    if source.pairs_of is not None:
        from shoal.storage.shards.held_out_edges import without_held_out  # for pairs alone

        pairs = source.pairs_of(client, part)
        kept = without_held_out(part, pairs)
    elif data.sparsity.edges or data.sparsity.features:
        from shoal.storage.shards.masking import without_edges, without_features  # where something is masked

        kept = without_edges(part, data.sparsity)
        x = without_features(x, kept.node, data.sparsity)
    kept, x = alter_shard(source.alterations, client, kept, x)
    weight = edge_attr = None
    if graph.edge_weight is not None:
        weight = weights_among(kept, graph.indptr, graph.indices, graph.edge_weight)
    if graph.edge_attr is not None:
        edge_attr = graph.edge_attr[entries_among(kept, graph.indptr, graph.indices)]
    return shard_columns(client, kept, source.label, x, graph.graph_of, pairs, weight, source.target, edge_attr)


def draw_pairs(data: DataConfig, sides: np.ndarray, limit: int, client: int, part: Induced) -> Pairs:
    """Draws the pairs of a client, by the side of every node `[nodes]`, in `limit` bytes of memory."""
    from shoal.storage.shards.held_out_edges import draw_pairs, require_room

    require_room(client, len(part.indices), limit)
    return draw_pairs(part, client, data, sides[part.node])


def pairs_of_all(clients: Store, nodes: int, limit: int, client: int, part: Induced) -> Pairs:
    """Collects the pairs of all clients that have nodes in a whole graph; the dataset has `nodes`.

    It takes `limit` bytes of memory.
    """
    from shoal.storage.shards.held_out_edges import require_room, union_of

    require_room(client, len(part.indices), limit)
    row_of = np.full(nodes, -1, dtype=np.int64)
    row_of[part.node] = np.arange(len(part.node))
    shards = map(clients.shard, range(clients.clients))
    # All nodes of a client are in one domain, so that the first one shows whether the graph has them.
    rows = ((row_of[shard.node], shard.pairs) for shard in shards)
    return union_of(len(part.node), [(of_row, pairs) for of_row, pairs in rows if of_row[0] >= 0 and pairs is not None])


@dataclass(frozen=True)
class SplitSource:
    """The data that splits are made from.

    Attributes:
        missing: Packs whose splits are not finished.
        code: Part of every item, int8 `[items]`; None: each client draws its split, or its pairs have it.
        sparsity: Masks training labels; None: it does not.
        alterations: What features change of splits.
        train_label: Label of every item as clients see it in training, int32 `[items]`, -1 where none trains it; None:
            that of the shard.
    """

    shards: Store
    missing: frozenset[range]
    options: SplitOptions
    code: np.ndarray | None
    sparsity: Sparsity | None
    alterations: Sequence[Alteration]
    train_label: np.ndarray | None


# The record of a pack's file, if it was missing; numbers of items that train, validate and test, `[n, 3]`; that of
# test items of classes that no training item of their client has; and of training items `moments_of` their targets.
MeasuredSplits = tuple[FileRecord | None, np.ndarray, int, np.ndarray | None]


def write_splits(source: SplitSource, packs: Sequence[range]) -> Iterator[MeasuredSplits]:
    """Writes the splits of some packs that are missing, and measures those of all; yields each as it is done."""
    options, what = source.options, source.shards.manifest.item_name
    for pack in packs:
        several = [source.shards.shard(client) for client in pack]
        path, record = source.shards.path / split_path(options.split_name, pack), None
        if pack in source.missing:
            record = write_pack(path, "split", (split_columns(_split_of(source, shard)) for shard in several))
        measured = Pack(path, "split")
        yield record, *_measure(measured, several, options, what), _moments(measured, several)


def _split_of(source: SplitSource, shard: Shard) -> Split:
    if shard.pairs is not None:
        return from_codes(shard.pairs.part)
    if source.code is None:
        split = random_split(shard.item_label, shard.item, shard.client, source.options)
    else:
        split = from_codes(source.code[shard.item])
    if source.sparsity is not None and source.sparsity.labels:
        from shoal.storage.shards.masking import without_labels

        split = without_labels(split, shard.item, source.sparsity)
    for alteration in source.alterations:
        split = alteration.alter_split(shard, split)
    if source.train_label is not None:
        label = source.train_label[shard.item[split.train]]
        split = replace(split, train_label=np.where(label < 0, shard.item_label[split.train], label))
    return split


def _measure(pack: Pack, shards: Sequence[Shard], options: SplitOptions, what: str) -> tuple[np.ndarray, int]:
    """Counts items of every part of some clients' splits, `[n, 3]`, and test items of classes that they do not train.

    Raises ShoalError: a part has unlabelled items.
    """
    rows = [pack.batch(number).column("rows") for number in range(len(pack))]
    counts = np.array([column.value_lengths() for column in rows]).reshape(-1, 3)
    owner = np.repeat(np.arange(3 * len(rows)), counts.ravel())
    client, part = owner // 3, owner % 3
    labels = [shard.item_label for shard in shards]
    first = np.cumsum([0, *map(len, labels)])[:-1]
    label = np.concatenate(labels)[first[client] + np.concatenate([column.values for column in rows])]
    if (label < 0).any():
        number = shards[client[label < 0][0]].client
        raise ShoalError(
            f"data.split {options.split}: client {number} has an unlabelled {what} in its split; mark it 0 (none)"
        )
    if "label" in pack.batch(0).schema.names:
        label[part == 0] = np.concatenate([pack.batch(number).column("label").flatten() for number in range(len(pack))])
    trains = np.zeros((len(rows), label.max(initial=0) + 1), dtype=bool)
    trains[client[part == 0], label[part == 0]] = True
    return counts, int((~trains[client[part == 2], label[part == 2]]).sum())


def _moments(pack: Pack, shards: Sequence[Shard]) -> np.ndarray | None:
    """Adds up what training items of some clients say of their targets, float64 `[3, T]`; None: there are none."""
    if shards[0].target is None:
        return None
    train = [pack.batch(number).column("rows")[0].values.to_numpy() for number in range(len(pack))]
    targets = (shard.target[rows] for shard, rows in zip(shards, train) if shard.target is not None)
    return np.sum([moments_of(target_nT) for target_nT in targets], axis=0)


def write_training_shards(given: tuple[Path, Store, str], packs: Sequence[range]) -> Iterator[FileRecord]:
    """Writes the graphs of the training nodes of some packs into a store."""
    path, clients, split = given
    for pack in packs:
        columns = (_training_columns(clients, split, client) for client in pack)
        yield write_pack(path / shard_path(pack), "shard", columns)


def _training_columns(clients: Store, split: str, client: int) -> dict[str, pa.Array]:
    rows = clients.split(split, client)
    shard = with_training_labels(clients.shard(client), rows)
    part, row = training_graph(shard, rows.train)
    weight = shard.edge_weight
    if weight is not None:
        weight = weights_among(replace(part, node=row), shard.indptr, shard.indices, weight)
    edge_attr = shard.edge_attr
    if edge_attr is not None:
        edge_attr = edge_attr[entries_among(replace(part, node=row), shard.indptr, shard.indices)]
    target = None if shard.target is None else shard.target[row]
    return graph_columns(part, shard.label[row], shard.x[row], weight, target, edge_attr)


def kept_rows(given: tuple[Store, PropagationOptions], packs: Sequence[range]) -> Iterator[int]:
    """Counts, for every pack, the rows that have hops on disk, if these are not all."""
    shards, propagation = given
    for pack in packs:
        yield sum(len(rows_on_disk(shards.shard(client), propagation)) for client in pack)


def write_hops(given: tuple[Store, PropagationOptions], packs: Sequence[range]) -> Iterator[FileRecord]:
    """Writes the hops of some packs, whose shards are checked before."""
    shards, propagation = given

    def columns_of(pack: range) -> list[dict[str, pa.Array]]:
        return [
            hop_columns(shards.shard(client), propagation, len(pack) > 1, shards.manifest.relations) for client in pack
        ]

    with spread() as on_threads:
        for several in batches(packs):
            for pack, columns in zip(several, on_threads(columns_of, several)):
                yield write_pack(shards.path / hops_path(str(propagation.folder), pack), "hops", columns)


def hops_memory(shards: Manifest, propagation: PropagationOptions, packs: Sequence[range]) -> int:
    """Returns bytes for the largest client of any pack, and for the hops of all of the pack until they are written."""
    shape = shards.features, propagation
    nodes, entries = (shards.clients.count(what) for what in ("nodes", "entries"))

    def needed_bytes(pack: range) -> int:
        of_each = (hop_memory(int(nodes[i]), int(entries[i]), *shape, shards.weighted, shards.relations) for i in pack)
        return max(of_each) + (hops_bytes(int(nodes[pack].sum()), *shape, shards.relations) if len(pack) > 1 else 0)

    return max(map(needed_bytes, packs), default=0)
