"""Files of a store with the edges between clients, a batch a client."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.cross_edges import Boundary
from shoal.storage.shards.arrow_file import REMAKE, FileRecord, MappedFile, Packs, require_content
from shoal.storage.shards.bounds import Limits

NAMES = ["row", "client", "other"]
# This column is there if edges have weights.
WEIGHT = "weight"


def boundary_columns(boundary: Boundary) -> dict[str, pa.Array]:
    """Makes the columns of a client's edges."""
    names = NAMES if boundary.weight is None else [*NAMES, WEIGHT]
    return {name: pa.array(getattr(boundary, name)) for name in names}


def open_boundary(
    path: Path,
    nodes: Sequence[int],
    client: int,
    record: FileRecord | None = None,
    limits: Limits | None = None,
    opened: Packs = None,
) -> Boundary:
    """Maps a client's edges to others, of clients with so many `nodes`; with limits, every byte and number is checked.

    Raises ShoalError: the file is missing, damaged, or of other clients.
    """
    if limits is not None and record is not None:
        require_content(path, record)
    file = MappedFile(path, "boundary", record, opened)
    weighted = WEIGHT in file.names if limits is None else limits.weighted
    names = [*NAMES, WEIGHT] if weighted else NAMES
    if file.names != names:
        raise ShoalError(path, f"columns {', '.join(file.names)} and not {', '.join(names)}; {REMAKE}")
    boundary = Boundary(*(file.primitive(name) for name in names))
    if limits is not None and len(boundary):
        row, other = boundary.row, boundary.client
        inside = row[0] >= 0 and row[-1] < nodes[client] and not (np.diff(row) < 0).any()
        inside = inside and other.min() >= 0 and other.max() < len(nodes) and not (other == client).any()
        if not inside or (boundary.other < 0).any() or (boundary.other >= np.asarray(nodes)[other]).any():
            raise ShoalError(path, f"edges to rows that clients do not have; {REMAKE}")
        if boundary.weight is not None and not (np.isfinite(boundary.weight) & (boundary.weight > 0)).all():
            raise ShoalError(path, f"weights of edges that are not positive and finite; {REMAKE}")
    return boundary
