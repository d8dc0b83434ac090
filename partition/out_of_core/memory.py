"""The memory that semi-external partitioning needs, and its buffers under a limit."""

from dataclasses import dataclass

from shoal.storage.errors import ShoalError

# Bytes, measured as peak resident memory and rounded up. METIS needs less on graphs of few nodes and many edges.
OF_NODE = 16
OF_COARSE_NODE = 24
OF_METIS_NODE = 240
OF_METIS_ENTRY = 110
# A block's indices and weights, and the records written from it; a bucket's records, and what they are merged into.
OF_BLOCK_ENTRY = 24
OF_BUCKET_ENTRY = 24
BUFFERS = 16 << 20
# Memory that the process needs to compile the loops, or to load them from the cache.
CODE = 112 << 20

BLOCK = 1 << 22
BUCKET = 1 << 23


@dataclass(frozen=True)
class Memory:
    """A limit in bytes beyond the process as it was (None: what METIS needs is not limited), and the sizes of buffers.

    `block` entries are read and `bucket` entries merged at a time.
    """

    limit: int | None
    block: int = BLOCK
    bucket: int = BUCKET

    @classmethod
    def of(cls, limit: int | None, nodes: int) -> "Memory":
        """Buffers for a graph of so many nodes: up to half of the memory that the arrays of its nodes leave free.

        Raises:
            ShoalError: The limit does not hold the arrays of the nodes.
        """
        if limit is None:
            return cls(None)
        spare = limit - CODE - OF_NODE * nodes
        if spare < BUFFERS:
            raise ShoalError(
                f"engine.memory_limit is {bytes_of(limit)}, but semi-external partitioning of {nodes} nodes "
                f"needs at least {bytes_of(OF_NODE * nodes + BUFFERS + CODE)}: raise it to that"
            )
        block = min(spare // 4 // OF_BLOCK_ENTRY, BLOCK)
        return cls(limit, block, min(spare // 2 // OF_BUCKET_ENTRY, BUCKET))

    def require_contraction(self, nodes: int, coarse: int) -> None:
        """Raises a ShoalError if the limit does not hold the arrays of the nodes and of the coarse nodes."""
        needed = 4 * nodes + OF_COARSE_NODE * coarse + BUFFERS + CODE
        if self.limit is not None and needed > self.limit:
            raise ShoalError(
                f"engine.memory_limit is {bytes_of(self.limit)}, but contracting {nodes} nodes to {coarse} needs "
                f"{bytes_of(needed)}: raise it to that"
            )

    def holds_metis(self, nodes: int, entries: int) -> bool:
        """Whether METIS fits within the limit on a graph of this size."""
        return self.limit is None or metis_bytes(nodes, entries) <= self.limit

    def require_metis(self, nodes: int, entries: int, clients: int) -> None:
        """Raises a ShoalError if METIS does not fit on the graph, which contraction makes no smaller."""
        if self.limit is not None and not self.holds_metis(nodes, entries):
            raise ShoalError(
                f"engine.memory_limit is {bytes_of(self.limit)}, but for {clients} clients the coarsest graph "
                f"({nodes} nodes, {entries // 2} edges) needs {bytes_of(metis_bytes(nodes, entries))}: raise it to "
                "that or lower partition.clients"
            )


def metis_bytes(nodes: int, entries: int) -> int:
    """Peak of METIS on a weighted graph, its 64-bit input included."""
    return OF_METIS_NODE * nodes + OF_METIS_ENTRY * entries + CODE


def bytes_of(count: int) -> str:
    """A number of bytes in MiB, rounded up, as a config takes it."""
    return f"{-(-count >> 20)}MiB"
