"""Heterophilous graphs: words, products, mines, workers and users, whose neighbours are often of another class."""

from pathlib import Path

import numpy as np

from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import open_npz
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
NAMES = ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")
MASKS = {"train_masks": TRAIN, "val_masks": VAL, "test_masks": TEST}


def path_of(name: str) -> Path:
    """The published file of a graph, below the data root."""
    word = name.replace("-", "_")
    return Path(word) / "raw" / f"{word}.npz"


def load_heterophilous(name: str, options: DataSource) -> Graph:
    """One of five graphs; its own split is the first of the ten that are published.

    Source: Platonov et al., "A critical look at the evaluation of GNNs under heterophily: are we really making
    progress?", ICLR 2023.

    Raises:
        ShoalError: The file is missing and cannot be downloaded, or is damaged or of wrong values.
    """
    path = data_root(options.root) / path_of(name)
    published(name, path.parent, [path.name], lambda file: f"{URL}/{file}")
    with reading(path, "delete it, and it is downloaded again"), open_npz(path) as file:
        edges = file["edges"].T
        arrays = {"edge_index": edges, "x": file["node_features"], "y": file["node_labels"]}
        masks = {key: np.asarray(file[key])[0] for key in MASKS}
    split = np.full(arrays["y"].shape, UNASSIGNED, dtype=np.int8)
    for key, mask in masks.items():
        if mask.dtype != np.bool_ or mask.shape != split.shape:
            found = f"{mask.dtype} {list(mask.shape)}"
            raise ShoalError(f"{path} ({key}): must be truth values of {len(split)} nodes, found {found}")
        split[mask] = MASKS[key]
    where = {key: f"{path} ({key})" for key in ("edge_index", "x", "y", "split")}
    return graph_from_arrays(name, {**arrays, "split": split}, where)
