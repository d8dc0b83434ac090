"""A user's dataset: `data.dataset: examples/dataset.py:Moons`, with `data.options.nodes`."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_moons
from sklearn.neighbors import kneighbors_graph

import shoal


class Moons(shoal.Dataset):
    """Two half circles that reach into each other, every point joined to those nearby."""

    def __init__(self, *, nodes: int = 400, neighbors: int = 6, noise: float = 0.2) -> None:
        self.nodes, self.neighbors, self.noise = nodes, neighbors, noise

    def load(self, root: Path) -> dict[str, Any]:
        x, y = make_moons(self.nodes, noise=self.noise, random_state=0)
        nearby = kneighbors_graph(x, self.neighbors).tocoo()
        return {"edge_index": np.stack([nearby.row, nearby.col]), "x": x.astype(np.float32), "y": y}
