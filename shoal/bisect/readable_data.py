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
# Arrays with a row a node, by what they are called.
OF_NODES = {"label": "labels", "x": "features", "graph": "graph", "target": "target"}
OF_EDGES = ("edge_weight", "edge_attr")


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
    """Yields the arrays of a client's graph and split by name, as tensors; None: there is none.

    Rows are in the order of global numbers, since the order of a shard depends on its edges; it comes last.
    """
    shard, split = store.shard(client), store.split(job.split, client)
    order = np.argsort(shard.node, kind="stable")
    yield "nodes", _tensor(shard.node[order])
    for name, called in OF_NODES.items():
        array = getattr(shard, name)
        rows = array.toarray() if isinstance(array, CsrRows) else array
        of_items = name == "target" and shard.kind != "nodes"
        yield called, None if rows is None else _tensor(rows if of_items else rows[order])
    ends = np.repeat(shard.node, np.diff(shard.indptr)), shard.node[shard.indices]
    of_edges = np.lexsort(ends[::-1])
    yield "edges", _tensor(np.stack(ends)[:, of_edges])
    for name in OF_EDGES:
        values = getattr(shard, name)
        yield name, None if values is None else _tensor(np.asarray(values)[of_edges])
    for part in PARTS:
        rows = getattr(split, part)
        yield f"{part} items", _tensor(rows if shard.kind == "pairs" else np.sort(shard.item[rows]))
    yield "labels in training", None if split.train_label is None else _tensor(split.train_label)
    yield "order of nodes", _tensor(shard.node)


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))
