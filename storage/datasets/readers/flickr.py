"""Flickr: images joined by what they have in common, with GraphSAINT's split."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.storage.datasets.features.features import compact
from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.files.bounded_npy import degrees_of, load_npy, open_npz
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

FOLDER = Path("flickr") / "raw"
URL = "https://drive.usercontent.google.com/download?id={}&confirm=t"
IDS = {
    "adj_full.npz": "1crmsTbd1-2sEXsGwa2IKnIB7Zd3TmUsy",
    "feats.npy": "1join-XdvX3anJU_MLVtick7MgeAQiWIZ",
    "class_map.json": "1uxIkbtg5drHTsKt-PAsZZ4_yJmgFmle9",
    "role.json": "1htXCtuktuCW8TR8KiKfrFDAxUgekQoV7",
}


def load_flickr(name: str, options: DataSource) -> Graph:
    """89250 images, 500 features, 7 classes, split 50/25/25 %; files in `<data root>/flickr/raw`.

    x is float32 `[N, 500]`. Source: Zeng et al., "GraphSAINT: Graph Sampling Based Inductive Learning
    Method", ICLR 2020.

    Raises:
        ShoalError: A file is missing and cannot be downloaded, or is damaged.
    """
    folder = data_root(options.root) / FOLDER
    paths = published(name, folder, list(IDS), lambda file: URL.format(IDS[file]))
    adjacency, features, labels, roles = paths
    again = "delete it, and it is downloaded again"
    with reading(adjacency, again), open_npz(adjacency) as file:
        degrees = degrees_of(file["indptr"], file["indices"])
        edges = np.stack([np.repeat(np.arange(len(degrees)), degrees), file["indices"]])
    with reading(features, again):
        x = compact(load_npy(features))
    y = np.full(len(degrees), -1, dtype=np.int64)
    with reading(labels, again):
        label_of = json.loads(labels.read_text())
        y[_rows(map(int, label_of), len(y))] = _whole(label_of.values())
    split = np.full(len(degrees), UNASSIGNED, dtype=np.int8)
    with reading(roles, again):
        rows = json.loads(roles.read_text())
        for role, part in (("tr", TRAIN), ("va", VAL), ("te", TEST)):
            split[_rows(rows[role], len(split))] = part
    where = {"edge_index": str(adjacency), "x": str(features), "y": str(labels), "split": str(roles)}
    return graph_from_arrays(name, {"edge_index": edges, "x": x, "y": y, "split": split}, where)


def _rows(numbers: Iterable[Any], nodes: int) -> np.ndarray:
    """Numbers of nodes; NumPy by itself would count negative ones from the end."""
    rows = _whole(numbers)
    if len(rows) and not 0 <= rows.min() <= rows.max() < nodes:
        raise ValueError(f"names a node beyond the {nodes} of the graph")
    return rows


def _whole(numbers: Iterable[Any]) -> np.ndarray:
    values = list(numbers)
    if not all(type(value) is int for value in values):
        raise ValueError("holds other things than integers")
    return np.array(values, dtype=np.int64)
