"""Partitions within each graph of a federation: no client holds nodes of two."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph


def domain_graphs(graph: Graph) -> Iterator[tuple[slice, Graph]]:
    """Yields the items of every domain, and the domain as a graph; arrays are views where they can be."""
    for (first, end), items, domain in zip(_node_ranges(graph), _item_ranges(graph), graph.domains):
        low, high = graph.indptr[first], graph.indptr[end]
        yield (
            items,
            replace(
                graph,
                name=domain.name,
                indptr=graph.indptr[first : end + 1] - low,
                indices=graph.indices[low:high] - np.int32(first),
                x=graph.x[first:end],
                y=graph.y[items],
                split=None if graph.split is None else graph.split[items],
                assignment=None,
                domains=(),
                graph_of=None if graph.graph_of is None else graph.graph_of[first:end] - items.start,
            ),
        )


def _node_ranges(graph: Graph) -> list[tuple[int, int]]:
    return list(pairwise(accumulate((domain.nodes for domain in graph.domains), initial=0)))


def _item_ranges(graph: Graph) -> list[slice]:
    """Lists the items of every domain, which has one at least."""
    if graph.graph_of is None:
        return [slice(first, end) for first, end in _node_ranges(graph)]
    graph_of = graph.graph_of
    return [slice(int(graph_of[first]), int(graph_of[end - 1]) + 1) for first, end in _node_ranges(graph)]


def first_clients(options: PartitionOptions) -> list[int]:
    """Lists the number of the first client of every domain."""
    return list(accumulate(options.domains or (), initial=0))[:-1]


def require_own_clients(graph: Graph, options: PartitionOptions, assignment: np.ndarray) -> None:
    """Refuses an assignment, of items, in which a client is not one of its domain's; names the first such client."""
    for items, domain, clients, before in zip(
        _item_ranges(graph), graph.domains, options.domains or (), first_clients(options)
    ):
        clients_of_domain = assignment[items]
        strange = clients_of_domain[(clients_of_domain < before) | (clients_of_domain >= before + clients)]
        if len(strange):
            raise ShoalError(
                "partition.file",
                f"client {strange[0]} has a {graph.item_name} of {domain.name}, whose clients are "
                f"{before} to {before + clients - 1} by partition.clients; number clients in the order of data.dataset",
            )
