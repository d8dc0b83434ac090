"""The array of the user's that says which nodes, or graphs, train, validate and test."""

import numpy as np

from storage.bounded_npy import NOT_READ, load_npy, reason
from storage.errors import ShoalError
from storage.graph import TEST, UNASSIGNED


def read_split_file(file: str | None) -> np.ndarray:
    """Reads the array of the `file` protocol.

    Raises:
        ShoalError: No file is named, or it is missing or of another form.
    """
    if file is None:
        raise ShoalError(
            "data.split_file: needed where data.split is `file`; give a .npy with 0, 1, 2, 3 for every node"
        )
    try:
        array = load_npy(file)
    except NOT_READ as error:
        raise ShoalError(
            f"{file}: data.split_file cannot be read ({reason(error)}); give a .npy with 0, 1, 2, 3 for every node"
        ) from error
    rule = f"{file}: data.split_file must be integers 0 to 3, one a node; found"
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ShoalError(f"{rule} {array.dtype} {list(array.shape)}")
    invalid = np.flatnonzero((array < UNASSIGNED) | (array > TEST))
    if len(invalid):
        raise ShoalError(f"{rule} {array[invalid[0]]} at node {invalid[0]}")
    return array.astype(np.int8)
