"""One client's graph, and its hops: a memory-mapped Arrow file each."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import first_rows
from shoal.storage.graph.pairs import Pairs
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards import arrow_file
from shoal.storage.shards.arrow_file import REMAKE, FileRecord, MappedFile, Packs, require_content, require_none
from shoal.storage.shards.bounds import (
    Limits,
    check_adjacency,
    check_edge_attr,
    check_graphs,
    check_ids,
    check_labels,
    check_pairs,
    check_rows,
    check_targets,
    check_weights,
)
from shoal.storage.shards.split import Split

if TYPE_CHECKING:
    from shoal.storage.graph.induced import Induced

MAX_ENTRIES = 2**31


@dataclass(frozen=True)
class Shard:
    """The graph of one client, zero-copy over its file: one graph of nodes, or many small ones behind one another.

    Where items are pairs of nodes, its edges are those that are not held out.

    Attributes:
        node: Global id of every row, int64 `[N]`.
        label: Label of every row, int32 `[N]`; -1 is unlabelled; that of its graph, where labels are of graphs; -1
            where they are of pairs.
        indptr: Row pointer, int32 `[N + 1]`.
        indices: Rows of the neighbours, int32 `[E]`, both directions of every edge, ascending in a row.
        x: Features, float32 or float16 `[N, F]`, dense or sparse.
        graph: Global number of the graph of every row, int64 `[N]`, not descending; None: items are nodes, or pairs.
        pairs: Pairs of rows, where these have labels; None: items are nodes, or graphs.
        edge_weight: Weight of every entry of `indices`, float32 `[E]`; None: edges have none, and count 1.
        target: What is predicted of every item where that is no class, float32 `[items, T]`; NaN: missing. Labels are
            then 0 for items with any. None: classes are predicted.
        edge_attr: Features of every entry of `indices`, float32 `[E, D]`; None: edges have none.
    """

    client: int
    node: np.ndarray
    label: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    x: Rows
    graph: np.ndarray | None = None
    pairs: Pairs | None = None
    edge_weight: np.ndarray | None = None
    target: np.ndarray | None = None
    edge_attr: np.ndarray | None = None

    @property
    def nodes(self) -> int:
        return len(self.node)

    @property
    def entries(self) -> int:
        return len(self.indices)

    @cached_property
    def graph_ptr(self) -> np.ndarray:
        """First row of every graph and the end of the last, int64 `[G + 1]`. Raises ValueError: items are no graphs."""
        if self.graph is None:
            raise ValueError(f"client {self.client}: its items are {self.kind}, and it holds one graph")
        return first_rows(self.graph)

    @property
    def kind(self) -> str:
        """Name of an item, for messages."""
        return "pairs" if self.pairs is not None else "nodes" if self.graph is None else "graphs"

    @property
    def items(self) -> int:
        """Number of items: rows, graphs, or pairs of rows."""
        if self.pairs is not None:
            return len(self.pairs)
        return self.nodes if self.graph is None else len(self.graph_ptr) - 1

    def first_row_of(self, item: int) -> int:
        """Returns the first row of an item."""
        if self.pairs is not None:
            return int(np.searchsorted(self.pairs.starts, item, side="right")) - 1
        return item if self.graph is None else int(self.graph_ptr[item])

    @property
    def item(self) -> np.ndarray:
        """Global number of every item, node or graph, int64 `[items]`. Raises ValueError: items are pairs."""
        if self.pairs is not None:
            raise ValueError(f"client {self.client}: its items are pairs of nodes, which have no numbers")
        return self.node if self.graph is None else self.graph[self.graph_ptr[:-1]]

    @property
    def item_label(self) -> np.ndarray:
        """Label of every item, int32 `[items]`; -1 is unlabelled."""
        if self.pairs is not None:
            return self.pairs.label.astype(np.int32)
        return self.label if self.graph is None else self.label[self.graph_ptr[:-1]]


def with_training_labels(shard: Shard, split: Split) -> Shard:
    """Returns a shard with the labels that training sees, where they differ; those of other items stay."""
    if split.train_label is None:
        return shard
    label = shard.item_label.copy()
    label[split.train] = split.train_label
    return replace(shard, label=label if shard.graph is None else np.repeat(label, np.diff(shard.graph_ptr)))


def write_shard(path: Path, *args: Any, **kwargs: Any) -> FileRecord:
    """Writes one client's shard to a file of its own; arguments and errors of `shard_columns`."""
    return arrow_file.write(path, "shard", shard_columns(*args, **kwargs))


