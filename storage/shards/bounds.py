"""Bounds checks of memory-mapped arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.storage.graph.layout import Layout
from shoal.storage.graph.pairs import EDGE, NO_EDGE, Pairs
from shoal.storage.graph.rows import CsrRows, Rows
from shoal.storage.options.split_codes import TEST, TRAIN

Report = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """Bounds that a manifest sets for the files of all its clients; `graphs` is None where labels are of none.

    `targets` is 0 where classes are predicted, and `edge_features` where edges have none, of which `relations` are
    kinds.
    """

    nodes: int
    features: int
    classes: int
    layout: Layout = "dense"
    graphs: int | None = None
    pairs: bool = False
    weighted: bool = False
    targets: int = 0
    edge_features: int = 0
    relations: int = 0


def check_adjacency(indptr: np.ndarray, indices: np.ndarray, rows: int, report: Report) -> None:
    """Reports a row pointer `[rows + 1]` that does not lead through all of `indices`, and indices of no row."""
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        report("the row pointer does not fit the neighbours")
    elif (indptr[1:] < indptr[:-1]).any():
        report("the row pointer decreases")
    if _outside(indices, 0, rows):
        report(f"a neighbour lies outside rows 0 to {rows - 1}")


def check_weights(weight: np.ndarray | None, weighted: bool, report: Report) -> None:
    """Reports weights of edges that are missing, or should not be there, and those that are not positive and finite."""
    if (weight is not None) != weighted:
        report("its edges have no weights" if weighted else "its edges have weights")
    elif weight is not None and len(weight) and not 0 < weight.min() <= weight.max() < np.inf:
        report("the weight of an edge is not positive and finite")


def check_edge_attr(attr: np.ndarray | None, edge_features: int, report: Report) -> None:
    """Reports features of edges that are missing, or should not be there, are of another width, or not finite."""
    if (attr is not None) != bool(edge_features):
        report("its edges have no features" if edge_features else "its edges have features")
    elif attr is not None and attr.shape[1] != edge_features:
        report(f"edges have {attr.shape[1]} features and not {edge_features}")
    elif attr is not None and not np.isfinite(attr).all():
        report("a feature of an edge is not finite")


def check_targets(target: np.ndarray | None, label: np.ndarray, targets: int, report: Report) -> None:
    """Reports targets of items that are missing, or should not be there, are infinite, or do not fit the labels."""
    if (target is not None) != bool(targets):
        report("it has no targets" if targets else "it has targets")
    elif target is not None and target.shape != (len(label), targets):
        report(f"targets are {list(target.shape)} and not {[len(label), targets]}")
    elif target is not None and np.isinf(target).any():
        report("a target is infinite")
    elif target is not None and (np.isnan(target).all(1) != (label < 0)).any():
        report("a row has targets and no label, or a label and no targets")


def check_ids(ids: np.ndarray, end: int, what: str, report: Report) -> None:
    """Reports ids outside 0 to `end` - 1, and ids that occur twice."""
    if _outside(ids, 0, end):
        report(f"a {what} lies outside 0 to {end - 1}")
    elif not _ascending(ids) and not _ascending(np.sort(ids)):
        report(f"a {what} occurs twice")


def check_graphs(
    graph: np.ndarray, label: np.ndarray, indptr: np.ndarray, indices: np.ndarray, graphs: int, report: Report
) -> None:
    """Reports graphs of rows `[N]` that are not in order or no graph, that share an edge, or have two labels."""
    if len(graph) and (len(graph) != len(label) or _outside(graph, 0, graphs)):
        report(f"a graph lies outside 0 to {graphs - 1}")
    elif (graph[1:] < graph[:-1]).any():
        report("rows of one graph are not behind one another")
    elif ((graph[1:] == graph[:-1]) & (label[1:] != label[:-1])).any():
        report("a graph has two labels")
    elif (np.repeat(graph, np.diff(indptr)) != graph[indices]).any():
        report("an edge joins two graphs")


def check_pairs(pairs: Pairs, indptr: np.ndarray, indices: np.ndarray, report: Report) -> None:
    """Reports pairs of rows that are out of order, in no part or of no label, and edges that should not be there."""
    rows = len(indptr) - 1
    starts = pairs.starts
    if len(starts) != rows + 1 or starts[0] != 0 or starts[-1] != len(pairs) or (starts[1:] < starts[:-1]).any():
        report("the row pointer does not fit the pairs")
        return
    if _outside(pairs.partner, 0, rows):
        report(f"a row of a pair lies outside 0 to {rows - 1}")
        return
    smaller, larger = pairs.ends.astype(np.int64).T
    key = smaller * rows + larger
    source = np.repeat(np.arange(rows), np.diff(indptr))
    if _outside(pairs.label, NO_EDGE, EDGE + 1):
        report("a pair is neither an edge nor none")
    elif _outside(pairs.part, TRAIN, TEST + 1):
        report("a pair is in none of three parts")
    elif (smaller >= larger).any() or not _ascending(key):
        report("pairs are not in ascending order")
    elif (np.isin(key, source * rows + indices) != ((pairs.label == EDGE) & (pairs.part == TRAIN))).any():
        report("a pair that is held out is joined by an edge, or a training edge is missing")


def check_labels(label: np.ndarray, classes: int, report: Report) -> None:
    """Reports labels outside -1 to `classes` - 1."""
    if _outside(label, -1, classes):
        report(f"a label lies outside -1 to {classes - 1}")


def check_rows(name: str, x: Rows, rows: int, features: int, report: Report) -> None:
    """Reports features that are not `[rows, features]`, and what is wrong with the columns of sparse ones."""
    if x.shape != (rows, features):
        report(f"{name} is {list(x.shape)} and not {[rows, features]}")
    if not isinstance(x, CsrRows):
        return
    indptr, columns = x.indptr, x.columns
    if indptr[0] != 0 or indptr[-1] != len(columns) or (indptr[1:] < indptr[:-1]).any():
        report(f"the row pointer of {name} does not fit its values")
        return
    if _outside(columns, 0, features):
        report(f"a column of {name} lies outside 0 to {features - 1}")
    follows = columns[1:] > columns[:-1]
    # The first of a row need not follow the last of the row before.
    starts = indptr[1:-1]
    follows[starts[(starts > 0) & (starts < len(columns))] - 1] = True
    if not follows.all():
        report(f"columns of {name} are not in ascending order")


def check_parts(parts: Sequence[np.ndarray], report: Report) -> None:
    """Reports parts of a split that are not in strictly ascending order, or that share a row."""
    if not all(map(_ascending, parts)):
        report("rows are not in ascending order")
    elif not _ascending(np.sort(np.concatenate(parts))):
        report("a row belongs to two parts")


def _outside(values: np.ndarray, low: int, end: int) -> bool:
    return bool(len(values)) and (int(values.min()) < low or int(values.max()) >= end)


def _ascending(values: np.ndarray) -> bool:
    return not bool((values[1:] <= values[:-1]).any())
