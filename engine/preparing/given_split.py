"""A split that is given and not drawn: of a user's file, of the dataset, or that of the clients of the same nodes."""

from collections.abc import Callable

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.options.split import SplitOptions, read_split_file
from shoal.storage.store.split import random_split, to_codes
from shoal.storage.store.store import Store


def given_codes(
    options: SplitOptions, dataset: str, items: int, of_dataset: Callable[[], np.ndarray | None], what: str = "node"
) -> np.ndarray | None:
    """Part of every item, int8 `[items]`, or None where each client draws its own.

    Args:
        options: Which split.
        dataset: Its name in error messages.
        items: Number of its nodes, or graphs.
        of_dataset: Gives the dataset's own split; called only if that is asked for.
        what: What an item is: a node or a graph.

    Raises:
        ShoalError: The file is wrong or of another number of items, or the dataset has no split.
    """
    if options.split == "file":
        code = read_split_file(options.split_file)
        if len(code) != items:
            found = f"{len(code)} entries for {items} {what}s"
            raise ShoalError(options.split_file, f"{found} of {dataset}; give one each")
        return code
    if options.split == "public":
        code_of_dataset = of_dataset()
        if code_of_dataset is None:
            raise ShoalError(f"data.split public: {dataset} has no split of its own; take stratified or per_client")
        return code_of_dataset
    return None


def codes_of_clients(
    clients: Store, options: SplitOptions, items: int, rest: Store | None, given: Callable[[], np.ndarray | None]
) -> np.ndarray:
    """Part of every item as the clients have it, int8 `[items]`.

    Args:
        clients: Their store.
        options: Which split.
        items: Number of nodes, or graphs.
        rest: Store of the whole graphs; items that no client holds get their part by the same protocol, each graph as
            a client more. None: they have none.
        given: As `given_codes`.
    """
    code = np.zeros(items, dtype=np.int8)
    held = np.zeros(items, dtype=bool)
    for client in range(clients.clients):
        shard = clients.shard(client)
        item = shard.item
        code[item] = to_codes(clients.split(options.split_name, client), shard.items)
        held[item] = True
    if rest is None or held.all():
        return code
    of_all = given()
    if of_all is not None:
        return np.where(held, code, of_all)
    for number in range(rest.clients):
        shard = rest.shard(number)
        item = shard.item
        free = np.flatnonzero(~held[item])
        drawn = random_split(shard.item_label[free], item[free], clients.clients + number, options)
        code[item[free]] = to_codes(drawn, len(free))
    return code
