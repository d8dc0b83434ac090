"""Removals from a run, and the job of the rest: the same shards and split, read without what goes.

A client that is removed does not answer. A class leaves with the labels of its training items alone: its nodes stay in
the graph, without labels. A node leaves whole, with label, features and edges; its row stays, with zeros and without
edges, so that rows keep their numbers. An edge leaves alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from shoal.engine.messages.job import Job
from shoal.storage.files.digest import text_digest
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.computed_hops import ComputedHops
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import CPU, Cache, Change, View
from shoal.storage.store.client_table import SplitRecord
from shoal.storage.store.store import Store


@dataclass(frozen=True)
class Cut:
    """A change of a client's shard in memory; see `shoal.storage.shards.view.Change`.

    Attributes:
        rows: Rows that lose features and edges, ascending.
        edges: Pairs of rows that lose the edge between them.
    """

    rows: tuple[int, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()

    def apply(
        self, shard: Shard, split: Split, propagation: PropagationOptions | None
    ) -> tuple[Shard, list[Rows] | ComputedHops]:
        """Returns the shard without these, and its hops, which are computed when they are read."""
        source = np.repeat(np.arange(shard.nodes), np.diff(shard.indptr))
        gone_N = np.zeros(shard.nodes, dtype=bool)
        gone_N[list(self.rows)] = True
        kept = ~(gone_N[source] | gone_N[shard.indices])
        for first, second in self.edges:
            kept &= ~((source == first) & (shard.indices == second) | (source == second) & (shard.indices == first))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(source[kept], minlength=shard.nodes))])
        cut = replace(
            shard,
            indptr=indptr.astype(np.int32),
            indices=np.ascontiguousarray(shard.indices[kept]),
            x=_without_rows(shard.x, gone_N) if self.rows else shard.x,
            edge_weight=None if shard.edge_weight is None else shard.edge_weight[kept],
            edge_attr=None if shard.edge_attr is None else shard.edge_attr[kept],
        )
        nothing = np.empty(0, dtype=np.int64)
        return cut, [] if propagation is None else ComputedHops(cut, propagation, None, nothing, [])


def _without_rows(x: Rows, gone_N: np.ndarray) -> Rows:
    """Copies features `[N, F]` with zeros, or no values of sparse ones, in some rows."""
    if not isinstance(x, CsrRows):
        copy: np.ndarray = np.array(x)
        copy[gone_N] = 0
        return copy
    kept = np.repeat(~gone_N, np.diff(x.indptr))
    indptr = np.concatenate([[0], np.cumsum(kept)])[x.indptr].astype(np.int32)
    return replace(x, indptr=indptr, columns=x.columns[kept], values=x.values[kept])


@dataclass(frozen=True)
class Removal:
    """One removal.

    Attributes:
        name: What it is called, as `client 3`.
        kind: `client`, `nodes`, `class` or `edges`.
        clients: Clients that do not answer any more.
        items: Numbers of the items that leave the training of other clients, ascending, by client.
        cuts: What leaves the shards of clients.
        label: The class that goes; None: none does.
    """

    name: str
    kind: str
    clients: tuple[int, ...] = ()
    items: Mapping[int, np.ndarray] = field(default_factory=dict)
    cuts: Mapping[int, Cut] = field(default_factory=dict)
    label: int | None = None

    @property
    def touched(self) -> tuple[int, ...]:
        """The clients whose visits had anything of it, ascending."""
        return tuple(sorted({*self.clients, *self.items, *self.cuts}))

    @property
    def digits(self) -> str:
        """A digest of all of it, 12 digits."""
        plain = {
            "clients": [*self.clients],
            "items": {str(i): items.tolist() for i, items in sorted(self.items.items())},
            "cuts": {str(i): [cut.rows, cut.edges] for i, cut in sorted(self.cuts.items())},
        }
        return text_digest(json.dumps(plain, sort_keys=True))[:12]


class RestStore(Store):
    """A store with one more split: that of a run, without some training items."""

    def __init__(self, whole: Store, split: str, name: str, items: Mapping[int, np.ndarray]) -> None:
        """Names the split `name`; files are those of `split`."""
        record = whole.manifest.splits[split]
        counts = record.counts.copy()
        for client, gone in items.items():
            counts[client, 0] -= len(gone)
        rest = SplitRecord(counts, record.unreachable, record.files, scale=record.scale)
        splits = {**whole.manifest.splits, name: rest}
        super().__init__(whole.path, whole._first_read, replace(whole.manifest, splits=splits), whole.remote)
        self._of, self._name, self._items = split, name, items

    def split(self, name: str, client: int) -> Split:
        """Maps a client's split; that of the rest is cut in memory."""
        if name != self._name:
            return super().split(name, client)
        split = super().split(self._of, client)
        if client not in self._items:
            return split
        kept = ~np.isin(split.train, self._items[client])
        label = None if split.train_label is None else split.train_label[kept]
        return replace(split, train=split.train[kept], train_label=label)


