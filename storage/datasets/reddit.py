"""Reddit: posts joined by common commenters, with GraphSAGE's split by date."""

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from storage.datasets.download import published
from storage.datasets.features import compact
from storage.datasets.source import DataSource, data_root, reading
from storage.graph import Graph, clean_edges

FOLDER = Path("reddit") / "raw"
URL = "https://data.dgl.ai/dataset/reddit.zip"
FILES = ("reddit_data.npz", "reddit_graph.npz")


def load_reddit(name: str, options: DataSource) -> Graph:
    """232965 posts, 602 features, 41 classes, about 115 million entries; files in `<data root>/reddit/raw`.

    x is float32 `[N, 602]`. Source: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large
    Graphs", NeurIPS 2017, as packed by DGL.

    Raises:
        ShoalError: A file is missing and cannot be downloaded, or is damaged.
    """
    folder = data_root(options.root) / FOLDER
    data, adjacency = published(name, folder, FILES, lambda file: URL)
    again = "delete it, and it is downloaded again"
    with reading(data, again), np.load(data, allow_pickle=False) as file:
        x = compact(file["feature"])
        y = file["label"].astype(np.int64)
        # node_types counts train, val, test from 1, as `storage.graph` does
        split = file["node_types"].astype(np.int8)
    with reading(adjacency, again):
        entries = sp.load_npz(adjacency).tocoo()
        edges = np.stack([entries.row, entries.col])
    indptr, indices, cleaning = clean_edges(edges, len(y), str(adjacency))
    return Graph(name, indptr, indices, x, y, int(y.max()) + 1, split=split, cleaning=cleaning)
