"""A graph as a user has it: a file of arrays, or a folder of them."""

from pathlib import Path
from typing import Any

import numpy as np


def user_graph(folder: Path, nodes: int, name: str = "graph", seed: int = 0, **arrays: Any) -> str:
    """Writes `NAME.npz` and gives its path: edges, four features and three classes are drawn where they are not given.

    An array that is None is left out.
    """
    rng = np.random.default_rng(seed)
    drawn = {
        "edge_index": rng.integers(nodes, size=(2, 4 * nodes)),
        "x": rng.standard_normal((nodes, 4)).astype(np.float32),
        "y": rng.integers(3, size=nodes),
    }
    found = {key: array for key, array in {**drawn, **arrays}.items() if array is not None}
    np.savez(folder / f"{name}.npz", **found)
    return str(folder / f"{name}.npz")


def write_arrays(folder: Path, **arrays: Any) -> Path:
    """Writes `NAME.npy` for each array into a new folder, and gives it."""
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def sparse_features(nodes: int, features: int, share: float) -> np.ndarray:
    """Features float64 `[N, F]`, a share of which are not 0; every fifth node has none."""
    rng = np.random.default_rng(0)
    x = (rng.random((nodes, features)) < share) * rng.random((nodes, features))
    x[::5] = 0
    return x
