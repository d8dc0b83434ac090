"""The client of every node, or graph, by the method that a config names."""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import numpy as np

from shoal.partition.domains import domain_graphs, first_clients, require_own_clients
from shoal.partition.methods.cover import NO_CLIENT, assert_cover
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.options.types import is_own

Method = Callable[[Graph, PartitionOptions, np.ndarray | None, Workspace | None], np.ndarray]

# The function of each method, by its module, which is loaded for it alone.
METHODS = {
    "metis": "shoal.partition.methods.metis:by_metis",
    "kaminpar": "shoal.partition.out_of_core.kaminpar:by_kaminpar",
    "semi-external": "shoal.partition.out_of_core.semi_external:by_semi_external",
    "louvain": "shoal.partition.methods.louvain:by_louvain",
    "random": "shoal.partition.methods.by_label:by_random",
    "dirichlet": "shoal.partition.methods.by_label:by_dirichlet",
    "features": "shoal.partition.methods.by_order:by_features",
    "homophily": "shoal.partition.methods.by_order:by_homophily",
    "index": "shoal.partition.methods.from_file:by_index",
    "file": "shoal.partition.methods.from_file:by_file",
}
OF_USERS = "shoal.partition.methods.user_partitioner:by_user"
# These methods divide items of any kind. The others follow edges, and small graphs have none between them.
OF_ITEMS = ("random", "dirichlet", "features", "index", "file")


def require_enough_nodes(clients: int, items: int, dataset: str, what: str = "node") -> None:
    """Raises a ShoalError if clients are more than the nodes, or graphs, of a dataset."""
    if clients > items:
        raise ShoalError(
            f"partition.clients is {clients}, but dataset '{dataset}' has {items} {what}s: choose from 1 to {items}"
        )


def require_divides_graphs(method: str) -> None:
    """Raises a ShoalError if a method divides the nodes of one graph, and no dataset of graphs."""
    if method not in OF_ITEMS and not is_own(method):
        raise ShoalError("partition.method", f"{method} divides nodes; graphs are divided by {', '.join(OF_ITEMS)}")


def partition(
    graph: Graph, options: PartitionOptions, labelled_mask: np.ndarray | None = None, workspace: Workspace | None = None
) -> np.ndarray:
    """Client of every node, int32 `[N]`: a disjoint cover in which no client is empty. With `options.overlap` L above 1
    the clients of every node, int32 `[L, N]`, `NO_CLIENT` where there is none: see `draw_clients`.

    Each of the domains is divided separately, between the clients that `options.domains` gives it; a file divides
    all of them. With `index` some nodes may belong to `NO_CLIENT`. Of a dataset of graphs the graphs are divided, and a
    node goes with its graph.

    With `options.balance` 'labelled' every client must get an item of `labelled_mask`, bool `[items]`, the training
    nodes; None: those with a label. The workspace has a folder for temporary files of 'kaminpar' and 'semi-external',
    the memory of the latter, and where progress is reported. Raises ShoalError: clients are more than nodes, or graphs;
    the method does not divide graphs; what a file holds is not such a cover; a memory limit cannot be kept, or
    temporary files cannot be written.
    """
    require_enough_nodes(options.clients, graph.items, graph.name, graph.item_name)
    if options.overlap > 1:
        from shoal.partition.methods.overlap import draw_clients

        return draw_clients(partition(graph, options.of_parts, labelled_mask, workspace), options)
    if graph.graph_of is not None:
        require_divides_graphs(options.method)
    by_label = options.method in ("dirichlet", "homophily")
    if not graph.classes and (by_label or options.balance == "labelled"):
        key = "method" if by_label else "balance"
        raise ShoalError(
            f"partition.{key}", f"{getattr(options, key)} divides by labels, and no {graph.item_name} has one"
        )
    if labelled_mask is not None:
        assert labelled_mask.shape == (graph.items,)
        assert labelled_mask.dtype == np.bool_

    module, _, name = (OF_USERS if is_own(options.method) else METHODS[options.method]).partition(":")
    method: Method = getattr(import_module(module), name)
    if not graph.domains or options.method == "file":
        assignment = method(graph, options, labelled_mask, workspace)
        require_own_clients(graph, options, assignment)
    else:
        assert options.domains is not None
        assignment = np.empty(graph.items, dtype=np.int32)
        for (items, domain), clients, before in zip(domain_graphs(graph), options.domains, first_clients(options)):
            require_enough_nodes(clients, domain.items, domain.name, domain.item_name)
            of_domain = replace(options, clients=clients, domains=None)
            mask = None if labelled_mask is None else labelled_mask[items]
            client_N = method(domain, of_domain, mask, workspace)
            assignment[items] = np.where(client_N == NO_CLIENT, NO_CLIENT, client_N + before)
    assert_cover(assignment, graph.items, options.clients)
    return graph.of_nodes(assignment)
