"""The hops of one shard as they lie in a store: opened, checked, and those of labelled rows as a graph of their own."""

from pathlib import Path

import numpy as np

from shoal.storage.graph.rows import Rows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store.arrow_file import FileRecord, MappedFile, require_content, require_none
from shoal.storage.store.bounds import Limits, check_adjacency, check_ids, check_rows, check_weights
from shoal.storage.store.shard import Shard, weights_of
from shoal.storage.store.split import Split


def open_hops(
    path: Path,
    nodes: int,
    propagation: PropagationOptions,
    record: FileRecord | None = None,
    limits: Limits | None = None,
) -> MappedFile:
    """Maps the hops of a shard; with limits, every byte, the columns and rows and edges of labelled nodes are checked.

    Raises ShoalError: the file is missing, damaged, or of another shard or kernel.
    """
    if limits is not None and record is not None:
        require_content(path, record)
    file = MappedFile(path, "hops", record)
    if limits is not None:
        require_none(path, _faults_of(file, nodes, propagation, limits))
    return file


def _faults_of(file: MappedFile, nodes: int, propagation: PropagationOptions, limits: Limits) -> list[str]:
    labelled = propagation.rows == "labelled"
    hop_names = [f"hop{k}" for k in range(0 if labelled else 1, propagation.hops + 1)]
    weights = ["weights"] if limits.weighted else []
    names = ["row", "neighbors", *hop_names, *weights] if labelled else hop_names
    if file.names != names:
        return [f"columns {', '.join(file.names)} and not {', '.join(names)}"]
    faults: list[str] = []
    if labelled:
        indptr, indices = file.lists("neighbors")
        check_ids(file.primitive("row"), nodes, "row", faults.append)
        check_adjacency(indptr, indices, file.rows, faults.append)
        check_weights(weights_of(file, indptr), limits.weighted, faults.append)
    elif file.rows != nodes:
        faults.append(f"{file.rows} rows for a shard of {nodes}")
    for name in hop_names:
        check_rows(name, file.features(name), file.rows, limits.features, faults.append)
    return faults


def only_labelled(file: MappedFile, shard: Shard, split: Split) -> tuple[Shard, Split, list[Rows]]:
    """Labelled nodes of a client, their neighbours, edges and degrees among them, and the hops of the whole shard."""
    row = file.primitive("row")
    indptr, indices = file.lists("neighbors")
    x, *further = (file.features(name) for name in file.names if name.startswith("hop"))
    new_row = np.full(shard.nodes, -1, dtype=np.int32)
    new_row[row] = np.arange(len(row), dtype=np.int32)
    parts = (np.sort(new_row[rows]) for rows in (split.train, split.val, split.test))
    own = Shard(
        shard.client, shard.node[row], shard.label[row], indptr, indices, x, edge_weight=weights_of(file, indptr)
    )
    return own, Split(*parts), further
