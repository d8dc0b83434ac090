"""Louvain communities, packed into clients: the partition of FedGTA, FedPG and most papers of the field."""

from dataclasses import dataclass

import numpy as np

from shoal.partition.methods.cover import fill_empty
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.graph.graph import Graph


@dataclass(frozen=True)
class Capacity:
    """A limit on the load of a client, and on the part of a community that a client takes in one step.

    FedPG's code cuts communities to `cap - 20` and lets a client exceed `cap`, the load of an average client, by less
    than 20; below a cap of 60 that would cut every community, so the margin `delta` shrinks to a tenth of the cap.
    """

    cap: int
    delta: int

    @classmethod
    def of(cls, load: int, clients: int) -> "Capacity":
        cap = max(1, load // clients)
        return cls(cap, 20 if cap >= 60 else max(1, cap // 10))

    @property
    def chunk(self) -> int:
        """Largest load of a group; never more than `cap`, so a group always fits an empty client."""
        return max(1, self.cap - self.delta)


def pack(communities: np.ndarray, clients: int, labelled: np.ndarray | None = None) -> np.ndarray:
    """Cuts communities to size and gives them to clients, largest first; client of every node, int32 `[N]`.

    1. A community larger than a chunk is cut into consecutive chunks of ascending node id; the remainder is a
       group of its own.
    2. Groups go by descending load (then descending nodes, then order of community) to the first client, in
       a cycle that starts where the previous one went, whose load stays below cap + delta. A client that
       reaches the cap leaves the cycle, unless it is the last; what fits nowhere goes to the least loaded
       client.
    3. The rule so far is FedPG's and may leave clients empty. Therefore, once the load left over can no
       longer bring all empty clients to the cap, every group goes to the least loaded client. No client
       ends empty then, and no load exceeds cap + chunk.

    With `labelled`, bool `[N]`, the load is the number of labelled nodes: every client gets one if there are enough
    of them. A community without any is cut by nodes, and its groups go to the client with the fewest nodes. If
    labelled nodes are fewer than clients, a client still empty at the end gets one node as `fill_empty` says.
    """
    load_N = np.ones(len(communities), dtype=np.int64) if labelled is None else labelled.astype(np.int64)
    capacity = Capacity.of(int(load_N.sum()), clients)
    group_N = cut(communities, load_N, capacity.chunk, Capacity.of(len(communities), clients).chunk)
    nodes_G = np.bincount(group_N)
    load_G = np.zeros(len(nodes_G), dtype=np.int64)
    np.add.at(load_G, group_N, load_N)
    client_G = assign(load_G, nodes_G, clients, capacity)
    return fill_empty(client_G[group_N], clients)


def cut(communities: np.ndarray, load_N: np.ndarray, chunk: int, chunk_nodes: int) -> np.ndarray:
    """Cuts communities into groups, int64 `[N]`, numbered by community and chunk.

    The chunks of a community are consecutive in ascending node id; they hold at most `chunk` load, or, if the
    whole community has none, at most `chunk_nodes` nodes.
    """
    order = np.argsort(communities, kind="stable")
    ordered = communities[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(first)
    sizes = np.diff(starts, append=len(order))

    load = load_N[order]
    load_before = np.cumsum(load) - load
    ahead = load_before - np.repeat(load_before[starts], sizes)
    # A node without load belongs to the loaded node before it, not to the next chunk.
    loaded_chunk = np.maximum(ahead + load - 1, 0) // chunk
    position_chunk = (np.arange(len(order)) - np.repeat(starts, sizes)) // chunk_nodes
    has_load = np.repeat(np.add.reduceat(load, starts) > 0, sizes)
    chunk_of = np.where(has_load, loaded_chunk, position_chunk)

    new = first.copy()
    new[1:] |= chunk_of[1:] != chunk_of[:-1]
    group_N = np.empty(len(order), dtype=np.int64)
    group_N[order] = np.cumsum(new) - 1
    return group_N


def assign(load_G: np.ndarray, nodes_G: np.ndarray, clients: int, capacity: Capacity) -> np.ndarray:
    """Assigns a client to every group, int32 `[G]`, by steps 2 and 3 of `pack`."""
    client_G = np.empty(len(load_G), dtype=np.int32)
    load = np.zeros(clients, dtype=np.int64)
    nodes = np.zeros(clients, dtype=np.int64)
    in_cycle = np.ones(clients, dtype=bool)
    limit = capacity.cap + capacity.delta
    left = int(load_G.sum())
    empty = clients
    current = 0
    scarce = False
    for group in np.lexsort((-nodes_G, -load_G)).tolist():
        size = int(load_G[group])
        scarce = scarce or left < empty * capacity.cap
        if size == 0:
            client = int(nodes.argmin())
        elif scarce:
            client = least_loaded(load, nodes)
        else:
            fits = in_cycle & (load + size < limit)
            ahead = int(fits[current:].argmax()) + current
            if fits[ahead]:
                client = current = ahead
            elif fits.any():
                client = current = int(fits.argmax())
            else:
                client = least_loaded(load, nodes)
        client_G[group] = client
        empty -= int(load[client] == 0 and size > 0)
        left -= size
        load[client] += size
        nodes[client] += nodes_G[group]
        if load[client] >= capacity.cap and in_cycle.sum() > 1:
            in_cycle[client] = False
    return client_G


def least_loaded(load: np.ndarray, nodes: np.ndarray) -> int:
    """Finds the client with the least load, of those the one with the fewest nodes, of those the first."""
    candidates = np.flatnonzero(load == load.min())
    return int(candidates[nodes[candidates].argmin()])


def by_louvain(
    graph: Graph, options: PartitionOptions, labelled_mask: np.ndarray | None = None, *_: object
) -> np.ndarray:
    """Packs communities of the whole graph by nodes or by labelled nodes, int32 `[N]`."""
    labelled = None
    if options.balance == "labelled":
        labelled = graph.y >= 0 if labelled_mask is None else labelled_mask
    return pack(communities(graph, options.resolution, options.seed), options.clients, labelled)


def communities(graph: Graph, resolution: float, seed: int) -> np.ndarray:
    """Finds the Louvain community of every node, int64 `[N]`, numbered without gaps (Blondel et al., 2008).

    One thread, in an order drawn from the seed: the same seed gives the same communities. NetworKit's
    generator is global: later calls in this process get its changed seed.
    """
    # The import takes a second, which other methods need not wait for.
    import networkit

    rows = np.repeat(np.arange(graph.nodes, dtype=np.int32), np.diff(graph.indptr))
    once = rows < graph.indices
    ends = (rows[once].astype(np.uint64), graph.indices[once].astype(np.uint64))
    undirected = networkit.GraphFromCoo(ends, n=graph.nodes)
    threads = networkit.getMaxNumberOfThreads()
    networkit.setNumberOfThreads(1)
    try:
        networkit.setSeed(seed, False)
        # par="none" visits nodes by their number, whatever the seed.
        louvain = networkit.community.PLM(undirected, gamma=resolution, par="none randomized")
        community_N = louvain.run().getPartition().getVector()
    finally:
        networkit.setNumberOfThreads(threads)
    return np.unique(np.asarray(community_N, dtype=np.int64), return_inverse=True)[1]