def shard_columns(
    client: int,
    part: "Induced",
    label: np.ndarray,
    x: Rows,
    graph_of: np.ndarray | None = None,
    pairs: Pairs | None = None,
    edge_weight: np.ndarray | None = None,
    target: np.ndarray | None = None,
    edge_attr: np.ndarray | None = None,
) -> dict[str, pa.Array]:
    """Makes the columns of one client's shard.

    Raises ShoalError: 2^31 entries or more, of edges or of sparse features, or a feature that did not fit float16.

    Args:
        part: The client's rows and induced edges.
        label: Label of every node of the whole graph, `[nodes]`.
        x: Features of the client's rows, float32 or float16 `[N, F]`, dense or sparse; infinity stands for one too
            large for float16.
        graph_of: Graph of every node of the dataset, `[nodes]`, ascending, where labels are of graphs.
        pairs: Pairs of rows, where these have labels; the edges of `part` are then those that are not held out.
        edge_weight: Weights of the edges of `part`, float32 `[E]`, where they have any.
        target: Targets of every item of the dataset, `[items, T]`, where these are no classes.
        edge_attr: Features of the edges of `part`, float32 `[E, D]`, where they have any.
    """
    if len(part.indices) >= MAX_ENTRIES:
        raise ShoalError(
            f"client {client}: {len(part.indices)} adjacency entries, a shard holds fewer than 2^31; use more clients"
        )
    if isinstance(x, CsrRows) and x.entries >= MAX_ENTRIES:
        raise ShoalError(
            f"client {client}: {x.entries} feature values, a sparse shard holds fewer than 2^31; use more clients or "
            "data.layout dense"
        )
    # Infinity of either sign, by its bits: a tenth of the time that NumPy takes of float16.
    stored = x if isinstance(x, np.ndarray) else x.values
    if x.dtype == np.float16 and (stored.view(np.uint16) << 1 == 0xF800).any():
        raise ShoalError(
            "data.dtype",
            f"float16 ends at {np.finfo(np.float16).max:g}, but client {client} has a larger feature; use float32",
        )
    of_rows = None if target is None or graph_of is not None else target[part.node]
    columns = graph_columns(part, label[part.node], x, edge_weight, of_rows, edge_attr)
    if graph_of is not None:
        graph = graph_of[part.node].astype(np.int64)
        # Breadth-first order goes from one component to the next by their smallest nodes, and so graph by graph.
        assert not (graph[1:] < graph[:-1]).any()
        columns["graph"] = pa.array(graph)
        if target is not None:
            # The first row of a graph has its targets.
            first = first_rows(graph)[:-1]
            columns["target"] = _rows_in_lists(np.searchsorted(first, np.arange(len(graph) + 1)), target[graph[first]])
    if pairs is not None:
        values = {"partner": pairs.partner, "label": pairs.label, "part": pairs.part}
        structs = pa.StructArray.from_arrays([pa.array(column) for column in values.values()], names=list(values))
        columns["pairs"] = pa.ListArray.from_arrays(pa.array(pairs.starts), structs)
    return columns


def graph_columns(
    part: "Induced",
    label_N: np.ndarray,
    x_NF: Rows,
    edge_weight: np.ndarray | None = None,
    target_NT: np.ndarray | None = None,
    edge_attr: np.ndarray | None = None,
) -> dict[str, pa.Array]:
    """Makes the columns of the graph of some nodes, with their labels or targets and stored features."""
    neighbors = pa.ListArray.from_arrays(
        pa.array(part.indptr.astype(np.int32)), pa.array(part.indices.astype(np.int32))
    )
    return {
        "node": pa.array(part.node),
        "label": pa.array(label_N.astype(np.int32)),
        "neighbors": neighbors,
        "x": arrow_file.rows_column(x_NF),
        **weights_column(part.indptr, edge_weight),
        **({} if target_NT is None else {"target": arrow_file.rows_column(target_NT)}),
        **edge_attr_column(part.indptr, edge_attr),
    }


class AllEdges(NamedTuple):
    """A client's rows and behind them their neighbours at other clients, N + U in all.

    Attributes:
        indptr: Row starts, int32 `[N + U + 1]`; rows of neighbours at others are empty.
        indices: Neighbours, int32 `[E]`.
        degree: By all edges of the whole graph, and itself, int32 or, of weights, float64 `[N + U]`.
        weight: Of every entry, float32 `[E]`; None: edges have none.
    """

    indptr: np.ndarray
    indices: np.ndarray
    degree: np.ndarray
    weight: np.ndarray | None


