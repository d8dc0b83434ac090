"""Noise in the data of clients, which `data.noise` adds to shards and splits while a store is written.

What is drawn hangs on a seed and on global numbers, of a node and a column, of two nodes, of an item, or of the client:
the store of the clients and those of whole graphs have the same noise, in any layout, pack and order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from shoal.engine.config.config import Config
from shoal.engine.preparing.noise.section import Noise, ends_of, most_of
from shoal.storage.errors import ShoalError
from shoal.storage.files.mapped import read
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import Induced
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.kernels.counter_rng import key_of, noise_at
from shoal.storage.shards.masking import draw_bits, mask_features, remove_edges
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split

KINDS = ("features", "masked", "labels", "edges_removed", "edges_added")
# Values of a block of features in memory.
BLOCK_VALUES = 1 << 22
# The third number of a seed keeps these draws apart from those of splits, which have two.
ADDED = 1


@dataclass(frozen=True)
class ClientNoise:
    """The noise of every client; see `shoal.engine.preparing.alteration.Alteration`.

    Attributes:
        strengths: Strength at every client by kind, float64 `[B]`.
        classes: Number of classes C.
        deviation_F: Standard deviation of every feature over all nodes, float32 `[F]`; None: features have no noise.
        graph_of: Small graph of every node, int64 `[nodes]`, ascending; None: there is one graph.
        client_of: Client that owns each node, int32 `[nodes]`, -1 for none, where shards are whole graphs; None: a
            shard is that of a client.
    """

    seed: int
    strengths: Mapping[str, np.ndarray]
    classes: int
    deviation_F: np.ndarray | None
    graph_of: np.ndarray | None
    client_of: np.ndarray | None

    def alter_shard(self, client: int, part: Induced, x: Rows) -> tuple[Induced, Rows]:
        """Returns a shard's graph and features `[N, F]` with noise; both are used up."""
        owner_N = np.full(len(part.node), client, dtype=np.int32)
        if self.client_of is not None:
            owner_N = self.client_of[part.node]
        if self.deviation_F is not None:
            assert not isinstance(x, CsrRows)
            _add_to_features(
                x, part.node, key_of(self.seed, "noise-x"), self._of_rows("features", owner_N), self.deviation_F
            )
        if self.strengths["masked"].any():
            x = mask_features(x, part.node, key_of(self.seed, "masked"), self._of_rows("masked", owner_N))
        # What is added had no edge before any was removed.
        first, second = self._draw_edges(part, owner_N)
        if self.strengths["edges_removed"].any():
            share_N = self._of_rows("edges_removed", owner_N)
            part = remove_edges(part, key_of(self.seed, "removed"), share_N, owner_N)
        return (_join(part, first, second) if len(first) else part), x

    def alter_split(self, shard: Shard, split: Split) -> Split:
        """Returns a client's split with other labels for some of its training items."""
        if not self.strengths["labels"].any():
            return split
        item, label = shard.item[split.train], shard.item_label[split.train].astype(np.int32)
        # The small constant keeps 0.29 * 100 from becoming 28.
        count = int(self.strengths["labels"][shard.client] * len(item) + 1e-9)
        chosen = np.argsort(draw_bits(key_of(self.seed, "noise-y"), item), kind="stable")[:count]
        unit = (draw_bits(key_of(self.seed, "class"), item[chosen]) >> np.uint64(11)) * 2.0**-53
        step = 1 + np.floor(unit * (self.classes - 1)).astype(np.int32)
        # Items without a label are refused later, and must stay so.
        label[chosen] = np.where(label[chosen] < 0, -1, (label[chosen] + step) % self.classes)
        return replace(split, train_label=label)

    def _of_rows(self, kind: str, owner_N: np.ndarray) -> np.ndarray:
        """Returns the strength at the client of every row, float64 `[N]`; 0 at rows that no client owns."""
        strength_B = self.strengths[kind]
        return np.where(owner_N >= 0, strength_B[owner_N], 0.0)

    def _draw_edges(self, part: Induced, owner_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws the edges to add to a graph: both rows of each, int64 `[n]`."""
        strength_B, none = self.strengths["edges_added"], np.zeros(0, dtype=np.int64)
        if not strength_B.any():
            return none, none
        source = np.repeat(np.arange(len(part.node)), np.diff(part.indptr))
        # The order of rows is that of their global numbers, so that it is the same in a client and in a whole graph.
        order = np.lexsort((part.node, owner_N))
        place_N = np.empty_like(order)
        place_N[order] = np.arange(len(order))
        first, second = place_N[source], place_N[part.indices]
        # One of the two ways of an edge counts.
        ends = np.stack([first, second])[:, (owner_N[source] == owner_N[part.indices]) & (first < second)]
        drawn = [(none, none)]
        for client in np.unique(owner_N[owner_N >= 0]).tolist():
            start, end = np.searchsorted(owner_N[order], [client, client + 1])
            pairs = ends[:, (ends[0] >= start) & (ends[0] < end)] - start
            rows, strength = order[start:end], float(strength_B[client])
            graph = None if self.graph_of is None else self.graph_of[part.node[rows]]
            rng = np.random.default_rng([self.seed, client, ADDED])
            a, b = draw_pairs(len(rows), pairs, graph, strength, rng)
            drawn.append((rows[a], rows[b]))
        both = np.concatenate([np.stack(pairs) for pairs in drawn], axis=1)
        return both[0], both[1]


def make_noise(
    config: Config, clients: int, classes: int, graph: Graph | None = None, client_of: np.ndarray | None = None
) -> ClientNoise:
    """Makes the noise of a config; arguments and errors of `make_alterations`.

    Raises ShoalError: edges would be added to edges with weights or features.
    """
    options: Noise = config.data.noise  # type: ignore[attr-defined]
    strengths = {kind: spread(getattr(options, kind), clients, options.seed, kind) for kind in KINDS}
    deviation_F = None
    if graph is not None and most_of(options.features):
        deviation_F = deviations(graph.x)
    if graph is not None and most_of(options.edges_added):
        for given, what, key in (
            (graph.edge_weight, "weights", "data.edge_weights"),
            (graph.edge_attr, "features", "data.edge_features"),
        ):
            if given is not None:
                raise ShoalError(
                    "data.noise.edges_added",
                    f"edges of dataset '{graph.name}' have {what}, and added ones none; set it to 0, or {key} to drop",
                )
    graph_of = None if graph is None or not most_of(options.edges_added) else graph.graph_of
    return ClientNoise(options.seed, strengths, classes, deviation_F, graph_of, client_of)


def require_two_classes(config: Config, dataset: str, classes: int) -> None:
    """Refuses noise of labels of a dataset that has no other class."""
    if classes < 2 and most_of(config.data.noise.labels):  # type: ignore[attr-defined]
        raise ShoalError("data.noise.labels", f"dataset '{dataset}' has {classes} class; set it to 0")


def spread(strength: Any, clients: int, seed: int, kind: str) -> np.ndarray:
    """Spreads a strength from low to high over clients, float64 `[B]`, in an order drawn by the seed and the kind."""
    low, high = ends_of(strength)
    place_B = (KINDS.index(kind) << 32) + np.arange(clients)
    rank_B = np.argsort(np.argsort(draw_bits(key_of(seed, "order"), place_B)))
    return np.linspace(low, high, clients)[rank_B]


def deviations(x: Any) -> np.ndarray:
    """Computes the standard deviation of every column over all rows `[N, F]`, an array, a map or SciPy CSR; float32."""
    rows, features = x.shape
    if not isinstance(x, np.ndarray):
        total_F = np.bincount(x.indices, weights=x.data, minlength=features)
        square_F = np.bincount(x.indices, weights=x.data.astype(np.float64) ** 2, minlength=features)
        mean_F = total_F / max(rows, 1)
        return np.sqrt(np.maximum(square_F / max(rows, 1) - mean_F**2, 0)).astype(np.float32)
    step = max(1, BLOCK_VALUES // max(1, features))
    total_F, square_F = np.zeros((2, features))
    # Sums of differences from one row keep digits where means are large.
    base_F = read(x, 0, 1)[0].astype(np.float64) if rows else total_F
    for start in range(0, rows, step):
        block_NF = read(x, start, min(start + step, rows)).astype(np.float64) - base_F
        total_F += block_NF.sum(0)
        square_F += (block_NF**2).sum(0)
    mean_F = total_F / max(rows, 1)
    return np.sqrt(np.maximum(square_F / max(rows, 1) - mean_F**2, 0)).astype(np.float32)


def _add_to_features(
    x: np.ndarray, node: np.ndarray, key: np.uint64, strength_N: np.ndarray, deviation_F: np.ndarray
) -> None:
    """Adds noise to dense features `[N, F]` in place; what float16 does not hold becomes infinite."""
    step = max(1, BLOCK_VALUES // max(1, x.shape[1]))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        noise_NF = _normal(key, node[rows], x.shape[1])
        noise_NF *= strength_N[rows, None].astype(np.float32) * deviation_F
        with np.errstate(over="ignore"):
            x[rows] = x[rows].astype(np.float32) + noise_NF


@numba.njit(cache=True)
def _normal(key: np.uint64, node: np.ndarray, width: int) -> np.ndarray:
    """Draws numbers of mean 0 and variance 1, float32 `[n, F]`: sums of eight uniform ones, within 4.9 of 0."""
    out = np.empty((len(node), width), dtype=np.float32)
    for row in range(len(node)):
        first = np.uint64(node[row]) * np.uint64(width)
        for column in range(width):
            position = np.uint64(2) * (first + np.uint64(column))
            both = noise_at(key, position) + noise_at(key, position + np.uint64(1))
            out[row, column] = both * np.float32(0.7071067811865476)
    return out


def draw_pairs(
    nodes: int, pairs: np.ndarray, graph: np.ndarray | None, strength: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws pairs without an edge, any with the same chance, in one graph each: as a share of the edges, rounded down.

    Args:
        pairs: Ends of every edge, the smaller one first, int64 `[2, E]`.
        graph: Graph of every node, ascending, `[nodes]`; None: there is one.

    Returns:
        Both ends, int64 `[n]`; fewer where fewer pairs are free.
    """
    start = np.zeros(1, dtype=np.int64) if graph is None else np.flatnonzero(np.diff(graph, prepend=graph[:1] - 1))
    size = np.diff(np.append(start, nodes)).astype(np.int64)
    base = np.concatenate([[0], np.cumsum(size * (size - 1) // 2)])
    # Pairs are numbered row by row of the upper triangle, graph after graph.
    of_edge = np.searchsorted(start, pairs[0], side="right") - 1
    i, j = pairs - start[of_edge]
    taken = np.sort(base[of_edge] + _first_of_row(i, size[of_edge]) + j - i - 1)
    free = int(base[-1]) - len(taken)
    count = min(int(strength * len(taken) + 1e-9), free)
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    rank = rng.choice(free, count, replace=False)
    number = rank + np.searchsorted(taken - np.arange(len(taken)), rank, side="right")
    chosen = np.searchsorted(base, number, side="right") - 1
    rest, n = number - base[chosen], size[chosen]
    row = ((2 * n - 1 - np.sqrt(((2 * n - 1) ** 2 - 8 * rest).astype(np.float64))) / 2).astype(np.int64)
    # The root is rounded.
    row -= _first_of_row(row, n) > rest
    row += _first_of_row(row + 1, n) <= rest
    return start[chosen] + row, start[chosen] + row + 1 + rest - _first_of_row(row, n)


def _first_of_row(row: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Computes the number of the first pair of a row of the upper triangle of a graph with so many nodes."""
    return row * (2 * nodes - row - 1) // 2


def _join(part: Induced, first: np.ndarray, second: np.ndarray) -> Induced:
    """Adds undirected edges to a graph that has none of them; columns ascend in their rows."""
    rows = len(part.node)
    source = np.concatenate([np.repeat(np.arange(rows), np.diff(part.indptr)), first, second])
    target = np.concatenate([part.indices, second, first])
    order = np.lexsort((target, source))
    indptr = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=rows), out=indptr[1:])
    return Induced(part.node, indptr, target[order].astype(np.int32))
