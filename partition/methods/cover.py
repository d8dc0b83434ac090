"""A disjoint cover: every node has at most one client, every client has a node."""

import numpy as np

# The client of a node that no client holds.
NO_CLIENT = -1


def assert_cover(assignment: np.ndarray, nodes: int, clients: int) -> None:
    """Asserts that `assignment` is int32 `[nodes]` in `0..clients-1` or `NO_CLIENT`, and leaves no client empty."""
    assert assignment.shape == (nodes,), f"assignment of shape {assignment.shape} for {nodes} nodes"
    assert assignment.dtype == np.int32, f"assignment of dtype {assignment.dtype}"
    assert assignment.min() >= NO_CLIENT
    assert assignment.max() < clients
    assert np.bincount(assignment[assignment != NO_CLIENT], minlength=clients).min() > 0, "a client is empty"


def fill_empty(assignment: np.ndarray, clients: int) -> np.ndarray:
    """Gives every empty client one node: the one of highest id in the client that is the largest at that moment.

    Empty clients are filled in ascending order, and of equally large clients the first gives a node, so the input
    alone determines the result, int32 `[N]`. There must be at least as many nodes as clients.
    """
    sizes = np.bincount(assignment, minlength=clients)
    if sizes.min() > 0:
        return assignment
    filled = assignment.copy()
    for empty in np.flatnonzero(sizes == 0):
        largest = sizes.argmax()
        filled[np.flatnonzero(filled == largest)[-1]] = empty
        sizes[largest] -= 1
        sizes[empty] = 1
    return filled


def sizes_of(items: int, clients: int, zipf: float) -> np.ndarray:
    """Divides items between clients by Zipf's law, int64 `[clients]`: client k gets a share as (k + 1)^-zipf, at least
    one item; with 0 all get the same, but for one.
    """
    share = np.arange(1, clients + 1, dtype=np.float64) ** -zipf
    ends = np.round(np.cumsum(share / share.sum()) * (items - clients)).astype(np.int64)
    return np.diff(ends, prepend=0) + 1