def weights_column(indptr: np.ndarray, edge_weight: np.ndarray | None) -> dict[str, pa.Array]:
    """Makes the column of the weights of edges, beside that of the neighbours; none where edges have none."""
    if edge_weight is None:
        return {}
    return {"weights": pa.ListArray.from_arrays(pa.array(indptr.astype(np.int32)), pa.array(edge_weight))}


def edge_attr_column(indptr: np.ndarray, edge_attr: np.ndarray | None) -> dict[str, pa.Array]:
    """Makes the column of the features of edges, D numbers an edge; none where edges have none."""
    if edge_attr is None:
        return {}
    return {"edge_attr": _rows_in_lists(indptr, edge_attr)}


def _rows_in_lists(starts: np.ndarray, values_ED: np.ndarray) -> pa.ListArray:
    """Makes a column of lists of rows, `[N]`, from where each list starts, `[N + 1]`, and rows float32 `[E, D]`."""
    flat = pa.array(np.ascontiguousarray(values_ED, dtype=np.float32).ravel())
    rows = pa.FixedSizeListArray.from_arrays(flat, values_ED.shape[1])
    return pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), rows)


def edge_attr_of(file: MappedFile, indptr: np.ndarray) -> np.ndarray | None:
    """Reads features of edges, float32 `[E, D]`; None: there are none. Raises ShoalError: they are of other edges."""
    if "edge_attr" not in file.names:
        return None
    starts, attr = file.lists_of_rows("edge_attr")
    if attr.dtype != np.float32 or not np.array_equal(starts, indptr):
        raise ShoalError(file.path, f"the features of edges do not fit the neighbours; {REMAKE}")
    return attr


def weights_of(file: MappedFile, indptr: np.ndarray) -> np.ndarray | None:
    """Reads weights of edges, float32 `[E]`; None: there are none. Raises ShoalError: they are of other edges."""
    if "weights" not in file.names:
        return None
    starts, weight = file.lists("weights")
    if weight.dtype != np.float32 or not np.array_equal(starts, indptr):
        raise ShoalError(file.path, f"the weights do not fit the neighbours; {REMAKE}")
    return weight


def open_shard(
    path: Path,
    client: int,
    record: FileRecord | None = None,
    limits: Limits | None = None,
    opened: Packs = None,
) -> Shard:
    """Maps a shard; with limits, every byte and every number but the features is checked first.

    Packs that are `opened` are not mapped again.

    Raises ShoalError: the file is missing, damaged, or another kind of file.
    """
    if limits is not None:
        if record is not None:
            require_content(path, record)
        shard = _map(path, client, record, opened)
        require_none(path, bounds_of(shard, limits))
        if opened is not None:
            return shard
        # The shard is mapped anew: what was read here and by no model shall not stay in the memory of this process.
        del shard
    return _map(path, client, record, opened)


def bounds_of(shard: Shard, limits: Limits) -> list[str]:
    """Reads the whole adjacency, all ids and all labels, and says what is out of bounds."""
    faults: list[str] = []
    check_ids(shard.node, limits.nodes, "node id", faults.append)
    check_labels(shard.label, limits.classes, faults.append)
    check_adjacency(shard.indptr, shard.indices, shard.nodes, faults.append)
    if shard.kind != ("pairs" if limits.pairs else "nodes" if limits.graphs is None else "graphs"):
        faults.append(f"its items are {shard.kind}")
    elif shard.graph is not None and limits.graphs is not None and not faults:
        check_graphs(shard.graph, shard.label, shard.indptr, shard.indices, limits.graphs, faults.append)
    elif shard.pairs is not None and not faults:
        check_pairs(shard.pairs, shard.indptr, shard.indices, faults.append)
    check_weights(shard.edge_weight, limits.weighted, faults.append)
    check_targets(
        shard.target, shard.item_label if shard.target is not None else shard.label, limits.targets, faults.append
    )
    check_edge_attr(shard.edge_attr, limits.edge_features, faults.append)
    check_rows("x", shard.x, shard.nodes, limits.features, faults.append)
    if isinstance(shard.x, CsrRows) != (limits.layout == "sparse"):
        faults.append(f"x is not {limits.layout}")
    return faults


def _map(path: Path, client: int, record: FileRecord | None, opened: Packs) -> Shard:
    file = MappedFile(path, "shard", record, opened)
    indptr, indices = file.lists("neighbors")
    if len(indptr) != file.rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        raise ShoalError(path, f"the row pointer does not fit the neighbours; {REMAKE}")
    graph = file.primitive("graph") if "graph" in file.names else None
    pairs = Pairs(*file.structs("pairs")) if "pairs" in file.names else None
    x, weight, edge_attr = file.features("x"), weights_of(file, indptr), edge_attr_of(file, indptr)
    target = _targets_of(file, graph)
    node, label = file.primitive("node"), file.primitive("label")
    return Shard(client, node, label, indptr, indices, x, graph, pairs, weight, target, edge_attr)


