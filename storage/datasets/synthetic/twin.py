"""Synthetic twins of OGB graphs: the same counts, times a scale, drawn block by block.

Only counts are taken from the original. Everything else is our assumption: communities whose sizes follow a power
law, each mostly of one class; edges inside a community or between classes, as homophily says; degrees with a heavy
tail; features that show a node's class weakly, and more strongly when averaged over neighbours. Nodes that have
another class than their community, and pairs of classes that no linear model can separate, keep accuracy below 1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shoal.storage.datasets.sources.derived import DerivedChecksums, identity_digest, open_derived
from shoal.storage.datasets.sources.source import DatasetSpec, DataSource, derived_root
from shoal.storage.datasets.synthetic.sbm import require, rules_of_strength
from shoal.storage.datasets.synthetic.twin_kernels import (
    MEAN_WEIGHT,
    Table,
    degrees_of,
    edges_of,
    features_of,
    labels_of,
    ranks_of,
)
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.kernels.counter_rng import bits_for, key_of
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL
from shoal.storage.out_of_core.external_csr import FILES, external_csr
from shoal.storage.out_of_core.npy_rows import write_rows
from shoal.storage.threads import batches, spread

NODES_A_BLOCK = 1 << 16
SMALLEST_COMMUNITY = 4
CLASS_SKEW = 0.7
MAX_LABEL_NOISE, LABEL_NOISE = 0.2, 0.75
COMMON = 0.6
FEATURE_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True)
class Original:
    """Counts of a published graph, and what we assume of it.

    Attributes:
        edges: As published: directed citations, or undirected pairs given once.
        split: Training, validation and test nodes; no other node has a label.
        homophily: Share of edges that join nodes of one class.
        signal: Norm of what the class adds to a node's features, in standard deviations of the noise of one.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    split: tuple[int, int, int]
    homophily: float
    signal: float


ORIGINALS = {
    "arxiv-like": Original(169_343, 1_166_243, 128, 40, (90_941, 29_799, 48_603), 0.65, 2.5),
    "products-like": Original(2_449_029, 61_859_140, 100, 47, (196_615, 39_323, 2_213_091), 0.8, 2.5),
    "papers100m-like": Original(
        111_059_956, 1_615_685_872, 128, 172, (1_207_179, 125_265, 214_338), 0.6, 2.5
    ),
}  # fmt: skip


def load_twin(name: str, options: DataSource) -> Graph:
    """Loads the twin of a published graph; edges and labels are drawn once and kept on disk, features when read.

    Memory stays below `options.memory_limit`, the interpreter not counted. Edges are made symmetric as those of the
    original would be. No two edges of a twin join the same nodes.
    """
    twin = Twin.of(name, options)
    limit = options.memory_limit
    identity = twin.identity
    with open_derived(derived_root(options) / "twins" / f"{name}-{identity_digest(identity)}", identity) as folder:
        checksums = DerivedChecksums(folder, [*(f"csr/{name}" for name in FILES), "y.npy", "split.npy"])
        indptr, indices, cleaning = external_csr(twin.edge_blocks, twin.nodes, twin.edges, folder / "csr", limit, name)
        for array, dtype, blocks in (("y", np.int64, twin.labels), ("split", np.int8, twin.split_codes)):
            write_rows(folder / f"{array}.npy", (twin.nodes,), np.dtype(dtype), blocks, limit, name)
        checksums.require()
        y, split = (np.load(folder / f"{array}.npy", mmap_mode="r") for array in ("y", "split"))
    return Graph(name, indptr, indices, twin.x, y, twin.classes, split=split, cleaning=cleaning, synthetic=True)


