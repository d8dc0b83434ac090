"""Graphs as dense matrices in double precision, and what layers and hops multiply by."""

from collections.abc import Iterable

import numpy as np


def join(nodes: int, pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Joins pairs of nodes, loops left out: the adjacency `[N, N]`."""
    a = np.zeros((nodes, nodes))
    for i, j in pairs:
        a[i, j] = a[j, i] = i != j
    return a


def rows_of(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gives row starts and neighbours of an adjacency `[N, N]`, int32."""
    indptr = np.concatenate([[0], (a != 0).sum(1).cumsum()]).astype(np.int32)
    return indptr, np.nonzero(a)[1].astype(np.int32)


def smoothing(a: np.ndarray, r: float = 0.5) -> np.ndarray:
    """Computes D^(r - 1) (A + I) D^-r, D the row sums of A + I, `[N, N]`."""
    loops = a + np.eye(len(a))
    degree = loops.sum(1)
    return degree[:, None] ** (r - 1) * loops * degree**-r


def operator_of(kind: str, a: np.ndarray) -> np.ndarray:
    """Computes what a layer multiplies by: `sum`, `edges`, `mean`, `attention` or `symmetric`, `[N, N]`."""
    mean = a / np.maximum(a.sum(1, keepdims=True), 1)
    return {"sum": a, "edges": a, "mean": mean, "attention": a + np.eye(len(a)), "symmetric": smoothing(a)}[kind]
