"""Ids: what a user calls nodes, whole numbers or texts, where these are not the numbers of their rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.storage.errors import ShoalError

# Fewer rows may count by chance.
FEW_ROWS = 16


def clean_ids(ids: np.ndarray | pa.Array, nodes: int, where: str | Path) -> pa.Array | None:
    """Cleans ids of nodes `[N]`, each once: int64, or texts where not all are whole numbers; None: 0 to N - 1 in order.

    Raises ShoalError: they are of another shape or type, or one is missing or there twice.
    """
    if isinstance(ids, np.ndarray):
        if ids.shape != (nodes,) or ids.dtype.kind not in "iuU":
            raise ShoalError(where, f"must be integers or texts [{nodes}], found {ids.dtype} {list(ids.shape)}")
        ids = pa.array(ids)
    ids = ids.cast(pa.large_string())
    if ids.null_count:
        raise ShoalError(where, f"row {pc.is_null(ids).index(True).as_py()} has no id; every node needs one")
    if pc.count_distinct(ids).as_py() < len(ids):
        counts = pc.value_counts(ids)
        twice = counts.field("values")[pc.greater(counts.field("counts"), 1).index(True).as_py()]
        raise ShoalError(where, f"id {twice.as_py()!r} is there twice; one row a node")
    numbers = whole_numbers(ids)
    if numbers is None:
        return ids
    return None if numbers.equals(row_numbers(nodes)) else numbers


def whole_numbers(texts: pa.Array) -> pa.Array | None:
    """Converts texts to the whole numbers, int64, that all are and are written as; else None."""
    try:
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    return numbers if numbers.cast(texts.type).equals(texts) else None


def row_numbers(nodes: int) -> pa.Array:
    """Makes ids for nodes that have no others: 0 to N - 1, int64."""
    return pa.array(np.arange(nodes))


def joined_ids(parts: Sequence[pa.Array | None], nodes: Sequence[int]) -> pa.Array | None:
    """Joins ids of graphs behind one another, texts if some are; None if no graph has any."""
    if all(part is None for part in parts):
        return None
    numbered = [row_numbers(count) if part is None else part for part, count in zip(parts, nodes)]
    kinds = {part.type for part in numbered}
    return pa.concat_arrays([part if len(kinds) == 1 else part.cast(pa.large_string()) for part in numbered])


def counting_columns(x: Any, ids: pa.Array | None) -> Iterator[tuple[int, str]]:
    """Finds columns of dense features `[N, F]` that only count the rows, or repeat ids, and which of the two."""
    if not isinstance(x, np.ndarray) or len(x) < FEW_ROWS:
        return
    kinds = {"counts the rows": np.arange(len(x))}
    if ids is not None and pa.types.is_integer(ids.type):
        kinds["repeats the ids"] = ids.to_numpy()
    for what, numbers in kinds.items():
        steps = np.diff(numbers).astype(np.float32)
        # The first rows leave few columns to be read.
        first = np.diff(x[:FEW_ROWS], axis=0) == steps[: FEW_ROWS - 1, None]
        for column in np.flatnonzero(first.all(axis=0)):
            if np.array_equal(np.diff(x[:, column]), steps):
                yield int(column), what
