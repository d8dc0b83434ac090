"""Graphs with several kinds of nodes and of edges, as one graph: a block of features a kind, a column a relation."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_features import add_relations, merge_relations
from shoal.storage.graph.edges.kinds import OF_NODES

# Nodes of a kind without features have a column each, of kinds with at most so many nodes.
MOST_COLUMNS = 1 << 16


class NodeKind(NamedTuple):
    """Nodes of one kind: how many, and their features `[nodes, F]`, dense or sparse; None: they have none."""

    nodes: int
    x: Any = None


# From the kind that sends, by the name of the relation, to the kind that receives.
Relation = tuple[str, str, str]


def join_kinds(
    kinds: Mapping[str, NodeKind],
    relations: Mapping[Relation, np.ndarray],
    where: Mapping[Relation, object],
    attrs: Mapping[Relation, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Joins kinds of nodes and of edges to arrays of `graph_from_arrays`; nodes of the first kind come first.

    Features of every kind have columns of their own, in which nodes of other kinds are zero, and behind these stands a
    column a kind, of ones at its nodes: a linear layer has weights of its own for each kind. Nodes of a kind without
    features have one each, a column a node, up to `MOST_COLUMNS` of them. Every relation is a column
    of `edge_attr`, of ones at its edges, `[E, R]`; one that joins two kinds, and whose other way is not given, has one
    more for that. Two nodes that are joined by several relations have one edge with each of them. `attrs` are features
    of the edges of some relations, float32 `[E, D]`: columns of their own behind those of relations, in which edges of
    others are zero; an edge's other way, where it is not given, has the same.

    Raises ShoalError: an edge names a node that there is none of, or is given again with other features; `where` says
    where relations are.
    """
    attrs = attrs or {}
    names = list(kinds)
    first = dict(zip(names, np.cumsum([0, *(kind.nodes for kind in kinds.values())]).tolist()))
    blocks = [_features(kind) for kind in kinds.values()]
    of_kinds = sp.csr_array(sp.block_diag([np.ones((kind.nodes, 1), np.float32) for kind in kinds.values()]))
    x = sp.csr_array(sp.hstack([sp.block_diag(blocks), of_kinds], format="csr"), dtype=np.float32)
    columns = [f"{name}[{k}]" for name, block in zip(names, blocks) for k in range(block.shape[1])]
    pairs: dict[str, np.ndarray] = {}
    features: dict[str, tuple[Relation, np.ndarray]] = {}
    for (source, name, target), ends in relations.items():
        _require_ends(ends, kinds[source].nodes, kinds[target].nodes, where[source, name, target])
        attr = attrs.get((source, name, target))
        if attr is not None:
            ends, attr = merge_relations(ends, attr, 0, where[source, name, target])
        moved = ends.astype(np.int64) + np.array([[first[source]], [first[target]]])
        pairs[f"{source} {name} {target}"] = moved
        if attr is not None:
            features[f"{source} {name} {target}"] = (source, name, target), attr
        if source == target:
            continue
        given_back = [other for (start, _, end), other in relations.items() if (start, end) == (target, source)]
        missing = _not_given_back(ends, given_back, kinds[target].nodes)
        if missing.any():
            pairs[f"{target} {name} {source}, the other way"] = moved[::-1, missing]
            if attr is not None:
                features[f"{target} {name} {source}, the other way"] = (source, name, target), attr[missing]
    edge_index = np.concatenate([np.zeros((2, 0), dtype=np.int64), *pairs.values()], axis=1)
    relation = np.repeat(np.arange(len(pairs)), [ends.shape[1] for ends in pairs.values()])
    attr = np.zeros((len(relation), max(len(pairs), 1)), dtype=np.float32)
    attr[np.arange(len(relation)), relation] = 1
    of_columns = list(pairs)
    # All columns are kinds, where nothing else is said.
    of_kinds_alone = {"edge_kinds": np.array(len(pairs))} if features else {}
    if features:
        attr, of_columns = _with_features(attr, pairs, features)
        edge_index, attr = add_relations(edge_index, attr)
    else:
        edge_index, attr = merge_relations(edge_index, attr, attr.shape[1], "edges")
    return {
        "edge_index": edge_index,
        "x": x,
        "vocabulary": np.array([*columns, *(f"{OF_NODES}{name}" for name in names)]),
        **({"edge_attr": attr, "edge_names": np.array(of_columns), **of_kinds_alone} if pairs else {}),
    }


def _with_features(
    attr: np.ndarray, pairs: Mapping[str, np.ndarray], features: Mapping[str, tuple[Relation, np.ndarray]]
) -> tuple[np.ndarray, list[str]]:
    """Adds columns of features of edges, a block a relation, behind those of relations; and names all columns."""
    counts = [ends.shape[1] for ends in pairs.values()]
    rows = dict(zip(pairs, pairwise(np.cumsum([0, *counts]).tolist())))
    blocks: dict[Relation, np.ndarray] = {}
    for name, (relation, values) in features.items():
        block = blocks.setdefault(relation, np.zeros((sum(counts), values.shape[1]), dtype=np.float32))
        block[slice(*rows[name])] = values
    names = [f"{' '.join(relation)}[{k}]" for relation, block in blocks.items() for k in range(block.shape[1])]
    return np.concatenate([attr, *blocks.values()], axis=1), [*pairs, *names]


def _features(kind: NodeKind) -> sp.csr_array:
    """Returns the features of the nodes of a kind, sparse float32 `[nodes, F]`: its own, or a column each."""
    if kind.x is not None:
        return sp.csr_array(kind.x, dtype=np.float32)
    if kind.nodes > MOST_COLUMNS:
        return sp.csr_array((kind.nodes, 0), dtype=np.float32)
    return sp.csr_array(sp.eye_array(kind.nodes, dtype=np.float32))


def values_of_kind(values: Any, kind: str, kinds: Mapping[str, NodeKind], missing: Any, where: object) -> np.ndarray:
    """Returns values of the nodes of one kind as those of all nodes, others `missing`.

    Raises ShoalError: they are not one a node; `where` says where they are.
    """
    values = np.asarray(values)
    if values.shape[:1] != (kinds[kind].nodes,):
        raise ShoalError(where, f"shape {list(values.shape)}, but there are {kinds[kind].nodes} nodes of kind {kind!r}")
    before = sum(other.nodes for name, other in kinds.items() if list(kinds).index(name) < list(kinds).index(kind))
    total = sum(other.nodes for other in kinds.values())
    every = np.full((total, *values.shape[1:]), missing, dtype=np.result_type(values.dtype, type(missing)))
    every[before : before + len(values)] = values
    return every


def _not_given_back(ends: np.ndarray, relations: Sequence[np.ndarray], targets: int) -> np.ndarray:
    """Marks edges whose other way is in none of some relations, bool `[E]`."""
    key = ends[0].astype(np.int64) * targets + ends[1]
    back = [
        other[1].astype(np.int64) * targets + other[0] for other in relations if other.ndim == 2 and len(other) == 2
    ]
    return ~np.isin(key, np.concatenate(back)) if back else np.ones(len(key), dtype=bool)


def _require_ends(ends: np.ndarray, sources: int, targets: int, where: object) -> None:
    if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        raise ShoalError(where, f"must be integers of shape [2, E], found {ends.dtype} {list(ends.shape)}")
    for row, nodes in zip(ends, (sources, targets)):
        if row.size and not 0 <= row.min() <= row.max() < nodes:
            wrong = row[(row < 0) | (row >= nodes)][0]
            raise ShoalError(where, f"names node {wrong}, but the {nodes} nodes of its kind count from 0")