class TwinFeatures:
    """Features `[N, F]`, float32, of which rows are drawn whenever they are indexed."""

    ndim, dtype = 2, np.dtype(np.float32)

    def __init__(self, shape: tuple[int, int], draw: Callable[[np.ndarray], np.ndarray]) -> None:
        """Takes the function from row numbers, int64 `[n]`, to their features."""
        self.shape, self._draw = shape, draw

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Features of some rows, given as NumPy takes them along one axis."""
        if isinstance(rows, slice):
            return self._draw(np.arange(*rows.indices(len(self)), dtype=np.int64))
        numbers = np.asarray(rows)
        if numbers.dtype == np.bool_:
            numbers = np.flatnonzero(numbers)
        wanted = np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {len(self)}")
        drawn = self._draw(np.atleast_1d(wanted).ravel())
        return drawn.reshape(*wanted.shape, self.shape[1])


@dataclass(frozen=True)
class Twin:
    """A synthetic graph of which every part can be drawn alone.

    A node has a place, and its id is a random permutation of places; communities are runs of places. Within a
    community a node points at earlier places, low ones most often; across classes it points at nodes of lower age, a
    second permutation. So edges are distinct, and both directions of none occur. Counts are `scale` times those of the
    original, and homophily and signal as `Original` has them.
    """

    name: str
    original: Original
    scale: float
    homophily: float
    signal: float
    seed: int

    @classmethod
    def of(cls, name: str, options: DataSource) -> "Twin":
        """Makes the twin that options ask for; a ShoalError names one that is out of range."""
        original = ORIGINALS[name]
        homophily = original.homophily if options.homophily is None else options.homophily
        signal = original.signal if options.signal is None else options.signal
        rule = "more than 0 and of fewer than 2^31 nodes"
        require(options, "data.options", ("scale", 0 < options.scale < 2**31, rule))
        twin = cls(name, original, options.scale, homophily, signal, options.seed)
        require(
            options,
            "data.options",
            ("scale", twin.nodes < 2**31, rule),
            ("scale", twin.nodes >= twin.min_nodes, f"at least {twin.min_nodes / original.nodes:.2g}"),
            *rules_of_strength(options, homophily, signal),
        )
        return twin

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the twin, in types JSON has."""
        return {"dataset": self.name, **{key: getattr(self, key) for key in ("scale", "homophily", "signal", "seed")}}

    @property
    def nodes(self) -> int:
        return round(self.original.nodes * self.scale)

    @property
    def edges(self) -> int:
        """Edges as a file of the original's layout would hold them."""
        return round(self.original.edges * self.scale)

    @property
    def features(self) -> int:
        return self.original.features

    @property
    def classes(self) -> int:
        return self.original.classes

    @property
    def label_noise(self) -> float:
        """Share of nodes of another class than their community, small enough for the homophily to be reached."""
        return min(MAX_LABEL_NOISE, LABEL_NOISE * (1 - self.homophily**0.5))

    @property
    def within(self) -> float:
        """Share of edges inside communities, which gives the homophily."""
        other = self.label_noise / (self.classes - 1)
        same = (1 - self.label_noise) ** 2 + self.label_noise * other
        across = 2 * (1 - self.label_noise) * other + (self.classes - 2) * other**2
        return min(1.0, max(0.0, (self.homophily - across) / (same - across)))

    @property
    def min_nodes(self) -> int:
        """Fewest nodes with which every class has a community and every node enough others for its edges."""
        return max(8 * self.classes, 16 * self.original.edges // self.original.nodes)

    @property
    def split_sizes(self) -> tuple[int, int, int]:
        """Training, validation and test nodes."""
        ends = [min(self.nodes, round(end * self.scale)) for end in np.cumsum(self.original.split).tolist()]
        return ends[0], ends[1] - ends[0], ends[2] - ends[1]

    @cached_property
    def x(self) -> TwinFeatures:
        """Features of all nodes, none of them drawn yet."""
        return TwinFeatures((self.nodes, self.features), self._features)

    def edge_blocks(self, first: int = 0) -> Iterator[np.ndarray]:
        """Yields edges from number `first` on, int32 `[2, e]`; `first` is 0 or where a block ends."""
        blocks = []
        for start in range(0, self.nodes, NODES_A_BLOCK):
            end = min(start + NODES_A_BLOCK, self.nodes)
            before, after = (self.edges * node // self.nodes for node in (start, end))
            if before >= first:
                blocks.append((start, end, after - before))
        with spread() as on_threads:
            for several in batches(blocks):
                yield from on_threads(lambda block: self._edges(*block), several)

    def labels(self, first: int = 0) -> Iterator[np.ndarray]:
        """Class of every node from id `first` on, int64 blocks; -1 where the node is in no part of the split."""
        for start, end in self._ids(first):
            label = np.empty(end - start, dtype=np.int64)
            labels_of(self._table, start, label)
            label[self._codes(start, end) == UNASSIGNED] = -1
            yield label

    def split_codes(self, first: int = 0) -> Iterator[np.ndarray]:
        """Yields the part of every node from id `first` on, int8 blocks."""
        for start, end in self._ids(first):
            yield self._codes(start, end)

    def feature_rows(self, first: int = 0) -> Iterator[np.ndarray]:
        """Yields features of every node from id `first` on, float32 blocks `[n, F]`."""
        for start, end in self._ids(first, max(1, FEATURE_BLOCK_BYTES // (4 * self.features))):
            yield self.x[start:end]

    def _ids(self, first: int, step: int = NODES_A_BLOCK) -> Iterator[tuple[int, int]]:
        for start in range(first, self.nodes, step):
            yield start, min(start + step, self.nodes)

    def _codes(self, start: int, end: int) -> np.ndarray:
        """Assigns parts along a random permutation: it begins with training nodes, then come validation and test."""
        rank = np.empty(end - start, dtype=np.int64)
        ranks_of(start, self.nodes, self._table.bits, key_of(self.seed, "split"), rank)
        part = np.searchsorted(np.cumsum(self.split_sizes), rank, side="right")
        return np.array([TRAIN, VAL, TEST, UNASSIGNED], dtype=np.int8)[part]

    def _edges(self, start: int, end: int, count: int) -> np.ndarray:
        degree = np.empty(end - start, dtype=np.int64)
        # A node points at an eighth of all others at most, and at 320 times the average.
        most = MEAN_WEIGHT * self.nodes**2 / (8 * self.edges)
        degrees_of(self._table, start, count, max(1e-4, most ** (-4 / 3)), degree)
        edges = np.empty((2, count), dtype=np.int32)
        if edges_of(self._table, start, degree, self.within, edges) < count:
            raise ShoalError("data.options.scale", f"{self.scale} leaves too few nodes for the edges of {self.name}")
        return edges

    def _features(self, ids: np.ndarray) -> np.ndarray:
        x = np.empty((len(ids), self.features), dtype=np.float32)
        features_of(self._table, ids, *self._class_features, x)
        return x

    @cached_property
    def _class_features(self) -> tuple[np.ndarray, np.ndarray]:
        """Centre and axis of every class, float32 `[C, F]`; every second pair of classes shares a centre."""
        draw = np.random.default_rng([self.seed, 1])
        centre, axis = draw.standard_normal((2, self.classes, self.features)) * self.signal / self.features**0.5
        pair = np.arange(self.classes) // 2
        shared = (pair % 2 == 1)[:, None]
        centre = np.where(shared, COMMON * centre[2 * pair], centre)
        axis = np.where(shared, (1 - COMMON**2) ** 0.5 * axis, 0)
        return centre.astype(np.float32), axis.astype(np.float32)

    @cached_property
    def _table(self) -> Table:
        """Communities of power-law sizes, density around size^-2, up to an average class."""
        draw = np.random.default_rng([self.seed, 0])
        neighbours = self.within * self.edges / self.nodes
        largest = self.nodes // self.classes
        smallest = min(int(SMALLEST_COMMUNITY * neighbours) + 1, largest // 4)
        starts = [np.zeros(1, dtype=np.int64)]
        while starts[-1][-1] < self.nodes:
            u = draw.random(1 + self.nodes // largest)
            sizes = smallest / (1 - u * (1 - smallest / largest))
            starts.append(starts[-1][-1] + np.cumsum(sizes.astype(np.int64)))
        places = np.concatenate(starts)
        places = np.append(places[places <= self.nodes - smallest], self.nodes)
        communities = len(places) - 1
        weight = np.arange(1, self.classes + 1) ** -CLASS_SKEW
        label = draw.choice(self.classes, size=communities, p=weight / weight.sum())
        label[: self.classes] = np.arange(min(self.classes, communities))
        guide_shift = max(0, (self.nodes >> 20).bit_length())
        guide = np.searchsorted(places, np.arange(0, self.nodes, 1 << guide_shift), side="right") - 1
        # A purpose chooses the random stream: another word would give another graph.
        keys = (key_of(self.seed, purpose) for purpose in ("id", "age", "stray", "degree", "edge", "way", "noise"))
        return Table(
            self.nodes,
            bits_for(self.nodes),
            places,
            label.astype(np.int32),
            self.classes,
            self.label_noise,
            guide.astype(np.int32),
            guide_shift,
            *keys,
        )


DATASETS = tuple(
    DatasetSpec(
        name,
        load_twin,
        items=lambda options: Twin.of(options.key, options).nodes,
        classes=lambda options: ORIGINALS[options.key].classes,
        content=lambda options: Twin.of(options.key, options).identity,
        options=("scale", "homophily", "signal", "seed", "scratch"),
        finite=True,
    )
    for name in ORIGINALS
)
