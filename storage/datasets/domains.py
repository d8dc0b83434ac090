"""Graphs joined to one: concatenated, with one feature space and one set of labels."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Cleaning, Domain, Graph

LONGEST_NAME = 40


def join_domains(graphs: Sequence[Graph]) -> Graph:
    """Joins the domains of a federation to one graph: nodes of the first, then those of the second, and so on.

    There are two or more, of different names. Where every graph says what its columns stand for, features are over the
    union of these, in sorted order; else all must be equally wide, and columns of one number stand for the same. Labels
    of one number are the same class. A split or an assignment is kept if all have one. A ShoalError says that features
    have nothing in common, or that some have labels of nodes and some of graphs.
    """
    # The imports stand here, because a run on one published graph needs neither.
    from shoal.storage.graph.ids import joined_ids
    from shoal.storage.graph.labels import joined_labels

    kinds = {graph.item_name for graph in graphs}
    if len(kinds) > 1:
        of_kinds = ", ".join(f"{graph.name} of {graph.item_name}s" for graph in graphs)
        raise ShoalError(
            "data.dataset", f"labels of one federation are all of nodes or all of graphs, found {of_kinds}"
        )
    targets = {None if graph.target is None else (graph.classes, graph.label_names) for graph in graphs}
    if len(targets) > 1:
        of_graphs = ", ".join(f"{graph.name} {graph.outputs}" for graph in graphs)
        raise ShoalError("data.dataset", f"graphs of one federation have the same targets, found {of_graphs}")
    of_edges = {(graph.edge_features, graph.edge_names, graph.edge_kinds) for graph in graphs}
    if len(of_edges) > 1:
        widths_of = ", ".join(f"{graph.name} {graph.edge_features}" for graph in graphs)
        raise ShoalError(
            "data.dataset",
            f"edges of one federation have the same features, found widths {widths_of}; set data.edge_features to drop",
        )
    vocabulary, features = _features(graphs)
    labels, classes, names = joined_labels(
        [graph.y for graph in graphs],
        [graph.label_names for graph in graphs],
        [graph.classes for graph in graphs],
        [graph.name for graph in graphs],
    )
    before = accumulate((graph.nodes for graph in graphs), initial=0)
    entries = accumulate((graph.entries for graph in graphs), initial=0)
    cleaning = {key: sum(getattr(graph.cleaning, key) for graph in graphs) for key in asdict(graphs[0].cleaning)}
    return Graph(
        name=joined_name([graph.name for graph in graphs]),
        indptr=np.concatenate([[0], *(graph.indptr[1:] + start for graph, start in zip(graphs, entries))]),
        indices=np.concatenate([graph.indices + np.int32(start) for graph, start in zip(graphs, before)]),
        x=features,
        y=np.concatenate(labels),
        classes=classes,
        split=_together([graph.split for graph in graphs]),
        assignment=_together(_numbered_on([graph.assignment for graph in graphs])),
        cleaning=Cleaning(**cleaning),
        synthetic=any(graph.synthetic for graph in graphs),
        domains=tuple(Domain(graph.name, graph.nodes) for graph in graphs),
        vocabulary=vocabulary,
        graph_of=_together(_numbered_on([graph.graph_of for graph in graphs])),
        label_names=names,
        edge_weight=_weights_together(graphs),
        ids=joined_ids([graph.ids for graph in graphs], [graph.nodes for graph in graphs]),
        notes=tuple(note for graph in graphs for note in graph.notes),
        # The domains of one config are cut out of one graph.
        copy_of=_together([graph.copy_of for graph in graphs]),
        target=_together([graph.target for graph in graphs]),
        edge_attr=_together([graph.edge_attr for graph in graphs]),
        edge_names=graphs[0].edge_names,
        edge_kinds=graphs[0].edge_kinds,
    )


def joined_name(names: Sequence[str]) -> str:
    """Returns the name of joined graphs."""
    name = "+".join(names)
    return name if len(name) <= LONGEST_NAME else f"{names[0]}+{len(names) - 1}-more"


def domain_of_nodes(graph: Graph) -> np.ndarray:
    """Returns the number of the domain of every node, int32 `[N]`."""
    return np.repeat(np.arange(len(graph.domains), dtype=np.int32), [domain.nodes for domain in graph.domains])


def _together(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if len(present) == len(parts) else None


def _numbered_on(parts: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """Numbers clients or graphs, those of every part after those of the parts before."""
    counts = [0 if part is None else int(part.max(initial=-1)) + 1 for part in parts]
    first = accumulate(counts, initial=0)
    return [None if part is None else part + part.dtype.type(start) for part, start in zip(parts, first)]


def _weights_together(graphs: Sequence[Graph]) -> np.ndarray | None:
    """Joins the weights of all edges, 1 in a graph that has none; None where no graph has any."""
    if all(graph.edge_weight is None for graph in graphs):
        return None
    weights = [np.ones(graph.entries) if graph.edge_weight is None else graph.edge_weight for graph in graphs]
    return np.concatenate(weights).astype(np.float32)


def _features(graphs: Sequence[Graph]) -> tuple[np.ndarray | None, Any]:
    vocabularies = [graph.vocabulary for graph in graphs if graph.vocabulary is not None]
    if len(vocabularies) < len(graphs):
        widths = {graph.features for graph in graphs}
        if len(widths) > 1:
            of_widths = ", ".join(f"{graph.name} {graph.features}" for graph in graphs)
            raise ShoalError(
                "data.dataset",
                f"graphs of one federation have the same features, found widths {of_widths}; give each its "
                "vocabulary, or features of one width",
            )
        return None, _stack([graph.x for graph in graphs])
    union = np.unique(np.concatenate(vocabularies))
    return union, _stack([_spread(graph.x, vocabulary, union) for graph, vocabulary in zip(graphs, vocabularies)])


def _stack(parts: Sequence[Any]) -> Any:
    if any(sp.issparse(part) for part in parts):
        return sp.vstack([sp.csr_array(part) for part in parts], format="csr", dtype=np.float32)
    return np.concatenate([part[:] for part in parts])


def _spread(x: Any, own: np.ndarray, union: np.ndarray) -> sp.csr_array:
    """Moves features to the columns of their names in the union; sparse, since other columns are zero."""
    rows = sp.csr_array(x if sp.issparse(x) else x[:])
    columns = np.searchsorted(union, own)[rows.indices]
    # The values are copied, because sorting moves them.
    spread = sp.csr_array((rows.data.copy(), columns, rows.indptr), shape=(rows.shape[0], len(union)))
    spread.sort_indices()
    return spread
