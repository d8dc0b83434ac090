"""The client of every node: one file for each method, and the quality of the result."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from partition.cover import NOBODY, assert_cover
from partition.domains import domain_graphs, first_clients, require_own_clients
from partition.from_file import by_file
from partition.in_memory_kaminpar import by_kaminpar
from partition.index import by_index
from partition.louvain import by_louvain
from partition.metis import by_metis
from partition.options import PartitionOptions
from partition.random import by_random
from partition.semi_external import by_semi_external
from partition.workspace import Workspace
from storage.errors import ShoalError
from storage.graph import Graph

__all__ = ["METHODS", "PartitionOptions", "Workspace", "partition", "require_enough_nodes"]

Method = Callable[[Graph, PartitionOptions, np.ndarray | None, Workspace | None], np.ndarray]

METHODS: dict[str, Method] = {
    "metis": by_metis,
    "kaminpar": by_kaminpar,
    "semi-external": by_semi_external,
    "louvain": by_louvain,
    "random": by_random,
    "index": by_index,
    "file": by_file,
}


def require_enough_nodes(clients: int, nodes: int, dataset: str) -> None:
    """Raises:
    ShoalError: Clients are more than the nodes of a dataset.
    """
    if clients > nodes:
        raise ShoalError(
            f"partition.clients is {clients}, but dataset '{dataset}' has {nodes} nodes: choose from 1 to {nodes}"
        )


def partition(
    graph: Graph,
    options: PartitionOptions,
    labelled_mask: np.ndarray | None = None,
    workspace: Workspace | None = None,
) -> np.ndarray:
    """Client of every node, int32 `[N]`: a disjoint cover in which no client is empty.

    Of several graphs each is divided by itself, between the clients that `options.domains` gives it; a file divides
    all of them. With `index` some nodes may belong to `NOBODY`.

    Args:
        graph: The whole graph.
        options: Method, number of clients and what the method needs.
        labelled_mask: The nodes that count as labelled when `options.balance` is 'labelled', bool `[N]`: the
            training nodes, where every client must get one. Default: every node with a label.
        workspace: Folder for temporary files of 'kaminpar' and 'semi-external', memory for the latter, and where
            progress is reported.

    Raises:
        ShoalError: Clients are more than nodes, or what a file holds is not such a cover; a memory limit cannot be
            kept, or temporary files cannot be written.
    """
    require_enough_nodes(options.clients, graph.nodes, graph.name)
    if labelled_mask is not None:
        assert labelled_mask.shape == (graph.nodes,)
        assert labelled_mask.dtype == np.bool_

    method = METHODS[options.method]
    if not graph.domains:
        assignment = method(graph, options, labelled_mask, workspace)
    elif options.method == "file":
        assignment = method(graph, options, labelled_mask, workspace)
        require_own_clients(graph, options, assignment)
    else:
        assert options.domains is not None
        assignment = np.empty(graph.nodes, dtype=np.int32)
        for rows, domain, clients, before in zip(*domain_graphs(graph), options.domains, first_clients(options)):
            require_enough_nodes(clients, domain.nodes, domain.name)
            own = replace(options, clients=clients, domains=None)
            mask = None if labelled_mask is None else labelled_mask[rows]
            found = method(domain, own, mask, workspace)
            assignment[rows] = np.where(found == NOBODY, NOBODY, found + before)
    assert_cover(assignment, graph.nodes, options.clients)
    return assignment