@dataclass(frozen=True)
class RestJob(Job):
    """The job of a run without what is removed; it is opened in the process that made it."""

    whole: Job | None = None
    removal: Removal | None = None

    def open_store(self) -> Store:
        assert self.whole is not None
        assert self.removal is not None
        return RestStore(self.whole.open_store(), self.whole.split, self.split, self.removal.items)

    def view(
        self,
        store: Store,
        client: int,
        cache: Cache,
        device: torch.device = CPU,
        flipped: bool = False,
        change: Change | None = None,
    ) -> View:
        assert self.removal is not None
        return super().view(store, client, cache, device, flipped, self.removal.cuts.get(client, change))


def without(job: Job, removal: Removal) -> Job:
    """Returns a job of the same clients without the items and cuts of a removal; those that do not answer stay."""
    if not (removal.items or removal.cuts):
        return job
    plain: dict[str, Any] = {member.name: getattr(job, member.name) for member in fields(Job)}
    # Hosts keep what they make of a client by the name of the split.
    return RestJob(**{**plain, "split": f"{job.split}-without-{removal.digits}"}, whole=job, removal=removal)


def remove_clients(clients: Sequence[int]) -> Removal:
    """Returns the removal of whole clients."""
    return Removal(f"client {', '.join(map(str, clients))}", "client", clients=tuple(sorted(clients)))


def remove_class(store: Store, split: str, label: int) -> Removal:
    """Returns the removal of all training items of a class, as training sees their labels; empty: there are none."""
    items = {}
    for client in range(store.clients):
        shard, rows = store.shard(client), store.split(split, client)
        label_N = shard.item_label[rows.train] if rows.train_label is None else rows.train_label
        if len(gone := rows.train[label_N == label]):
            items[client] = gone
    return Removal(f"class {label}", "class", items=items, label=label)


def remove_nodes(store: Store, split: str, nodes: np.ndarray, name: str) -> tuple[Removal, np.ndarray]:
    """Returns the removal of nodes by global numbers, and those of them that no client has."""
    items, cuts, missing = {}, {}, np.unique(nodes)
    for client in range(store.clients):
        shard, rows = store.shard(client), store.split(split, client)
        gone = np.flatnonzero(np.isin(shard.node, nodes))
        if not len(gone):
            continue
        missing = np.setdiff1d(missing, shard.node)
        cuts[client] = Cut(rows=tuple(gone.tolist()))
        if len(of_training := rows.train[np.isin(rows.train, gone)]):
            items[client] = of_training
    return Removal(name, "nodes", items=items, cuts=cuts), missing


def remove_edges(store: Store, edges: Sequence[tuple[int, int]], name: str) -> tuple[Removal, list[tuple[int, int]]]:
    """Returns the removal of edges by the global numbers of their nodes, and those of them that no client has."""
    cuts, missing, ends = dict[int, list[tuple[int, int]]](), {*edges}, np.unique(np.array(edges))
    for client in range(store.clients):
        shard = store.shard(client)
        row_of = {int(shard.node[row]): int(row) for row in np.flatnonzero(np.isin(shard.node, ends))}
        for first, second in edges:
            if first in row_of and second in row_of:
                a, b = row_of[first], row_of[second]
                if b in shard.indices[shard.indptr[a] : shard.indptr[a + 1]]:
                    cuts.setdefault(client, []).append((a, b))
                    missing.discard((first, second))
    of_clients = {client: Cut(edges=tuple(pairs)) for client, pairs in cuts.items()}
    return Removal(name, "edges", cuts=of_clients), sorted(missing)
