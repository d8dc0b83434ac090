"""Clients that are rings of a few nodes, with the classes, features and training nodes that a test wants."""

from pathlib import Path
from typing import Any

import numpy as np
from support.small_runs import run_small
from support.user_graph import write_arrays

TRAIN, TEST = 1, 3


def ring_clients(folder: Path, of_client: list[list[int]], trained: int, features: int = 12, **changes: Any) -> Path:
    """A finished run: its clients have nodes of these classes, the first `trained` of which train.

    Features are at least 0, a third of them are not 0; `changes` are those of `small_run`. Gives the run's folder.
    """
    y = np.concatenate(of_client)
    sizes = [len(labels) for labels in of_client]
    first = np.cumsum([0, *sizes])[:-1]
    ring = [(start + k, start + (k + 1) % size) for start, size in zip(first, sizes) for k in range(size)]
    rng = np.random.default_rng(7)
    x = (rng.random((len(y), features)) < 1 / 3) * rng.random((len(y), features))
    x[np.arange(len(y)), y] += 1.0
    split = np.concatenate([np.where(np.arange(size) < trained, TRAIN, TEST) for size in sizes])
    edges = np.array([*ring, *((b, a) for a, b in ring)]).T
    arrays = {"edge_index": edges, "x": x.astype(np.float32), "y": y, "split": split.astype(np.int8)}
    arrays["assignment"] = np.repeat(np.arange(len(sizes)), sizes)
    folder.mkdir(exist_ok=True)
    write_arrays(folder / "graph", **arrays)
    data = {"dataset": "files", "path": str(folder / "graph"), "split": "public", "options": {}}
    partition = {"method": "file", "clients": len(sizes)}
    plain = {"data": data, "partition": partition, "rounds": 2}
    return run_small(folder, **{**plain, **changes})
