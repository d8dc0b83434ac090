"""The split of clients that share nodes: each node is in the same part at every client that holds it."""

import numpy as np

from shoal.storage.options.split import SplitOptions
from shoal.storage.shards.split import random_split, to_codes
from shoal.storage.store.store import Store


def share_split(
    shards: Store, parts: int, options: SplitOptions, code: np.ndarray | None
) -> tuple[np.ndarray, list[int]]:
    """Draws the split of every part of a partition over the nodes that any of its clients holds, unless it is given.

    A node that trains at one client would otherwise be tested at another. Client c has nodes of part c modulo `parts`.

    Args:
        shards: Store of the clients.
        code: Given part of every node, int8 `[nodes]`; None: it is drawn.

    Returns:
        The part of every node, int8 `[nodes]`; how many different nodes clients train, validate and test.
    """
    drawn, held = np.zeros(shards.manifest.nodes, dtype=np.int8), np.zeros(shards.manifest.nodes, dtype=np.bool_)
    for part in range(parts):
        several = [shards.shard(client) for client in range(part, shards.clients, parts)]
        node, first = np.unique(np.concatenate([shard.node for shard in several]), return_index=True)
        held[node] = True
        if code is None:
            label = np.concatenate([shard.item_label for shard in several])[first]
            drawn[node] = to_codes(random_split(label, node, part, options), len(node))
    code = drawn if code is None else code
    return code, np.bincount(code[held], minlength=4)[1:].tolist()
