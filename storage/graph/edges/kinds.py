"""Kinds of nodes and of edges, by the columns of features that say them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

# A column of x whose name begins so has ones at the nodes of one kind.
OF_NODES = "kind "


class Kinds(NamedTuple):
    """Kinds of nodes and of edges of a graph.

    Attributes:
        nodes: Names of the kinds of nodes, T texts; None: that is not known.
        columns: The column of x of each, which has ones at its nodes.
        edges: Number R of relations, the first columns of `edge_attr`, of zeros and ones; 0: all of them are.
    """

    nodes: tuple[str, ...] | None = None
    columns: tuple[int, ...] = ()
    edges: int = 0

    @classmethod
    def of(cls, vocabulary: Iterable[Any] | None, edges: int) -> "Kinds":
        """Finds kinds of nodes by the names of features, if these have any."""
        named = enumerate(() if vocabulary is None else map(str, vocabulary))
        of_nodes = [(name.removeprefix(OF_NODES), column) for column, name in named if name.startswith(OF_NODES)]
        return cls(tuple(name for name, _ in of_nodes), tuple(column for _, column in of_nodes), edges)

    @classmethod
    def read(cls, plain: Any) -> "Kinds | None":
        """Reads what a manifest has of them; None: it was made before they were kept, or edges have no features."""
        if plain is None:
            return None
        nodes, columns, edges = plain
        return cls(tuple(nodes), tuple(columns), int(edges))
