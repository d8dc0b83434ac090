"""Shards, splits and hops of some clients at a time, written by this process or by tasks of a cluster."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from shoal.engine.config.sections import DataConfig
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_weights import weights_among
from shoal.storage.graph.gather import gathered
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.layout import Layout
from shoal.storage.graph.pairs import Pairs
from shoal.storage.options.masking import Sparsity
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split import SplitOptions
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.hops import labelled_and_neighbours, training_graph, write_hops
from shoal.storage.store.manifest import ClientRecord
from shoal.storage.store.shard import Shard, write_shard, write_training_shard
from shoal.storage.store.split import Split, from_codes, random_split, write_split
from shoal.storage.store.store import Store, hops_path, shard_path, split_path

PairsOf = Callable[[int, Induced], Pairs]


@dataclass(frozen=True)
class ShardSource:
    """What shards are made of.

    Attributes:
        path: Folder of the store.
        graph: The whole graph.
        assignment: Client of every node, int32 `[nodes]`.
        kept: Neighbours of every node inside its own client, int32 `[nodes]`.
        label: Label of every node, `[nodes]`.
        memory: Bytes to gather clients in.
        pairs_of: The pairs of a client, of its number and its graph; None: items are no pairs.
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


def write_shards(source: ShardSource, clients: Sequence[int]) -> Iterator[FileRecord]:
    """Writes the shards of some clients; yields each as it is done."""
    graph, data = source.graph, source.data
    shape = data.dtype, source.memory, source.layout
    for client, part, x in gathered(graph, source.assignment, source.kept, clients, *shape):
        own, pairs = part, None
        if source.pairs_of is not None:
            from shoal.storage.store.held_out_edges import without_held_out  # for pairs alone

            pairs = source.pairs_of(client, part)
            own = without_held_out(part, pairs)
        elif data.sparsity.edges or data.sparsity.features:
            from shoal.storage.store.masking import without_edges, without_features  # where something is masked

            own = without_edges(part, data.sparsity)
            x = without_features(x, own.node, data.sparsity)
        weight = None
        if graph.edge_weight is not None:
            weight = weights_among(own, graph.indptr, graph.indices, graph.edge_weight)
        path = source.path / shard_path(client)
        yield write_shard(path, client, own, source.label, x, graph.graph_of, pairs, weight)


def drawn_pairs(data: DataConfig, sides: np.ndarray, limit: int, client: int, part: Induced) -> Pairs:
    """The pairs of a client, of the side of every node `[nodes]`, in `limit` bytes."""
    from shoal.storage.store.held_out_edges import draw_pairs, require_room

    require_room(client, len(part.indices), limit)
    return draw_pairs(part, client, data, sides[part.node])


def pairs_of_all(clients: Store, nodes: int, limit: int, client: int, part: Induced) -> Pairs:
    """The pairs of all clients whose nodes a whole graph has, of a dataset of `nodes`, in `limit` bytes."""
    from shoal.storage.store.held_out_edges import require_room, union_of

    require_room(client, len(part.indices), limit)
    row_of = np.full(nodes, -1, dtype=np.int64)
    row_of[part.node] = np.arange(len(part.node))
    shards = map(clients.shard, range(clients.clients))
    # The nodes of a client are all in one domain.
    rows = ((row_of[shard.node], shard.pairs) for shard in shards)
    return union_of(len(part.node), [(own, pairs) for own, pairs in rows if own[0] >= 0 and pairs is not None])


@dataclass(frozen=True)
class SplitSource:
    """What splits are made of.

    Attributes:
        path: Folder of the store.
        code: Part of every item, int8 `[items]`; None: each client draws its own, or its pairs have it.
        sparsity: Masks training labels; None: it does not.
    """

    path: Path
    shards: Store
    options: SplitOptions
    code: np.ndarray | None
    sparsity: Sparsity | None


# Items that train, validate and test, and test items of classes that no training item of the client has.
SplitCounts = tuple[list[int], int]


def write_splits(source: SplitSource, clients: Sequence[int]) -> Iterator[tuple[FileRecord, SplitCounts]]:
    """Writes the splits of some clients; yields each as it is done."""
    options = source.options
    for client in clients:
        shard = source.shards.shard(client)
        if shard.pairs is not None:
            split = from_codes(shard.pairs.part)
        elif source.code is None:
            split = random_split(shard.item_label, shard.item, client, options)
        else:
            split = from_codes(source.code[shard.item])
        if source.sparsity is not None and source.sparsity.labels and shard.pairs is None:
            from shoal.storage.store.masking import without_labels

            split = without_labels(split, shard.item, source.sparsity)
        file = write_split(source.path / split_path(options.split_name, client), split)
        yield file, split_counts(shard, split, options, source.shards.manifest.item_name)


def split_counts(shard: Shard, split: Split, options: SplitOptions, what: str) -> SplitCounts:
    """Counts of a split. Raises ShoalError: an item without a label is in it."""
    label = shard.item_label
    for rows in (split.train, split.val, split.test):
        if len(rows) and label[rows].min() < 0:
            raise ShoalError(
                f"data.split {options.split}: client {shard.client} has an unlabelled {what} in its split; mark it 0 "
                "(none)"
            )
    unreachable = int((~np.isin(label[split.test], label[split.train])).sum())
    return [len(split.train), len(split.val), len(split.test)], unreachable


def write_training_shards(given: tuple[Path, Store, str], clients: Sequence[int]) -> Iterator[FileRecord]:
    """Writes the graphs of the training nodes of some clients into a store."""
    path, store, name = given
    for client in clients:
        shard = store.shard(client)
        part, row = training_graph(shard, store.split(name, client).train)
        weight = shard.edge_weight
        if weight is not None:
            weight = weights_among(replace(part, node=row), shard.indptr, shard.indices, weight)
        yield write_training_shard(path / shard_path(client), part, shard.label[row], shard.x[row], weight)


def kept_rows(shards: Store, clients: Sequence[ClientRecord]) -> Iterator[int]:
    """Rows that `rows: labelled` keeps of every client."""
    for client in clients:
        yield int(labelled_and_neighbours(shards.shard(client.client)).sum())


def write_client_hops(
    given: tuple[Path, Store, PropagationOptions], clients: Sequence[ClientRecord]
) -> Iterator[FileRecord]:
    """Writes the hops of clients, whose shards are checked before."""
    path, shards, propagation = given
    for client in clients:
        yield write_hops(path / hops_path(propagation.name, client.client), shards.shard(client.client), propagation)
