"""Partitions within each graph of a federation: no client holds nodes of two."""

from dataclasses import replace
from itertools import accumulate

import numpy as np

from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph


def domain_graphs(graph: Graph) -> tuple[list[slice], list[Graph]]:
    """The items of every domain, and each as a graph of its own; arrays are views where they can be."""
    slices, graphs = [], []
    end = 0
    for domain in graph.domains:
        first, end = end, end + domain.nodes
        rows, items = slice(first, end), _items(graph, first, end)
        low, high = graph.indptr[first], graph.indptr[end]
        graphs.append(
            replace(
                graph,
                name=domain.name,
                indptr=graph.indptr[first : end + 1] - low,
                indices=graph.indices[low:high] - np.int32(first),
                x=graph.x[rows],
                y=graph.y[items],
                split=None if graph.split is None else graph.split[items],
                assignment=None,
                domains=(),
                graph_of=None if graph.graph_of is None else graph.graph_of[rows] - items.start,
            )
        )
        slices.append(items)
    return slices, graphs


def _items(graph: Graph, first: int, end: int) -> slice:
    """The items of consecutive nodes, at least one, that are those of whole domains."""
    if graph.graph_of is None:
        return slice(first, end)
    return slice(int(graph.graph_of[first]), int(graph.graph_of[end - 1]) + 1)


def first_clients(options: PartitionOptions) -> list[int]:
    """The number of the first client of every domain."""
    return list(accumulate(options.domains or (), initial=0))[:-1]


def require_own_clients(graph: Graph, options: PartitionOptions, assignment: np.ndarray) -> None:
    """Refuses an assignment, of items, in which a client is not one of its domain's.

    Raises:
        ShoalError: It is one; names the first client.
    """
    end = 0
    for domain, clients, before in zip(graph.domains, options.domains or (), first_clients(options)):
        first, end = end, end + domain.nodes
        own = assignment[_items(graph, first, end)]
        strange = own[(own < before) | (own >= before + clients)]
        if len(strange):
            raise ShoalError(
                "partition.file",
                f"client {strange[0]} has a {graph.item_name} of {domain.name}, whose clients are "
                f"{before} to {before + clients - 1} by partition.clients; number clients in the order of data.dataset",
            )
