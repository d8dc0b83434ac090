"""A whole graph in memory, before any client exists, in the one form every later step relies on."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.graph.targets import describe_outputs


@dataclass(frozen=True)
class Cleaning:
    """Counts of what `clean_edges` removed and added, in directed entries, and of nodes dropped before."""

    entries_read: int
    self_loops: int
    duplicates: int
    reversed_added: int
    nodes_dropped: int = 0


@dataclass(frozen=True)
class Domain:
    """One of the concatenated graphs, whose nodes follow those of the ones before it; no edge joins two of them."""

    name: str
    nodes: int


@dataclass(frozen=True)
class Graph:
    """A graph with labels: undirected, without self loops or duplicates, stored as CSR.

    Labels, split and clients are those of items: of nodes, or, where the dataset is many small graphs behind one
    another, of these graphs.

    Attributes:
        name: Its name in a config.
        indptr: Row pointer, int64 `[N + 1]`.
        indices: Neighbours of every node in ascending order, int32 `[E]`; every edge appears both ways.
        x: Features `[N, F]`, float32 or float16: a NumPy array (or memory map), or a float32 SciPy CSR array.
        y: Label of every item, int64 `[items]`; -1 means unlabelled. Where there are targets, 0 for an item with any.
        classes: Number of classes C; labels lie in `0..C-1`. Where there are targets, their number T.
        split: The dataset's own split, int8 `[items]` of UNASSIGNED, TRAIN, VAL, TEST; None if it has none.
        assignment: The dataset's own client of every item, int32 `[items]`; None if it has none.
        cleaning: Counts of what was done to the edges as published.
        synthetic: True if the graph was generated and not published; reported with every result on it.
        domains: The graphs that it consists of, where there are several.
        vocabulary: What every column of x stands for, texts `[F]`; None if that is not known.
        graph_of: The small graph of every node, int64 `[N]`, ascending from 0 to G - 1 without a gap; no edge joins
            two of them. None: this is one graph, and its items are nodes.
        copy_of: Where small graphs were cut out of a large one, the node of that which a node is, int64 `[N]`.
        label_names: What every class is called, C texts; None if classes are numbers.
        ids: What the user calls the nodes, an Arrow array `[N]` of int64 or of texts; None: 0 to N - 1, in this order.
        notes: Lines for the user on what was found in the data.
        edge_weight: Weight of every entry of `indices`, float32 `[E]`, positive, the same both ways; None: edges have
            none, and all count 1.
        edge_attr: Features of every entry of `indices`, float32 `[E, D]`: those of the edge from its column to its row;
            None: edges have none.
        edge_names: What every column of them stands for, D texts; None if that is not known.
        edge_kinds: How many of these columns, the first ones, are kinds of edges, ones and zeros; 0: all may be.
        target: What is predicted of every item where these are no classes, float32 `[items, T]`, NaN where it is
            missing; `label_names` are then theirs. None: classes are predicted.
    """

    name: str
    indptr: np.ndarray
    indices: np.ndarray
    x: Any
    y: np.ndarray
    classes: int
    split: np.ndarray | None = None
    assignment: np.ndarray | None = None
    cleaning: Cleaning = field(default_factory=lambda: Cleaning(0, 0, 0, 0))
    synthetic: bool = False
    domains: tuple[Domain, ...] = ()
    vocabulary: np.ndarray | None = None
    graph_of: np.ndarray | None = None
    label_names: tuple[str, ...] | None = None
    edge_weight: np.ndarray | None = None
    ids: Any = None
    notes: tuple[str, ...] = ()
    copy_of: np.ndarray | None = None
    target: np.ndarray | None = None
    edge_attr: np.ndarray | None = None
    edge_names: tuple[str, ...] | None = None
    edge_kinds: int = 0

    @property
    def edge_features(self) -> int:
        """Number of features D of an edge; 0 where edges have none."""
        return 0 if self.edge_attr is None else self.edge_attr.shape[1]

    @property
    def nodes(self) -> int:
        """Number of nodes N."""
        return len(self.indptr) - 1

    @property
    def items(self) -> int:
        """Number of items: nodes, or small graphs."""
        return len(self.y)

    @property
    def item_name(self) -> str:
        """Name of an item, for messages."""
        return "node" if self.graph_of is None else "graph"

    @property
    def outputs(self) -> str:
        """Number of classes, or of targets, in words."""
        return describe_outputs(self.classes, self.target is None)

    def of_nodes(self, values: np.ndarray) -> np.ndarray:
        """Returns values of nodes `[N]`, from those of their items `[items]`."""
        return values if self.graph_of is None else values[self.graph_of]

    def of_items(self, values: np.ndarray) -> np.ndarray:
        """Returns values of items `[items]`, from values `[N]` that are the same for all nodes of an item."""
        return values if self.graph_of is None else values[first_rows(self.graph_of)[:-1]]

    @property
    def entries(self) -> int:
        """Number of directed entries: twice the number of undirected edges."""
        return int(self.indptr[-1])

    @property
    def features(self) -> int:
        """Width F of the features."""
        return int(self.x.shape[1])

    def without_nodes(self, dropped: int) -> "Graph":
        """Copies the graph, noting that some nodes were dropped when it was read."""
        return replace(self, cleaning=replace(self.cleaning, nodes_dropped=dropped))


def first_rows(graph_of: np.ndarray) -> np.ndarray:
    """Finds the first row of every run of equal numbers in `[N]`, and N as the last: int64 `[runs + 1]`."""
    changes = np.flatnonzero(graph_of[1:] != graph_of[:-1]) + 1
    return np.concatenate([np.zeros(min(1, len(graph_of)), dtype=np.int64), changes, [len(graph_of)]])


def require_edges(edge_index: np.ndarray, where: str) -> None:
    """Raises ShoalError: these are no integers `[2, E]`."""
    if edge_index.ndim != 2 or len(edge_index) != 2 or edge_index.dtype.kind not in "iu":
        form = f"{edge_index.dtype} {list(edge_index.shape)}"
        if edge_index.ndim == 2 and edge_index.shape[1] == 2 and edge_index.dtype.kind in "iu":
            form += "; give its transpose"
        raise ShoalError(where, f"edge_index must be integers of shape [2, E], found {form}")


def no_node(number: int, nodes: int, where: str) -> ShoalError:
    """Makes the error for an end of an edge that is no node."""
    return ShoalError(where, f"edge_index names node {number}, but the {nodes} nodes count from 0")


def clean_edges(edge_index: np.ndarray, nodes: int, where: str) -> tuple[np.ndarray, np.ndarray, Cleaning]:
    """Makes edges undirected and simple: indptr int64 `[N + 1]`, indices int32 `[E]`, counts.

    Edges are integers `[2, E]`, given one or both ways.

    Raises ShoalError: an end of an edge is not a node.
    """
    require_edges(edge_index, where)
    source, target = edge_index
    if edge_index.size:
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0 or high >= nodes:
            raise no_node(low if low < 0 else high, nodes, where)
    proper = source != target
    loops = int(len(source) - proper.sum())
    source, target = source[proper], target[proper]
    # The import takes 0.2 s of every process, and one that opens shards needs no matrix.
    import scipy.sparse as sp

    ones = np.ones(len(source), dtype=np.int8)
    given = sp.coo_array((ones, (source, target)), shape=(nodes, nodes)).tocsr()
    given.sum_duplicates()
    distinct = int(given.nnz)
    given.data[:] = 1
    both = (given + given.T).tocsr()
    both.sort_indices()
    counts = Cleaning(
        entries_read=int(edge_index.shape[1]),
        self_loops=loops,
        duplicates=len(source) - distinct,
        reversed_added=int(both.nnz) - distinct,
    )
    return both.indptr.astype(np.int64), both.indices.astype(np.int32), counts
