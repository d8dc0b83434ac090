"""Flickr: images joined by what they have in common, with GraphSAINT's split."""

import json
from pathlib import Path

import numpy as np

from storage.datasets.download import published
from storage.datasets.features import compact
from storage.datasets.source import DataSource, data_root, reading
from storage.graph import TEST, TRAIN, UNASSIGNED, VAL, Graph, clean_edges

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
    with reading(adjacency, again), np.load(adjacency, allow_pickle=False) as file:
        degrees = np.diff(file["indptr"])
        edges = np.stack([np.repeat(np.arange(len(degrees)), degrees), file["indices"]])
    with reading(features, again):
        x = compact(np.load(features, allow_pickle=False))
    y = np.full(len(degrees), -1, dtype=np.int64)
    with reading(labels, again):
        label_of = json.loads(labels.read_text())
        y[np.fromiter(map(int, label_of), dtype=np.int64)] = list(label_of.values())
    split = np.full(len(degrees), UNASSIGNED, dtype=np.int8)
    with reading(roles, again):
        rows = json.loads(roles.read_text())
        for role, part in (("tr", TRAIN), ("va", VAL), ("te", TEST)):
            split[rows[role]] = part
    indptr, indices, cleaning = clean_edges(edges, len(y), str(adjacency))
    return Graph(name, indptr, indices, x, y, int(y.max()) + 1, split=split, cleaning=cleaning)