def _targets_of(file: MappedFile, graph: np.ndarray | None) -> np.ndarray | None:
    """Reads targets, float32 `[items, T]`; None: there are none. Raises ShoalError: they do not fit the graphs."""
    if "target" not in file.names:
        return None
    if graph is None:
        return file.matrix("target")
    first = first_rows(graph)[:-1]
    if not file.has_lists("target"):
        # Stores from before had the targets of a graph at each of its rows.
        return file.matrix("target")[first]
    starts, target = file.lists_of_rows("target")
    if len(target) != len(first) or not np.array_equal(np.flatnonzero(np.diff(starts)), first):
        raise ShoalError(file.path, f"the targets do not fit the graphs; {REMAKE}")
    return target


def open_hops(
    path: Path,
    nodes: int,
    propagation: PropagationOptions,
    record: FileRecord | None = None,
    limits: Limits | None = None,
    opened: Packs = None,
) -> MappedFile:
    """Maps the hops of a shard; with limits, every byte, the columns and rows and edges of labelled nodes are checked.

    Raises ShoalError: the file is missing, damaged, or of another shard or kernel.
    """
    if limits is not None and record is not None:
        require_content(path, record)
    file = MappedFile(path, "hops", record, opened)
    if limits is not None:
        require_none(path, _faults_of(file, nodes, propagation, limits))
    return file


def _faults_of(file: MappedFile, nodes: int, propagation: PropagationOptions, limits: Limits) -> list[str]:
    labelled = propagation.rows == "labelled"
    hop_names = [f"hop{k}" for k in range(0 if labelled else 1, propagation.stored(limits.relations) + 1)]
    weights = ["weights"] if limits.weighted else []
    names = ["row", "neighbors", *hop_names, *weights] if labelled else hop_names
    names = ["row", *hop_names] if propagation.computed else names
    beside = propagation.first_layer == "two_hop"
    names = ["neighbors", "degree", *hop_names, *weights] if beside else names
    if file.names != names:
        return [f"columns {', '.join(file.names)} and not {', '.join(names)}"]
    faults: list[str] = []
    if "row" in names:
        check_ids(file.primitive("row"), nodes, "row", faults.append)
    if labelled or beside:
        indptr, indices = file.lists("neighbors")
        check_adjacency(indptr, indices, file.rows, faults.append)
        check_weights(weights_of(file, indptr), limits.weighted, faults.append)
    if (file.rows < nodes) if beside else not (labelled or propagation.computed or file.rows == nodes):
        faults.append(f"{file.rows} rows for a shard of {nodes}")
    for name in hop_names:
        check_rows(name, file.features(name), file.rows, limits.features, faults.append)
    return faults


def only_labelled(file: MappedFile, shard: Shard, split: Split) -> tuple[Shard, Split, list[Rows]]:
    """Cuts out labelled nodes of a client, their neighbours, edges and degrees, and hops of the whole shard."""
    indptr, indices = file.lists("neighbors")
    x, *further = (file.features(name) for name in file.names if name.startswith("hop"))
    return *some_rows(shard, split, file.primitive("row"), indptr, indices, x, weights_of(file, indptr)), further


def some_rows(
    shard: Shard,
    split: Split,
    row: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    x: Rows,
    edge_weight: np.ndarray | None,
) -> tuple[Shard, Split]:
    """Makes a shard of some rows of another, by edges among them, features and weights; and the split of both."""
    new_row = np.full(shard.nodes, -1, dtype=np.int32)
    new_row[row] = np.arange(len(row), dtype=np.int32)
    parts = (np.sort(new_row[rows]) for rows in (split.train, split.val, split.test))
    target = None if shard.target is None else shard.target[row]
    edge_attr = None
    if shard.edge_attr is not None:
        from shoal.storage.graph.induced import Induced, entries_among  # loads kernels

        places = entries_among(Induced(row, indptr, indices), shard.indptr, shard.indices)
        edge_attr = shard.edge_attr[places]
    part = Shard(
        shard.client, shard.node[row], shard.label[row], indptr, indices, x, edge_weight=edge_weight, target=target,
        edge_attr=edge_attr,
    )  # fmt: skip
    return part, Split(*parts)
