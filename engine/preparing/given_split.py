"""A split that is given and not drawn: of a user's file, of the dataset, or that of the clients of the same nodes."""

from collections.abc import Callable

import numpy as np

from storage.errors import ShoalError
from storage.split import SplitOptions, random_split, read_split_file, to_codes
from storage.store import Store


def given_codes(
    options: SplitOptions, dataset: str, nodes: int, of_dataset: Callable[[], np.ndarray | None]
) -> np.ndarray | None:
    """Part of every node, int8 `[nodes]`, or None where each client draws its own.

    Args:
        options: Which split.
        dataset: Its name in error messages.
        nodes: Number of its nodes.
        of_dataset: Gives the dataset's own split; called only if that is asked for.

    Raises:
        ShoalError: The file is wrong or of another number of nodes, or the dataset has no split.
    """
    if options.split == "file":
        code = read_split_file(options.split_file)
        if len(code) != nodes:
            raise ShoalError(f"{options.split_file}: {len(code)} entries for {nodes} nodes of {dataset}; give one each")
        return code
    if options.split == "public":
        code_of_dataset = of_dataset()
        if code_of_dataset is None:
            raise ShoalError(f"data.split public: {dataset} has no split of its own; take stratified or per_client")
        return code_of_dataset
    return None


def codes_of_clients(
    clients: Store, options: SplitOptions, nodes: int, rest: Store | None, given: Callable[[], np.ndarray | None]
) -> np.ndarray:
    """Part of every node as the clients have it, int8 `[nodes]`.

    Args:
        clients: Their store.
        options: Which split.
        nodes: Number of nodes.
        rest: Store of the whole graphs; nodes that no client holds get their part by the same protocol, each graph as
            a client more. None: they have none.
        given: As `given_codes`.
    """
    code = np.zeros(nodes, dtype=np.int8)
    held = np.zeros(nodes, dtype=bool)
    for client in range(clients.clients):
        shard = clients.shard(client)
        code[shard.node] = to_codes(clients.split(options.split_name, client), shard.nodes)
        held[shard.node] = True
    if rest is None or held.all():
        return code
    of_all = given()
    if of_all is not None:
        return np.where(held, code, of_all)
    for number in range(rest.clients):
        shard = rest.shard(number)
        free = np.flatnonzero(~held[shard.node])
        drawn = random_split(shard.label[free], shard.node[free], clients.clients + number, options)
        code[shard.node[free]] = to_codes(drawn, len(free))
    return code
