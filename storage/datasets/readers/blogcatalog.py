"""BlogCatalog: bloggers who follow one another, in one or several of 39 groups; no features."""

from pathlib import Path

import numpy as np

from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, reading
from shoal.storage.errors import ShoalError
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.target_names import MULTILABEL

NAME = "blogcatalog"
URL = "https://github.com/thunlp/OpenNE/raw/master/data/blogCatalog"
PATHS = [Path(NAME) / "bc_adjlist.txt", Path(NAME) / "bc_labels.txt"]
GROUPS = 39


def load_blogcatalog(name: str, options: DataSource) -> Graph:
    """Bloggers as nodes, who follows whom as edges, their groups as labels, float32 `[10312, 39]`; no split.

    There are no features, so that `data.features` makes them. Source: Tang and Liu, "Relational learning via latent
    social dimensions", KDD 2009, in the files of OpenNE.
    """
    if not options.made.made:
        raise ShoalError("data.features", f"{name} has none; set one-hot, degree, random or spectral")
    edges_file, labels_file = fetch_published(options, PATHS, lambda file: f"{URL}/{file}")
    with reading(labels_file, AGAIN):
        groups_of = dict(_numbers(labels_file))
        nodes = len(groups_of)
        y = np.zeros((nodes, GROUPS), dtype=np.float32)
        for node, groups in groups_of.items():
            y[node, groups] = 1
    with reading(edges_file, AGAIN):
        lists = [(node, others) for node, others in _numbers(edges_file)]
        source = np.repeat([node for node, _ in lists], [len(others) for _, others in lists])
        target = np.array([other for _, others in lists for other in others], dtype=np.int64)
    # One column that takes no memory stands for what is made later.
    x = np.broadcast_to(np.zeros((1, 1), dtype=np.float32), (nodes, 1))
    where = {"edge_index": str(edges_file), "x": str(labels_file), "y": str(labels_file)}
    arrays = {"edge_index": np.stack([source.astype(np.int64), target]), "x": x, "y": y}
    return graph_from_arrays(name, arrays, where, target=MULTILABEL)


def _numbers(path: Path) -> list[tuple[int, list[int]]]:
    """Reads lines of whole numbers: the first of each, and the others."""
    with path.open(encoding="utf-8") as file:
        lines = [list(map(int, line.split())) for line in file if line.strip()]
    return [(line[0], line[1:]) for line in lines]


DATASETS = (DatasetSpec(NAME, load_blogcatalog, PATHS, target=MULTILABEL),)
