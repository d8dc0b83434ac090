"""An assignment that is not computed: an `.npy` file, the dataset's own, or chunks of consecutive items."""

import numpy as np

from shoal.partition.methods.cover import NO_CLIENT
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import NOT_READ, load_npy, reason
from shoal.storage.graph.graph import Graph


def by_file(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Reads the client of every item from `options.file`, or the graph's own if that is None, int32 `[items]`.

    A ShoalError says that the file is missing or no `.npy` of integers `[items]`, or that there is no such client, a
    client without an item, or no assignment of the dataset's own.
    """
    if options.file is not None:
        where = options.file
        try:
            given = load_npy(where)
        except NOT_READ as error:
            raise ShoalError(
                where, f"cannot be read as an .npy array ({reason(error)}): save the assignment alone, with numpy.save"
            ) from error
    elif graph.assignment is not None:
        where = f"assignment of dataset '{graph.name}'"
        given = graph.assignment
    else:
        raise ShoalError(
            f"partition.file is not set and dataset '{graph.name}' has no assignment of its own: "
            f"name an .npy file of the client of every {graph.item_name}"
        )
    if given.shape != (graph.items,) or not np.issubdtype(given.dtype, np.integer):
        raise ShoalError(where, f"must be integers of shape [{graph.items}], found {given.dtype} {list(given.shape)}")
    outside = (given < 0) | (given >= options.clients)
    if outside.any():
        raise ShoalError(
            where,
            f"clients must be 0 to {options.clients - 1} (partition.clients is {options.clients}), "
            f"found {_shorten(np.unique(given[outside]))}",
        )
    empty = np.flatnonzero(np.bincount(given, minlength=options.clients) == 0)
    if len(empty):
        raise ShoalError(
            where,
            f"no {graph.item_name} for {_shorten(empty)} of the {options.clients} clients: lower partition.clients",
        )
    return given.astype(np.int32)


def _shorten(ids: np.ndarray) -> str:
    """Writes the first ten ids, and how many more there are."""
    shown = ", ".join(str(i) for i in ids[:10].tolist())
    return shown if len(ids) <= 10 else f"{shown} and {len(ids) - 10} more"


def by_index(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Cuts consecutive items into chunks whose sizes differ by at most one; client of every item, int32 `[items]`.

    With more `options.chunks` than clients the first chunks are clients, and items of the others have none
    (`NO_CLIENT`). A ShoalError says that there are fewer, or more than items.
    """
    chunks = options.chunks or options.clients
    if not options.clients <= chunks <= graph.items:
        raise ShoalError(
            "partition.chunks",
            f"{chunks} of dataset '{graph.name}' for {options.clients} clients; choose from "
            f"{options.clients} to {graph.items}",
        )
    sizes = np.full(chunks, graph.items // chunks)
    sizes[: graph.items % chunks] += 1
    chunk = np.repeat(np.arange(chunks, dtype=np.int32), sizes)
    return np.where(chunk < options.clients, chunk, np.int32(NO_CLIENT))
