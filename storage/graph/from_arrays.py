"""A graph from a user's own arrays; each is checked, and errors use the user's name for it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.graph.ids import clean_ids, counting_columns
from shoal.storage.graph.labels import ALWAYS, MEASURED, MOST, SEVERAL, Names, coded_labels
from shoal.storage.graph.targets import clean_targets, present
from shoal.storage.options.split_codes import TEST, UNASSIGNED
from shoal.storage.options.target_names import CLASSIFICATION, Target


def no_label(where: str, what: str) -> ShoalError:
    """Makes the error for labels that are all missing; `what` is an item."""
    return ShoalError(where, f"no {what} has a label; there is nothing to learn")


def class_count(y: np.ndarray, where: str, what: str = "node", may_be_none: bool = False) -> int:
    """Counts the classes of labels `[items]`, -1 where there is none: one more than the largest; `what` is an item.

    Raises ShoalError: no item has a label, one is below -1, or there are more classes than labelled items.
    """
    labelled = int((y >= 0).sum())
    if may_be_none and not labelled:
        return 0
    if not labelled:
        raise no_label(where, what)
    row = int(y.argmin())
    if y[row] < -1:
        raise ShoalError(where, f"row {row} is {y[row]}; a label is a class from 0, or -1 for none")
    row = int(y.argmax())
    classes = int(y[row]) + 1
    if classes > max(ALWAYS, min(labelled, MOST)):
        raise ShoalError(
            where,
            f"row {row} has label {y[row]}, which makes {classes} classes, but {labelled} {what}s have a "
            "label; number the classes from 0 on",
        )
    return classes


REQUIRED = ("edge_index", "x", "y")
OF_EDGES = ("edge_weight", "edge_attr", "edge_names", "edge_kinds")
OPTIONAL = ("split", "assignment", "vocabulary", "graph", "label_names", "ids", *OF_EDGES)


def graph_from_arrays(
    name: str,
    arrays: Mapping[str, Any],
    where: Mapping[str, str],
    synthetic: bool = False,
    own: bool = False,
    target: Target = CLASSIFICATION,
) -> Graph:
    """Makes a clean graph.

    Raises ShoalError: an array has a wrong shape, type or value; names the array and the first wrong row.

    Args:
        arrays: `edge_index [2, E]` (integers, one or both directions), `x [N, F]` (numbers, NumPy or SciPy CSR),
            `y [N]` or `[N, 1]` (whole numbers; -1 or NaN is unlabelled) and, if there are, `split [N]` (0 none, 1
            train, 2 val, 3 test), `assignment [N]` (client of every node) and `vocabulary [F]` (what every column of x
            stands for, texts). With `graph [N]` (the graph of every node: 0 to G - 1 in this order, without a gap)
            labels, parts and clients are those of graphs, `[G]`, and no edge joins two. Features other than float16 and
            float32 become float32; whether they are finite is not checked. `label_names [C]` says what classes are
            called; y are then their numbers, or names out of these. `edge_weight` has a positive number for every edge
            of `edge_index` (`shoal.storage.graph.edge_weights.clean_weights`), `edge_attr` D numbers
            (`shoal.storage.graph.edge_features.clean_edge_attr`), which `edge_names [D]`, texts, say, of which
            the first `edge_kinds`, a number, are kinds. `ids [N]`,
            integers or texts, each once, is what the nodes are called (Arrow: as `clean_ids` gives them). `notes` are
            those of `Graph`.
        where: Name of each array in error messages.
        own: A user's own graph: y is all that `coded_labels` takes, or may be missing, and classes without
            `label_names` are those that occur. Else y are the numbers of published classes.
        target: What y are; other than classes, they are as `clean_targets` takes them, and `label_names [T]` are what
            targets are called.
    """
    x = _features(arrays["x"], where["x"])
    nodes = x.shape[0]
    graph_of, items, what = None, nodes, f"x has {nodes} rows; one value a node"
    if arrays.get("graph") is not None:
        graph_of = _graphs(arrays["graph"], nodes, where["graph"])
        items = int(graph_of[-1]) + 1
        what = f"there are {items} graphs; one value a graph"
    target_NT = None
    if target == CLASSIFICATION or arrays.get("y") is None:
        y, classes, names = _classes(arrays, items, where, what, own)
    else:
        target_NT = clean_targets(arrays["y"], target, items, where["y"], what)
        y, classes, names = present(target_NT), target_NT.shape[1], _target_names(arrays, target_NT.shape[1], where)
    split, assignment = arrays.get("split"), arrays.get("assignment")
    if split is not None:
        split = _integers(split, items, (UNASSIGNED, TEST), where["split"], what).astype(np.int8)
    if assignment is not None:
        assignment = _integers(assignment, items, (0, 2**31 - 1), where["assignment"], what).astype(np.int32)
    vocabulary = arrays.get("vocabulary")
    if vocabulary is not None:
        vocabulary = _texts(vocabulary, where["vocabulary"], "a column of x", x.shape[1])
    ids = arrays.get("ids")
    if isinstance(ids, np.ndarray):
        ids = clean_ids(ids, nodes, where["ids"])
    indptr, indices, cleaning = clean_edges(arrays["edge_index"], nodes, where["edge_index"])
    if graph_of is not None:
        require_apart(indptr, indices, graph_of, where["edge_index"])
    edge_weight = arrays.get("edge_weight")
    if edge_weight is not None:
        # Only weights need its kernels: numba takes a quarter of a second to load.
        from shoal.storage.graph.edge_weights import clean_weights

        edge_weight = clean_weights(arrays["edge_index"], edge_weight, nodes, where["edge_weight"])
    edge_attr, edge_names = arrays.get("edge_attr"), arrays.get("edge_names")
    if edge_attr is not None:
        from shoal.storage.graph.edge_features import clean_edge_attr

        edge_attr = clean_edge_attr(arrays["edge_index"], edge_attr, nodes, where["edge_attr"])
        if edge_names is not None:
            names_D, width = np.asarray(edge_names), edge_attr.shape[1]
            edge_names = tuple(_texts(names_D, where["edge_names"], "a column of edge_attr", width).tolist())
    return Graph(
        name,
        indptr,
        indices,
        x,
        y,
        classes,
        split,
        assignment,
        cleaning,
        synthetic,
        vocabulary=vocabulary,
        graph_of=graph_of,
        label_names=names,
        edge_weight=edge_weight,
        ids=ids,
        notes=(*arrays.get("notes", ()), *_counting(x, ids, vocabulary, where["x"])),
        target=target_NT,
        edge_attr=edge_attr,
        edge_names=None if edge_attr is None else edge_names,
        edge_kinds=_kinds_of_edges(arrays, edge_attr, where),
    )


def _kinds_of_edges(arrays: Mapping[str, Any], edge_attr: np.ndarray | None, where: Mapping[str, str]) -> int:
    """Returns how many columns of features of edges are kinds, 0 for all; raises a ShoalError if they are not."""
    given = arrays.get("edge_kinds")
    if given is None:
        return 0
    place = where.get("edge_kinds", where["edge_index"])
    features, count = 0 if edge_attr is None else edge_attr.shape[1], np.asarray(given)
    if count.shape != () or count.dtype.kind not in "iu" or not 0 <= count <= features:
        raise ShoalError(
            place, f"must be a number from 0 to {features}, how many columns of edge_attr are kinds, found {given}"
        )
    if edge_attr is not None and not np.isin(edge_attr[:, : int(count)], (0, 1)).all():
        raise ShoalError(place, f"the first {count} columns of edge_attr must be kinds, zeros and ones")
    return int(count)


def _target_names(arrays: Mapping[str, Any], targets: int, where: Mapping[str, str]) -> Names | None:
    """Returns what targets are called, if they have names."""
    names = arrays.get("label_names")
    if names is None:
        return None
    return tuple(_texts(np.asarray(names), where.get("label_names", where["y"]), "a target", targets).tolist())


def _counting(x: Any, ids: Any, vocabulary: np.ndarray | None, where: str) -> Iterator[str]:
    """Lists a line for each column of features that is no more than the number of its row."""
    for column, what in counting_columns(x, ids):
        name = f"{column} of x" if vocabulary is None else repr(str(vocabulary[column]))
        yield f"{where}: column {name} {what}; if it is no feature, take it out"


def require_apart(indptr: np.ndarray, indices: np.ndarray, graph_of: np.ndarray, where: str) -> None:
    """Refuses an edge between two graphs. Raises ShoalError: there is one; names the first."""
    source = np.repeat(np.arange(len(graph_of)), np.diff(indptr))
    between = np.flatnonzero(graph_of[source] != graph_of[indices])
    if len(between):
        node, other = source[between[0]], indices[between[0]]
        raise ShoalError(
            where,
            f"an edge joins node {node} of graph {graph_of[node]} and node {other} of graph {graph_of[other]}; "
            "graphs have no edges between them",
        )


def _graphs(graph: np.ndarray, nodes: int, where: str) -> np.ndarray:
    graph_of = _integers(graph, nodes, (0, 2**31 - 1), where, f"x has {nodes} rows; one graph a node").astype(np.int64)
    if not nodes:
        raise ShoalError(where, "no node; there is nothing to learn")
    steps = np.diff(graph_of, prepend=-1)
    wrong = np.flatnonzero((steps < 0) | (steps > 1))
    if len(wrong):
        row = int(wrong[0])
        raise ShoalError(
            where,
            f"row {row} is {graph_of[row]}; graphs are numbered from 0 without a gap, and their nodes lie in "
            "this order",
        )
    return graph_of


def _features(x: Any, where: str) -> Any:
    if x.ndim != 2 or x.shape[1] == 0 or x.dtype.kind not in "fiub":
        raise ShoalError(where, f"features must be numbers [N, F], found {x.dtype} {list(x.shape)}")
    if x.dtype == np.float32 or (x.dtype == np.float16 and not sp.issparse(x)):
        return x
    # A value too large for float32 becomes infinity, which is refused later.
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def _texts(names: np.ndarray, where: str, what: str, count: int | None = None) -> np.ndarray:
    """Checks names of things, each once; `what` is such a thing, and `count` how many there are, if that is known."""
    if names.ndim != 1 or len(names) != (len(names) if count is None else count) or names.dtype.kind != "U":
        wanted = "[C]" if count is None else f"[{count}]"
        raise ShoalError(where, f"must be texts {wanted}, one {what}, found {names.dtype} {list(names.shape)}")
    distinct, counts = np.unique(names, return_counts=True)
    if (counts > 1).any():
        raise ShoalError(where, f"{str(distinct[counts > 1][0])!r} is there twice; one {what.split()[1]} a name")
    return np.asarray(names)


def _classes(
    arrays: Mapping[str, Any], items: int, where: Mapping[str, str], what: str, own: bool
) -> tuple[np.ndarray, int, Names | None]:
    """Class of every item, int64 `[items]`, the number of classes, and their names, if they have any."""
    y, names, place = arrays.get("y"), arrays.get("label_names"), where["y"]
    place_of_names = where.get("label_names", place)
    if names is not None:
        names = tuple(_texts(np.asarray(names), place_of_names, "a class").tolist())
    if y is None:
        return np.full(items, -1), 0, None
    if y.shape[:1] != (items,):
        raise ShoalError(place, f"shape {list(y.shape)}, but {what}")
    if y.dtype.kind in "biuf" and (names is not None or not own):
        y = _labels(y, items, place, what)
        classes = class_count(y, place, "node" if arrays.get("graph") is None else "graph", own)
        if names is None:
            return y, classes, None
        if len(names) < classes:
            raise ShoalError(place_of_names, f"{len(names)} names for {classes} classes; give each one")
        return y, len(names), None if names == tuple(map(str, range(len(names)))) else names
    y, found_names = coded_labels(y, place)
    if names is None:
        return y, int(y.max(initial=-1)) + 1, found_names
    if unknown := next((name for name in found_names or () if name not in names), None):
        raise ShoalError(place, f"label {unknown!r} is none of label_names; add it there")
    return np.append([names.index(name) for name in found_names or ()], -1)[y], len(names), names


def _labels(y: np.ndarray, items: int, where: str, what: str) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2:
        raise ShoalError(where, f"y is {list(y.shape)}; {SEVERAL}")
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
        if (measured := y != np.floor(y)).any():
            row = int(measured.argmax())
            raise ShoalError(where, f"row {row} is {y[row]}, {MEASURED}")
    return _integers(y, items, (-1, 2**31 - 1), where, what).astype(np.int64)


def _integers(values: np.ndarray, items: int, bounds: tuple[int, int], where: str, what: str) -> np.ndarray:
    """Returns `values` if they are integers within `bounds`, one an item, of which `what` says how many there are."""
    low, high = bounds
    if values.shape != (items,):
        raise ShoalError(where, f"shape {list(values.shape)}, but {what}")
    if values.dtype.kind not in "iubf":
        raise ShoalError(where, f"values must be integers, found {values.dtype}")
    for fault, rule in (
        (values != np.floor(values) if values.dtype.kind == "f" else None, "an integer"),
        ((values < low) | (values > high), f"in {low}..{high}"),
    ):
        if fault is not None and fault.any():
            row = int(fault.argmax())
            raise ShoalError(where, f"row {row} is {values[row]}, not {rule}")
    return values
