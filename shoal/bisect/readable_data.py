"""Arrays of clients' data that differ between the stores of two runs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from shoal.bisect.differences import Difference, compare
from shoal.engine.messages.job import Job
from shoal.storage.graph.rows import CsrRows
from shoal.storage.shards.split import PARTS
from shoal.storage.store.store import Store

# Clients of larger stores are compared up to this number.
MOST_CLIENTS = 10_000
ARRAYS = ("node", "label", "indptr", "indices", "x", "graph", "edge_weight", "target", "edge_attr")
CALLED = {"node": "nodes", "label": "labels", "indptr": "edges", "indices": "edges", "x": "features"}


def changed_data(a: Job, b: Job) -> dict[int, tuple[str, Difference]]:
    """Compares graphs and splits of the clients of two jobs.

    Returns:
        By client the first array that differs, and how. Raises ShoalError: a file of a store is damaged.
    """
    stores = a.open_store(), b.open_store()
    changed = {}
    for client in range(min(MOST_CLIENTS, *(store.clients for store in stores))):
        changes = (
            (name, difference)
            for (name, left), (_, right) in zip(_arrays(a, stores[0], client), _arrays(b, stores[1], client))
            if (difference := compare(name, left, right)) is not None
        )
        if (first := next(changes, None)) is not None:
            changed[client] = first
    return changed


def _arrays(job: Job, store: Store, client: int) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of a client's graph and split by name, as tensors; None: there is none."""
    shard, split = store.shard(client), store.split(job.split, client)
    for name in ARRAYS:
        array = getattr(shard, name)
        dense = array.toarray() if isinstance(array, CsrRows) else array
        yield CALLED.get(name, name), None if dense is None else torch.from_numpy(np.array(dense))
    for part in PARTS:
        yield f"{part} items", torch.from_numpy(np.array(getattr(split, part)))
