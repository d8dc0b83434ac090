"""One client's data for a federated method: tensors over the memory map or on a GPU."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from shoal.storage.graph.edge_weights import degrees
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures, ranges
from shoal.storage.graph.targets import Scale, scale_of
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.target_names import CLASSIFICATION, CLUSTERING, MULTILABEL, OF_CLASSES, Target
from shoal.storage.shards.cache import SMALL, Cache, apart, write_count, writes
from shoal.storage.shards.shard import AllEdges, Shard
from shoal.storage.shards.split import Split

if TYPE_CHECKING:
    from shoal.storage.graph.edges.cross_edges import Boundary
    from shoal.storage.shards.computed_hops import ComputedHops

PAGE = 4096
# The cache keeps this of a client: hops that are not stored.
HOPS = "hops"
# Bytes of an array that a watched view compares as a whole.
WATCHED = 2**24


class Change(Protocol):
    """A change of a client's data in memory, which tells equal changes by `==`; the store stays as it is."""

    def apply(
        self, shard: Shard, split: Split, propagation: PropagationOptions | None
    ) -> "tuple[Shard, list[Rows] | ComputedHops]":
        """Returns the changed shard and its hops."""
        ...


def touch(hop: StoredFeatures, rows: Tensor | None) -> None:
    """Reads a value of each page of a hop, or of some of its rows."""
    if isinstance(hop, Tensor):
        pages_NF = hop[:, :: max(PAGE // hop.element_size(), 1)]
        (pages_NF if rows is None else pages_NF.index_select(0, rows)).sum()
    elif rows is None:
        for part in hop.parts():
            part[:: PAGE // part.element_size()].sum()
    else:
        hop.rows(rows)


CPU = torch.device("cpu")


class View:
    """The data of one client.

    Attributes:
        items: What has a label each: rows, the graphs of the shard, or pairs of rows.
        graph_ptr: First row of every graph and the end of the last, int64 `[G + 1]`; None: items are no graphs.
        device: Where its tensors are, except those documented as in the map.
        propagation: How its hops were computed; None: it has none.
        train, val, test: Numbers of items, int64.
    """

    def __init__(
        self,
        key: Hashable,
        shard: Shard,
        split: Split,
        hops: "Sequence[Rows] | ComputedHops",
        classes: int,
        cache: Cache,
        device: torch.device = CPU,
        propagation: PropagationOptions | None = None,
        all_edges: AllEdges | None = None,
        flipped: bool = False,
        boundary: "Callable[[], Boundary] | None" = None,
        target: Target = CLASSIFICATION,
        scale: Scale | None = None,
    ) -> None:
        """Wraps what the store mapped.

        Args:
            key: Different for every view that shares the cache.
            hops: Hop 1, 2, … of its features, each `[N, F]`, dense or sparse; or what computes them when they are read.
            cache: The host's cache, in the memory of the device.
            device: The processor, where tensors use the memory of the map, or a GPU.
            all_edges: Neighbours at all clients, where layers read these.
            flipped: Training labels y are C - 1 - y (Fang et al., USENIX Security 2020), all others as they are.
            boundary: Opens its edges to other clients; None: hops do not run over them.
            target: What labels are.
            scale: Mean and spread by which training sees numbers that are predicted; None: as they are.
        """
        self.client = shard.client
        self.classes = classes
        self.nodes, self.items = shard.nodes, shard.items
        self.entries = shard.entries
        self.device = device
        self.propagation = propagation
        self.all_edges = all_edges
        self.target = target
        self._key, self._flipped, self._boundary = key, flipped, boundary
        self._shard = shard
        self._cache = cache
        parts = [torch.from_numpy(rows).long() for rows in (split.train, split.val, split.test)]
        self.train, self.val, self.test = (rows.to(device) for rows in parts)
        self._parts = list(zip((self.train, self.val, self.test), parts))
        self._computed: ComputedHops | None = None if isinstance(hops, Sequence) else hops
        # These are the hops in the map.
        self._hops = [_features(rows) for rows in (shard.x, *(hops if isinstance(hops, Sequence) else ()))]
        self.graph_ptr = None if shard.graph is None else torch.from_numpy(shard.graph_ptr).to(device)
        self.scale = scale_of(scale, shard.target, split.train)
        self._row = shard.first_row_of(int(split.train[0])) if len(split.train) else 0
        self._samples: dict[int, bytes] = {}
        self._used: set[Hashable] = set()
        self._watched: dict[str, int] = {}
        self._rows_at_first: list[Tensor] = []
        self._edges: list[tuple[Tensor, Tensor]] = []
        self._mapped_adjacency: list[tuple[Tensor, tuple[int, ...]]] = []
        self._complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_complete" in self.__dict__:
            raise AttributeError(f"the data of a client is read-only: {name} cannot be set")
        super().__setattr__(name, value)

    def written(self) -> str | None:
        """Names the data that a method wrote to since it was opened; None: it wrote to none.

        Torch counts writes into a tensor. What was overwritten behind its back, as through `numpy()`, is seen by the
        numbers: all of them where the view is watched, else those of one row of features and hops.
        """
        named = {"train": self.train, "val": self.val, "test": self.test, "graph_ptr": self.graph_ptr}
        named |= {name: self.__dict__.get(name) for name in ("label", "train_label", "pairs")}
        for name, tensor in named.items():
            # None of these tensors is made by writing into it.
            if tensor is not None and write_count(tensor):
                return name
        computed = self._cache.peek((self._key, HOPS)) or ()
        for k, hop in enumerate((*self._hops, *computed)):
            if any(writes(hop)) or (k in self._samples and self._sample(hop) != self._samples[k]):
                return f"hop({k})" if k else "x"
        if any(any(writes(pair)) for pair in self._edges):
            return "edges"
        if any(writes(adjacency) != before for adjacency, before in self._mapped_adjacency):
            return "adjacency"
        if self._watched and (overwritten := self._overwritten()) is not None:
            return overwritten
        for key in self._used:
            if self._cache.written((self._key, key)):
                return key if isinstance(key, str) else f"cache({key!r})"
        self._used.clear()
        return None

    def watch(self) -> None:
        """Remembers all that lies in the map, for `written`; of an array that is large, nothing."""
        self._watched.update(self._contents())
        self._rows_at_first.extend(t.clone() for t in (self.train, self.val, self.test))

    def _overwritten(self) -> str | None:
        """Names data whose numbers have changed since the view was watched; on a GPU, of what lies in the map."""
        for name, content in self._contents().items():
            if self._watched[name] != content:
                return name
        if self.device.type != "cpu":
            return None
        rows = dict(zip(("train", "val", "test"), self._rows_at_first))
        sources = rows | {"label": self._labels_here(), "train_label": self._training_labels_here(rows["train"])}
        for name, source in sources.items():
            if name in self.__dict__ and self.__dict__[name].numpy().tobytes() != source.numpy().tobytes():
                return name
        if self._mapped_adjacency and self._shard.edge_weight is None:
            # All adjacencies of a host share these ones.
            return "adjacency" if bool((self._cache.ones(self.entries) != 1).any()) else None
        return None

    def _contents(self) -> dict[str, int]:
        """Digests the arrays in the map, XXH3-64 by name."""
        shard = self._shard
        named = {"csr": [shard.indptr, shard.indices], "label": [self._item_label()]}
        if shard.edge_weight is not None:
            named["edge_weight"] = [shard.edge_weight]
        return _digests(named | _arrays_of(self._hops) | _arrays_of(self._cache.peek((self._key, HOPS)) or (), 1))

    def _sample(self, hop: StoredFeatures) -> bytes:
        """Reads some numbers of a training row of a hop, in the map, whose page training reads anyway."""
        if isinstance(hop, Tensor):
            return hop[self._row : self._row + 1, :16].numpy().tobytes()
        starts, *parts = hop.parts()
        start = int(starts[self._row])
        parts_of_row = starts[self._row : self._row + 2], *(part[start : start + 16] for part in parts)
        return b"".join(part.numpy().tobytes() for part in parts_of_row)

    @property
    def items_are_rows(self) -> bool:
        """Whether what is predicted are the nodes themselves, so that their edges are those of items."""
        return self.graph_ptr is None and self.pairs is None

    @property
    def features(self) -> int:
        """Width F of the features."""
        return int(self._hops[0].shape[1])

    @property
    def x(self) -> StoredFeatures:
        """Features as stored, in the map, float32 or float16 `[N, F]`, dense or sparse."""
        return self.hop(0)

    def hop(self, k: int) -> StoredFeatures:
        """Returns hop k as stored, in the map, float32 or float16 `[N, F]`, dense or sparse; hop 0 is x.

        One that is not stored lies in memory, and the cache keeps it.
        """
        hop = self._hops[k] if k < len(self._hops) or self._computed is None else self._all_computed()[k - 1]
        if k not in self._samples:
            self._samples[k] = self._sample(hop)
        return hop

    def is_sparse(self, k: int) -> bool:
        """Whether hop k is sparse, which is known of the features where these are dense."""
        return isinstance(self.x, SparseMatrix) and isinstance(self.hop(k), SparseMatrix)

    def _all_computed(self) -> list[StoredFeatures]:
        computed = self._computed
        assert computed is not None

        def compute() -> list[StoredFeatures]:
            hops = [_features(rows) for rows in computed.all()]
            if self._watched:
                self._watched.update(_digests(_arrays_of(hops, 1)))
            return hops

        hops: list[StoredFeatures] = self.cache(HOPS, compute)
        return hops

    def block(self, k: int, start: int = 0, stop: int | None = None) -> StoredFeatures:
        """Copies successive rows of hop k to the device, as stored; a GPU keeps the hop if it fits its cache."""
        hop = self._on_device_if_it_fits(k)
        if isinstance(hop, Tensor):
            return _send(hop[start:stop], self.device)
        low, high, _ = slice(start, stop).indices(len(hop))
        return hop.block(low, max(low, high)).to(self.device)

    def rows(self, k: int, rows: Tensor) -> StoredFeatures:
        """Copies some rows of hop k to the device, float32 `[n, F]`."""
        hop, rows = self._on_disk(k, rows) or (self._on_device_if_it_fits(k), rows)
        rows = self._rows_here(rows) if hop.device.type == "cpu" else rows.to(hop.device, non_blocking=True)
        chosen = _chosen(hop, rows, self.device) if isinstance(hop, Tensor) else hop.rows(rows)
        return _send(chosen, self.device).float()

    def _on_disk(self, k: int, rows: Tensor) -> tuple[StoredFeatures, Tensor] | None:
        """A hop of some rows, and where rows lie in it, if hops of all of these are on disk, and of others are not."""
        if k == 0 or self._computed is None:
            return None
        place = self._computed.place_of(self._rows_here(rows).numpy())
        return None if place is None else (_features(self._computed.on_disk[k - 1]), torch.from_numpy(place))

    def _rows_here(self, rows: Tensor) -> Tensor:
        """Returns numbers of rows on the processor; those of a part are there, and a device need not be asked."""
        return next((here for there, here in self._parts if there is rows), rows).cpu()

    def whole(self, k: int) -> StoredFeatures:
        """Returns hop k on the device, float32 `[N, F]`, a sparse one with its transpose, which the cache keeps."""
        hop = self.hop(k)
        if isinstance(hop, Tensor):
            return self.block(k).float()
        if self.device.type != "cpu":
            copy = self._on_device_if_it_fits(k)
            assert isinstance(copy, SparseMatrix)
            matrix: SparseMatrix = self.cache(("whole", k), lambda: copy.to(self.device).float().prepare())
            return matrix
        # Columns stay in the map, which shall end with the view.
        values, transposed = self.cache(("whole", k), lambda: _apart_of_the_map(hop))
        if values is None:
            return SparseMatrix(hop.csr, transposed)
        indptr, indices, _ = hop.parts()
        return SparseMatrix.of(indptr, indices, values, self.features, transposed)

    def _on_device_if_it_fits(self, k: int) -> StoredFeatures:
        """Returns hop k on the device if it is there or fits, else in the map."""
        hop = self.hop(k)
        if self.device.type == "cpu":
            return hop
        self._used.add(("hop", k))
        size = hop.nbytes if isinstance(hop, Tensor) else hop.most_bytes
        copy: StoredFeatures | None = self._cache.keep((self._key, ("hop", k)), size, lambda: _send(hop, self.device))
        return hop if copy is None else copy

    def _item_label(self) -> np.ndarray:
        if (target_NT := self._shard.target) is not None:
            return target_NT
        label = self._shard.item_label
        if self._flipped:
            train, label = self._parts[0][1].numpy(), label.copy()
            label[train] = self.classes - 1 - label[train]
        return label

    @cached_property
    def label(self) -> Tensor:
        """Label of every item, int64 `[items]`; -1 is unlabelled. A method may read it at training items only.

        With `target: multilabel` int8 `[items, C]`, -1 is missing; with `regression` float32 `[items, C]`, NaN is.
        """
        return self._build(lambda: self._labels_here().to(self.device))

    @cached_property
    def train_label(self) -> Tensor:
        """Label of every training item, as of `label`; numbers have mean 0 and spread 1 by `scale`.

        With `target: clustering` training has no labels, and these are the numbers of the items.
        """
        chosen = self.train.cpu()
        return self._build(lambda: self._training_labels_here(chosen).to(self.device))

    def _labels_here(self, items: Tensor | None = None) -> Tensor:
        """Makes the labels of some items, or all, on the processor."""
        label = torch.from_numpy(self._item_label())
        label = label if items is None else label.index_select(0, items)
        if self.target in OF_CLASSES:
            return label.long()
        return label.nan_to_num(-1).to(torch.int8) if self.target == MULTILABEL else label

    def _training_labels_here(self, items: Tensor) -> Tensor:
        if self.target == CLUSTERING:
            return items.clone()
        label = self._labels_here(items)
        return label if self.scale is None else self.scale.standardized(label)

    @property
    def loss_unit(self) -> float:
        """A loss of 1 in the units of the label; of several targets losses are in spreads of each."""
        return float(self.scale.spread_T[0]) ** 2 if self.scale is not None and len(self.scale.spread_T) == 1 else 1.0

    def in_units(self, scores: Tensor) -> Tensor:
        """Returns what a model says of items, `[items, C]`, in the units of the labels."""
        return scores if self.scale is None else self.scale.in_units(scores)

    @cached_property
    def pairs(self) -> Tensor | None:
        """Both rows of every item, int64 `[items, 2]`, the smaller one first; None: items are no pairs of rows."""
        pairs = self._shard.pairs
        return None if pairs is None else self._build(lambda: torch.from_numpy(pairs.ends).long().to(self.device))

    def rows_of(self, items: Tensor) -> Tensor:
        """Returns rows of some items, int64: the items themselves, the nodes of graphs, or both rows of pairs."""
        if self.pairs is not None:
            return self.pairs[items].flatten()
        if self.graph_ptr is None:
            return items
        first = self.graph_ptr[items]
        return ranges(first, self.graph_ptr[items + 1] - first)

    def touch(self, hops: Sequence[int], training: bool, edges: bool = False) -> None:
        """Brings pages of hops, of their training rows alone, or of the adjacency into memory; makes `train_label`."""
        _ = self.train_label
        for k in hops if self._computed is None else [0]:
            touch(self._hops[k], self.rows_of(self.train).cpu() if training else None)
        if edges:
            shard = self._shard
            attr = None if shard.edge_attr is None else shard.edge_attr.reshape(-1)
            for part in (shard.indptr, shard.indices, shard.edge_weight, attr):
                if part is not None:
                    part[:: PAGE // part.itemsize].sum()

    @property
    def node(self) -> np.ndarray:
        """Global id of every row, int64 `[N]`, read-only."""
        return _read_only(self._shard.node)

    @property
    def csr(self) -> tuple[np.ndarray, np.ndarray]:
        """Row starts `[N + 1]` and columns, ascending in rows, of A without loops, int32, in the map, read-only."""
        return _read_only(self._shard.indptr), _read_only(self._shard.indices)

    @property
    def edge_weight(self) -> np.ndarray | None:
        """Weight of every entry of `csr`, float32 `[E]`, in the map, read-only; None: edges have none."""
        weight = self._shard.edge_weight
        return None if weight is None else _read_only(weight)

    @property
    def edge_attr(self) -> np.ndarray | None:
        """Features of every entry of `csr`, float32 `[E, D]`, in the map, read-only; None: edges have none."""
        attr = self._shard.edge_attr
        return None if attr is None else _read_only(attr)

    @cached_property
    def boundary(self) -> "Boundary":
        """Its edges to other clients, in the map, where hops run over these."""
        assert self._boundary is not None
        return self._boundary()

    @property
    def edges(self) -> tuple[Tensor, Tensor]:
        """The arrays of `csr` as tensors on the device."""
        if not self._edges:
            self._edges.append((torch.from_numpy(self._shard.indptr), torch.from_numpy(self._shard.indices)))
        starts, columns = self._edges[0]
        if self.device.type == "cpu":
            return starts, columns
        return self.cache("edges", lambda: (starts.to(self.device), columns.to(self.device)))

    @property
    def adjacency(self) -> Tensor:
        """A without self loops: float32 CSR `[N, N]`, int32 indices, of ones or weights; zero-copy on the processor."""
        if self.device.type != "cpu":
            return self.cache("adjacency", self._adjacency)
        # The cache has no entry for it: the map of the shard stays open as long as this does, and shall end with the
        # view.
        if not self._mapped_adjacency:
            built = self._build(self._adjacency)
            self._mapped_adjacency.append((built, writes(built)))
        return self._mapped_adjacency[0][0]

    def _adjacency(self) -> Tensor:
        weight = self._shard.edge_weight
        values = (self._cache.ones(self.entries) if weight is None else torch.from_numpy(weight)).to(self.device)
        return torch.sparse_csr_tensor(*self.edges, values, size=(self.nodes, self.nodes), check_invariants=False)

    @property
    def degree(self) -> Tensor:
        """Degree with self loop, float32 `[N]`: the sum of its edges' weights and 1, where edges have weights."""
        return self.cache("degree", lambda: self._degree().float().to(self.device))

    @property
    def exact_degree(self) -> Tensor:
        """The same before it is rounded: float64 `[N]`, on the processor."""
        return self.cache("exact_degree", self._degree)

    def _degree(self) -> Tensor:
        return torch.from_numpy(degrees(self._shard.indptr, self._shard.edge_weight))

    def smooth(self, y_NC: Tensor) -> Tensor:
        """Smooths rows over the symmetrically normalised graph with self loops, on a processor by the hops' kernel.

        y is float32 `[N, C]`, and so is the result.
        """
        if self.device.type != "cpu":
            return smooth_by_torch(self.adjacency, self.degree, y_NC)
        # Loading the kernel takes a third of a second and 140 MB: only a host that needs it loads it.
        from shoal.storage.graph.propagation import propagate

        out = torch.empty_like(y_NC, memory_format=torch.contiguous_format)
        shard, y = self._shard, y_NC.contiguous().numpy()
        propagate(shard.indptr, shard.indices, y, 0.5, out.numpy(), weight=shard.edge_weight)
        return out

    def cache(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """Returns node-sized data, rebuilt from the shard when needed: kept while there is room, never checkpointed."""
        self._used.add(key)
        return self._cache.get((self._key, key), lambda: self._build(build))

    def _build(self, build: Callable[[], Any]) -> Any:
        return apart(build) if self.device.type == "cpu" and self.nodes > SMALL else build()


def _arrays_of(hops: Sequence[StoredFeatures], first: int = 0) -> dict[str, list[np.ndarray]]:
    """Lists the arrays of successive hops, by name."""
    parts = {k: [hop] if isinstance(hop, Tensor) else hop.parts() for k, hop in enumerate(hops, first)}
    return {f"hop({k})" if k else "x": [part.numpy() for part in several] for k, several in parts.items()}


def _digests(named: dict[str, list[np.ndarray]]) -> dict[str, int]:
    """Digests arrays that are not large, XXH3-64 by name."""
    return {name: _digest(arrays) for name, arrays in named.items() if sum(a.nbytes for a in arrays) <= WATCHED}


def _digest(arrays: Sequence[np.ndarray]) -> int:
    hasher = xxhash.xxh3_64()
    for array in arrays:
        hasher.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return hasher.intdigest()


def _features(rows: Rows) -> StoredFeatures:
    """Makes tensors over the memory of arrays."""
    if isinstance(rows, CsrRows):
        return SparseMatrix.of(rows.indptr, rows.columns, rows.values, rows.features)
    return torch.from_numpy(rows)


def _chosen(hop: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """Selects rows of a hop where it lies, as stored; from the map for a GPU, in memory that it can read."""
    if hop.device.type == device.type:
        return hop.index_select(0, rows)
    out = torch.empty(len(rows), hop.shape[1], dtype=hop.dtype, device="cpu", pin_memory=device.type == "cuda")
    return torch.index_select(hop, 0, rows, out=out)


def _send(features: StoredFeatures, device: torch.device) -> StoredFeatures:
    """Sends features to a device; a dense copy is asynchronous."""
    return features.to(device, non_blocking=True) if isinstance(features, Tensor) else features.to(device)


def _apart_of_the_map(hop: SparseMatrix) -> tuple[Tensor | None, Tensor]:
    """Makes what `View.whole` adds to a mapped matrix: float32 values, if others are stored, and the transpose."""
    whole = SparseMatrix(hop.csr).float()
    return None if whole.dtype == hop.dtype else whole.parts()[2], whole.transposed


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def smooth_by_torch(adjacency: Tensor, degree_N: Tensor, y_NC: Tensor) -> Tensor:
    """Computes D^{-1/2} (A + I) D^{-1/2} y by torch's sparse product."""
    root_N1 = degree_N.rsqrt()[:, None]
    scaled_NC = root_N1 * y_NC
    return root_N1 * (torch.sparse.mm(adjacency, scaled_NC) + scaled_NC)
