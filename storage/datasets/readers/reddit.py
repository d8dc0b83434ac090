"""Reddit: posts joined by common commenters, with GraphSAGE's split by date."""

from pathlib import Path

import numpy as np

from shoal.storage.datasets.features.features import compact
from shoal.storage.datasets.sources.dataset_spec import DatasetSpec
from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.files.bounded_npy import matrix_of, open_npz
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

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
    with reading(data, again), open_npz(data) as file:
        x = compact(file["feature"])
        # node_types counts train, val, test from 1, as `shoal.storage.graph.graph` does
        y, split = file["label"], file["node_types"]
    with reading(adjacency, again), open_npz(adjacency) as file:
        entries = matrix_of(file, len(x)).tocoo()
        edges = np.stack([entries.row, entries.col])
    where = {**dict.fromkeys(("x", "y", "split"), str(data)), "edge_index": str(adjacency)}
    return graph_from_arrays(name, {"edge_index": edges, "x": x, "y": y, "split": split}, where)


DATASETS = (DatasetSpec("reddit", load_reddit, [FOLDER / file for file in FILES]),)
