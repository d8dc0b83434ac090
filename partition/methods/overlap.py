"""Clients that share nodes: each draws a share of the nodes of a part, from which others draw, too (Baek et al., ICML
2023, the overlapping setting of Fed-PUB).
"""

import numpy as np

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.files.mapped import read, row_blocks
from shoal.storage.graph.graph import Graph

ENTRIES_A_BLOCK = 1 << 22
# It keeps the draws of a client apart from that of the split of a part of the same number.
DRAWN = 1


def draw_clients(part_N: np.ndarray, options: PartitionOptions) -> np.ndarray:
    """Draws the clients of every node from its part, int32 `[overlap, N]`, `NO_CLIENT` where one did not draw it.

    Row j has the j-th client of every part, and is a disjoint cover of these clients: client j P + p draws from part p
    of P, without replacement, the share `options.drawn` of its nodes, rounded down, one at least. A node that none of
    the clients of its part draws belongs to no client.

    Args:
        part_N: Part of every node, int32 `[N]`, in `0..P-1` or `NO_CLIENT`.
        options: Those of all clients, of which there are `overlap` times P.
    """
    parts = options.of_parts.clients
    clients_LN = np.full((options.overlap, len(part_N)), NO_CLIENT, dtype=np.int32)
    of_part = np.argsort(part_N, kind="stable")
    starts = np.searchsorted(part_N[of_part], np.arange(parts + 1))
    for client in range(options.clients):
        row, part = divmod(client, parts)
        nodes = of_part[starts[part] : starts[part + 1]]
        # The small constant keeps 0.29 * 100 from becoming 28.
        size = max(1, int(options.drawn * len(nodes) + 1e-9))
        rng = np.random.default_rng([options.seed, client, DRAWN])
        clients_LN[row, rng.choice(nodes, size, replace=False)] = client
    return clients_LN


def count_together(graph: Graph, clients_LN: np.ndarray) -> int:
    """Counts directed entries of a graph both of whose ends one client holds, which may be one of several."""
    together = 0
    for first, pointer, low, high in row_blocks(graph.indptr, ENTRIES_A_BLOCK):
        source = np.repeat(np.arange(first, first + len(pointer) - 1), np.diff(pointer))
        target = read(graph.indices, low, high)
        same_E = np.zeros(len(target), dtype=np.bool_)
        for client_N in clients_LN:
            same_E |= (client_N[source] == client_N[target]) & (client_N[source] != NO_CLIENT)
        together += int(same_E.sum())
    return together
