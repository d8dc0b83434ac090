"""Pieces of consecutive numbers of nodes, or graphs: the partition of FGGP's public code."""

import numpy as np

from partition.cover import NOBODY
from partition.options import PartitionOptions
from partition.workspace import Workspace
from storage.errors import ShoalError
from storage.graph import Graph


def by_index(
    graph: Graph,
    options: PartitionOptions,
    labelled_mask: np.ndarray | None = None,
    workspace: Workspace | None = None,
) -> np.ndarray:
    """Client of every item, int32 `[items]`: pieces of consecutive items, whose sizes differ by at most one.

    With more `options.chunks` than clients the first pieces are clients, in their order, and items of the others have
    none (`NOBODY`).

    Raises:
        ShoalError: There are fewer chunks than clients, or more than items.
    """
    chunks = options.chunks or options.clients
    if not options.clients <= chunks <= graph.items:
        raise ShoalError(
            f"partition.chunks: {chunks} of dataset '{graph.name}' for {options.clients} clients; choose from "
            f"{options.clients} to {graph.items}"
        )
    sizes = np.full(chunks, graph.items // chunks)
    sizes[: graph.items % chunks] += 1
    piece = np.repeat(np.arange(chunks, dtype=np.int32), sizes)
    return np.where(piece < options.clients, piece, np.int32(NOBODY))
