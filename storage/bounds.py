"""Whether the numbers in a client's files lie where those that use them take them to lie, at the speed of memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Report = Callable[[str], None]


@dataclass(frozen=True)
class Limits:
    """What a manifest says that holds for the files of all its clients.

    Attributes:
        nodes: Nodes of all clients.
        features: Width F of the features.
        classes: Number of classes C.
    """

    nodes: int
    features: int
    classes: int


def check_adjacency(indptr: np.ndarray, indices: np.ndarray, rows: int, report: Report) -> None:
    """Reports a row pointer `[rows + 1]` that does not lead through all of `indices`, and indices of no row."""
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices):
        report("the row pointer does not fit the neighbours")
    elif (indptr[1:] < indptr[:-1]).any():
        report("the row pointer decreases")
    if _outside(indices, 0, rows):
        report(f"a neighbour lies outside rows 0 to {rows - 1}")


def check_ids(ids: np.ndarray, end: int, what: str, report: Report) -> None:
    """Reports ids outside 0 to `end` - 1, and ids that occur twice."""
    if _outside(ids, 0, end):
        report(f"a {what} lies outside 0 to {end - 1}")
    elif not _ascending(ids) and not _ascending(np.sort(ids)):
        report(f"a {what} occurs twice")


def check_labels(label: np.ndarray, classes: int, report: Report) -> None:
    """Reports labels outside -1 to `classes` - 1."""
    if _outside(label, -1, classes):
        report(f"a label lies outside -1 to {classes - 1}")


def check_matrix(name: str, shape: Sequence[int], rows: int, features: int, report: Report) -> None:
    """Reports a matrix that is not `[rows, features]`."""
    if tuple(shape) != (rows, features):
        report(f"{name} is {list(shape)} and not {[rows, features]}")


def check_parts(parts: Sequence[np.ndarray], report: Report) -> None:
    """Reports parts of a split that are not in strictly ascending order, or that share a row."""
    if not all(map(_ascending, parts)):
        report("rows are not in ascending order")
    elif not _ascending(np.sort(np.concatenate(parts))):
        report("a row belongs to two parts")


def _outside(values: np.ndarray, low: int, end: int) -> bool:
    return bool(len(values)) and (int(values.min()) < low or int(values.max()) >= end)


def _ascending(values: np.ndarray) -> bool:
    return not bool((values[1:] <= values[:-1]).any())
