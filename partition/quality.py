"""Quality of a partition: the edges it cuts, the sizes of clients, and how much their labels differ."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.partition.methods.cover import NO_CLIENT
from shoal.storage.graph.graph import Graph
from shoal.storage.graph.induced import kept_entries


@dataclass(frozen=True)
class Quality:
    """Figures of one partition; tuples have one entry a client.

    Attributes:
        cut_fraction: Share of directed entries whose ends no client holds both; 0 if there are none.
        balance: Nodes of the largest client over the mean.
        label_skew: Mean over clients with labelled items of the total variation distance (half the L1
            distance, 0 to 1) between the client's distribution of labels and that of the whole dataset, over
            labelled items.
        clients_without_edges: Number of clients that keep no edge.
        entries: Directed entries kept: twice the undirected edges inside the client.
        labelled: Items, nodes or graphs, with a label.
        classes: Classes of which the client has a labelled item.
        isolated: Nodes without a neighbour inside the client, those isolated from the start included.
        shared: Nodes that several clients hold, and those that none does; None: no node may have several.
    """

    cut_fraction: float
    balance: float
    nodes_min: int
    nodes_median: float
    nodes_max: int
    label_skew: float
    clients_without_edges: int
    nodes: tuple[int, ...]
    entries: tuple[int, ...]
    labelled: tuple[int, ...]
    classes: tuple[int, ...]
    isolated: tuple[int, ...]
    shared: dict[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The plain numbers, ready for JSON, without those of every client."""
        return {key: value for key, value in vars(self).items() if not isinstance(value, tuple | None)}


def quality(graph: Graph, assignment: np.ndarray, clients: int, kept: np.ndarray | None = None) -> Quality:
    """Quality of `assignment`, the client of every node, integers `[N]` in `0..clients-1` or `NO_CLIENT`, or where
    nodes may have several clients `[L, N]`, whose rows are such.

    Nodes that no client holds count only in what is cut.

    Entries are read in blocks: memory grows with nodes, and `graph.indices` may be a memory map. They are not read if
    `kept`, see `kept_entries`, is given, of the shape of the assignment, and no node may have several clients.
    """
    rows_LN = np.atleast_2d(assignment)
    kept_LN = [kept_entries(graph.indptr, graph.indices, row_N) for row_N in rows_LN] if kept is None else kept
    nodes, entries, isolated = np.zeros((3, clients), dtype=np.int64)
    counts = np.zeros(clients * graph.classes, dtype=np.int64)
    for row_N, kept_N in zip(rows_LN, np.atleast_2d(kept_LN)):
        held = row_N != NO_CLIENT
        nodes += np.bincount(row_N[held], minlength=clients)
        np.add.at(entries, row_N[held], kept_N[held])
        isolated += np.bincount(row_N[held & (kept_N == 0)], minlength=clients)
        of_items = graph.of_items(row_N)
        has_label = (of_items != NO_CLIENT) & (graph.y >= 0)
        label = of_items[has_label].astype(np.int64) * graph.classes + graph.y[has_label]
        counts += np.bincount(label, minlength=clients * graph.classes)
    labels_NC = counts.reshape(clients, graph.classes)
    labelled = labels_NC.sum(1)

    inside, shared = int(entries.sum()), None
    if len(rows_LN) > 1:
        holders_N = (rows_LN != NO_CLIENT).sum(0)
        from shoal.partition.methods.overlap import count_together

        inside = count_together(graph, rows_LN)
        shared = {"by several": int((holders_N > 1).sum()), "by none": int((holders_N == 0).sum())}
    return Quality(
        cut_fraction=1 - inside / graph.entries if graph.entries else 0.0,
        balance=float(nodes.max() / nodes.mean()),
        nodes_min=int(nodes.min()),
        nodes_median=float(np.median(nodes)),
        nodes_max=int(nodes.max()),
        label_skew=label_skew(labels_NC),
        clients_without_edges=int((entries == 0).sum()),
        nodes=tuple(nodes.tolist()),
        entries=tuple(entries.tolist()),
        labelled=tuple(labelled.tolist()),
        classes=tuple((labels_NC > 0).sum(1).tolist()),
        isolated=tuple(isolated.tolist()),
        shared=shared,
    )


def label_skew(labels_NC: np.ndarray) -> float:
    """Mean total variation distance of rows of counts `[clients, C]` from the sum; empty rows are left out."""
    some = labels_NC[labels_NC.sum(1) > 0]
    if not len(some):
        return 0.0
    overall = some.sum(0) / some.sum()
    return float((np.abs(some / some.sum(1, keepdims=True) - overall).sum(1) / 2).mean())
