"""Entries of a user's graph that are not read: refused if they have a meaning here, else named once."""

import re
import warnings
from collections.abc import Callable, Collection, Mapping

from shoal.storage.errors import ShoalError, Unread

EDGES = "edges are read from {edges}; give them there"
WEIGHTS = "of an edge its weight is read, from {weight}, and its features, from {features}; give it there"
KINDS = "kinds of nodes and of edges are read of a HeteroData, and of columns {kinds} of tables; give one of these"
PARTS = "the parts of a split are read from {parts}; give them there"
CLIENTS = "the client of every item is read from {clients}; give it there"
# Words of a name that say what it means. A name is split at what is no letter, and before these endings.
ENDINGS = "(?=mask|idx|index|ids|nodes)"
WORDS = {
    **dict.fromkeys(("edge", "edges", "weight", "weights"), WEIGHTS),
    **dict.fromkeys(("train", "val", "valid", "validation", "test"), PARTS),
    **dict.fromkeys(("client", "clients"), CLIENTS),
}
# Whole names that do.
NAMES = {
    **dict.fromkeys(("adj", "adj_t", "adjacency", "edges", "edge_list"), EDGES),
    **dict.fromkeys(("w", "edata"), WEIGHTS),
    **dict.fromkeys(("node_type", "node_types", "edge_type", "edge_types", "ntype", "etype", "_type", "type"), KINDS),
    **dict.fromkeys(("split", "splits", "fold", "folds"), PARTS),
    **dict.fromkeys(("assignment", "party", "parties"), CLIENTS),
}
# The places of these entries in a library's graph.
PLACES = {
    "edges": "edge_index",
    "weight": "edge_weight",
    "features": "edge_attr",
    "kinds": "kind and relation",
    "parts": "train_mask, val_mask and test_mask",
    "clients": "assignment",
}
# Numbers of nodes and edges in another graph, and sizes.
NEVER_NAMED = ("num_nodes", "n_id", "e_id", "ptr", "_ID")


def meaning(name: str) -> str | None:
    """Tells the meaning of a name for edges, parts or clients, as one of the sentences above; None: none is known."""
    key = name.lower()
    return NAMES.get(key) or next((WORDS[word] for word in re.split(f"[^a-z]+|{ENDINGS}", key) if word in WORDS), None)


def require_read(
    found: Mapping[str, str],
    read: Collection[str],
    way_out: Callable[[str], str],
    of_edges: Collection[str] = (),
    places: Mapping[str, str] = PLACES,
    warns: bool = True,
) -> None:
    """Refuses what tells of edges, parts or clients and is not read, by name; `warns`, once, of everything else.

    Args:
        found: Every name that a graph has, and what it is called in messages.
        read: The names that are read.
        way_out: How a user takes a name out, a clause with a verb.
        of_edges: Names whose values are one an edge, whatever they are called.
        places: Where edges, their weights, parts and clients are read from.
    """
    others = []
    for name, called in sorted(found.items()):
        if name in read or name in NEVER_NAMED:
            continue
        text = meaning(name) or (WEIGHTS if name in of_edges else None)
        if text is not None:
            raise ShoalError(called, f"would be lost: {text.format(**places)}, or {way_out(name)}")
        others.append(called)
    if others and warns:
        some = ", ".join(others[:8]) + (" …" if len(others) > 8 else "")
        warnings.warn(Unread(f"no part of the graph, and not read: {some}"), stacklevel=3)
