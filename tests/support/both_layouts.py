"""The same graph with dense features and with sparse ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


def both_layouts(graph: Path, folder: Path, copies: int = 1) -> Iterator[dict[str, Any]]:
    """Keys of a dense store and of a sparse one, of some scaled copies of the features side by side."""
    arrays = {file.stem: np.load(file) for file in graph.glob("*.npy")}
    if copies > 1:
        arrays["x"] = np.tile(arrays["x"], copies) * (np.arange(arrays["x"].shape[1] * copies) % 3 + 1) / copies
    np.savez(folder / "graph.npz", **arrays)
    for layout in ("dense", "sparse"):
        yield {"data.path": str(folder / "graph.npz"), "data.store": str(folder / layout), "data.layout": layout}
