"""Measures an epoch and a forward pass of a mean client, made of random data of its shape, on this processor."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import log

import numpy as np

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientInfo, ClientModel
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.messages.models import BuiltModel
from shoal.engine.messages.trainers import ANALYTIC
from shoal.storage.graph.graph import first_rows
from shoal.storage.graph.pairs import LABELS, Pairs
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.split_codes import TRAIN
from shoal.storage.shards.hops import hops_of
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

# Nodes, directed edges and values of features, with hops, that a client has at most if it is measured as a whole.
MOST_NODES, MOST_ENTRIES, MOST_VALUES = 2048, 2**17, 2**24
# A part that is so many times smaller is measured of a larger client as well; or one batch, beside so many.
APART, BATCHES = 8, 3
# Measurements beside the first, which compiles and allocates, where they are shorter, in seconds; else one.
AGAIN, SHORT = 3, 0.004
# Clients of one shape differ by less in their edges, training items and so on a node.
WIDTH = 0.1


@dataclass(frozen=True)
class MeanClient:
    """The shape of a client: `edges` are the number of entries, of features of each, and of relations.

    Sparse features have `a_row` values a row.
    """

    info: ClientInfo
    features: int
    edges: tuple[int, int, int]
    propagation: PropagationOptions
    a_row: int | None

    def part(self, share: float) -> "MeanClient":
        """Returns the shape of a part of the client."""
        if share >= 1:
            return self
        info, (entries, features, relations) = self.info, self.edges
        graphs = None if info.graphs is None else max(1, round(info.graphs * share))
        pairs = None if info.pairs is None else int(info.pairs * share)
        train = max(min(info.train, 1), round(info.train * share))
        nodes = max(min(info.nodes, 1), int(info.nodes * share))
        info = replace(
            info, nodes=nodes, train=min(train, nodes if pairs is None else train), graphs=graphs, pairs=pairs
        )
        return replace(self, info=info, edges=(int(entries * share), features, relations))

    @property
    def values(self) -> int:
        """Number of values of features and hops, those of hops dense."""
        hops = self.propagation.stored(self.edges[2])
        return self.info.nodes * ((self.features if self.a_row is None else self.a_row) + hops * self.features)

    def few(self, batch: int | None) -> float:
        """Returns the share of the client that is measured, 1 or so few batches, nodes, edges and values as suffice."""
        sizes = (MOST_NODES, self.info.nodes), (MOST_ENTRIES, self.edges[0]), (MOST_VALUES, self.values)
        share = min(most / max(size, 1) for most, size in sizes)
        if batch is not None:
            share = max(share, BATCHES * batch / max(self.info.train, 1))
        return min(share, 1.0)

    def likeness(self) -> str:
        """Returns what clients share that differ in their size alone, more or less."""
        info = self.info
        counts = self.edges[0], info.train, info.graphs, info.pairs
        shares = [None if not count else round(log(count / info.nodes) / WIDTH) for count in counts]
        return repr((info.classes, self.features, self.edges[1:], self.propagation, self.a_row, shares))

    @cached_property
    def view(self) -> View:
        """The random data of the client."""
        return _random_view(self.info, self.features, self.edges, self.propagation, self.a_row)


class Measured:
    """Seconds of steps that were measured, for models and clients of one likeness.

    An epoch of a large client is that of two small parts of it, extended along the line through both.
    """

    def __init__(self) -> None:
        """Begins without a measurement."""
        self._seconds: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def seconds(
        self,
        models: Sequence[BuiltModel],
        trainers: Sequence[str],
        client: MeanClient,
        train: TrainOptions,
        most: float,
    ) -> np.ndarray:
        """Measures an epoch and a forward pass of each model over a client, of at most a share of which data is made.

        Returns seconds, `[models, 2]`.
        """
        share = min(client.few(train.batch_size), most)
        parts = [client.part(share)]
        if share < 1:
            fewer = share / (APART if train.batch_size is None else BATCHES)
            parts.insert(0, client.part(fewer))
        nodes = client.info.nodes
        of_client = repr(client) if share == 1 else client.likeness()
        seconds_found = []
        for model, path in zip(models, trainers):
            options = {**asdict(train), "epochs": 1}
            shape = [tuple(p.shape) for p in model.flat.module.parameters()]
            key = repr((model.spec, shape, model.flat.bfloat16, path, options, of_client))
            if key not in self._seconds:
                sizes = np.array([part.info.nodes for part in parts])
                self._seconds[key] = sizes, np.array([_measure(model, path, part, train) for part in parts])
            sizes, seconds = self._seconds[key]
            if len(sizes) == 1 or sizes[0] == sizes[1]:
                seconds_found.append(seconds[-1] * (nodes / max(sizes[-1], 1) if share < 1 else 1.0))
            else:
                a_node = np.maximum(seconds[1] - seconds[0], 0) / (sizes[1] - sizes[0])
                line = seconds[1] + a_node * (nodes - sizes[1])
                # A client of no nodes takes some time, never less than none.
                seconds_found.append(np.minimum(line, seconds[1] * (nodes / sizes[1])))
        return np.array(seconds_found)


def _measure(model: BuiltModel, path: str, part: MeanClient, train: TrainOptions) -> tuple[float, float]:
    """Measures the seconds of a training epoch and of a forward pass over a client."""
    # The loss is cross-entropy, since the method's may need a download.
    flat, info, data = model.flat, part.info, part.view
    form = analytic(flat) if path == ANALYTIC else None
    trainer = LocalTrainer({MODEL: flat}, replace(train, epochs=1), Algorithm(), form)
    times: list[tuple[float, float]] = []
    while len(times) < 2 or (len(times) < AGAIN and sum(times[-1]) < SHORT):
        client_model = ClientModel(flat, data, lambda purpose: 0)
        client = Client(info, data, {MODEL: client_model}, {}, {}, lambda purpose: 0)
        began = time.perf_counter()
        trainer.fit(client, {})
        trained = time.perf_counter()
        client_model.logits()
        times.append((trained - began, time.perf_counter() - trained))
    return min(t[0] for t in times), min(t[1] for t in times)


def _random_view(
    info: ClientInfo, features: int, of_edges: tuple[int, int, int], propagation: PropagationOptions, a_row: int | None
) -> View:
    """Makes random features and edges in the shape of a mean client; sparse features have `a_row` values a row.

    `of_edges` are the number of entries, and those of features of each, and of relations.
    """
    rng, (entries, edge_features, relations) = np.random.default_rng(0), of_edges
    indptr = np.linspace(0, entries if info.nodes else 0, info.nodes + 1).astype(np.int32)
    graph, starts, sizes = None, np.zeros(1, dtype=np.int64), np.array([max(info.nodes, 1)])
    if info.graphs is not None:
        # Every edge joins nodes of one small graph.
        graph = np.arange(info.nodes) * min(info.graphs, info.nodes) // max(info.nodes, 1)
        bounds, of_entry = first_rows(graph), np.repeat(graph, np.diff(indptr))
        starts, sizes = bounds[of_entry], np.diff(bounds)[of_entry]
    indices = (starts + rng.integers(sizes, size=indptr[-1], dtype=np.int32)).astype(np.int32)
    edge_attr = None
    if edge_features:
        # Neighbours of a row ascend, and every edge is of one kind.
        indices = indices[np.lexsort((indices, np.repeat(np.arange(info.nodes), np.diff(indptr))))]
        edge_attr = np.eye(edge_features, dtype=np.float32)[rng.integers(edge_features, size=len(indices))]
    x: list[Rows]
    if a_row is None:
        hops = propagation.stored(relations)
        x = [rng.standard_normal((info.nodes, features), dtype=np.float32) for _ in range(hops + 1)]
    else:
        sparse = _random_rows(info.nodes, features, a_row, rng)
        x = [sparse, *hops_of(_shard_of(indptr, indices, sparse, edge_attr), propagation, relations)]
    rows = np.arange(info.nodes)
    pairs = None if info.pairs is None else _random_pairs(info.nodes, info.pairs, rng)
    shard = Shard(
        0, rows, np.zeros(info.nodes, dtype=np.int32), indptr, indices, x[0], graph, pairs, edge_attr=edge_attr
    )
    train = np.arange(info.train)
    return View("mean client", shard, Split(train, rows[:0], rows[:0]), x[1:], info.classes, Cache(2**63))


def _shard_of(indptr: np.ndarray, indices: np.ndarray, x: Rows, edge_attr: np.ndarray | None) -> Shard:
    nodes = np.arange(len(x))
    return Shard(0, nodes, np.zeros(len(x), dtype=np.int32), indptr, indices, x, edge_attr=edge_attr)


def _random_pairs(nodes: int, count: int, rng: np.random.Generator) -> Pairs:
    starts = np.linspace(0, count if nodes else 0, nodes + 1).astype(np.int32)
    count = int(starts[-1])
    partner = rng.integers(max(nodes, 1), size=count, dtype=np.int32)
    label = rng.integers(LABELS, size=count, dtype=np.int8)
    return Pairs(starts, partner, label, np.full(count, TRAIN, dtype=np.int8))


def _random_rows(nodes: int, features: int, a_row: int, rng: np.random.Generator) -> CsrRows:
    a_row = max(a_row, 1)
    apart = features // a_row
    columns = np.arange(a_row) * apart + rng.integers(apart, size=(nodes, a_row))
    values = rng.standard_normal(nodes * a_row, dtype=np.float32)
    starts = np.arange(0, nodes * a_row + 1, a_row, dtype=np.int32)
    return CsrRows(starts, columns.astype(np.int32).ravel(), values, features)
