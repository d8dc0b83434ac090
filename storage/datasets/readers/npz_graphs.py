"""Graphs in .npz files with adjacencies as CSR: Amazon co-purchase, Coauthor, and Reddit."""

from pathlib import Path

import numpy as np

from shoal.storage.datasets.features.features import compact
from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, reading
from shoal.storage.files.bounded_npy import build_compressed, degrees_of, matrix_of, open_npz, shape_of
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
FILES = {
    "computers": "amazon/Computers/raw/amazon_electronics_computers.npz",
    "photo": "amazon/Photo/raw/amazon_electronics_photo.npz",
    "cs": "coauthor/CS/raw/ms_academic_cs.npz",
    "physics": "coauthor/Physics/raw/ms_academic_phy.npz",
}
REDDIT_URL = "https://data.dgl.ai/dataset/reddit.zip"
REDDIT = [Path("reddit/raw/reddit_data.npz"), Path("reddit/raw/reddit_graph.npz")]


def load_npz_graph(name: str, options: DataSource) -> Graph:
    """Loads a graph of goods bought together, or of authors who write together; it has no split.

    x is 0/1 float32 SciPy CSR `[N, F]` and never dense (Physics would take 1.2 GB): like PyG's `read_npz` it
    keeps which words occur, not how often. Source: Shchur et al., "Pitfalls of Graph Neural Network
    Evaluation", 2018.
    """
    (path,) = fetch_published(options, [Path(FILES[name])], lambda file: f"{URL}/{file}")
    # Physics also holds a pickled array of class names, which is not read.
    with reading(path, AGAIN), open_npz(path) as file:
        shape = shape_of(file["attr_shape"])
        x = build_compressed("csr", file["attr_data"], file["attr_indices"], file["attr_indptr"], shape)
        degrees = degrees_of(file["adj_indptr"], file["adj_indices"])
        edges = np.stack([np.repeat(np.arange(len(degrees), dtype=np.int32), degrees), file["adj_indices"]])
        y = file["labels"]
    x = x.astype(np.float32)
    x.sum_duplicates()
    x.eliminate_zeros()
    x.data[x.data > 0] = 1
    arrays = {"edge_index": edges, "x": x, "y": y}
    return graph_from_arrays(name, arrays, dict.fromkeys(arrays, str(path)))


def load_reddit(name: str, options: DataSource) -> Graph:
    """Loads 232965 posts joined by common commenters: 602 features, 41 classes, 115 million entries; split by date.

    x is float32 `[N, 602]`. Source: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large
    Graphs", NeurIPS 2017, as packed by DGL.
    """
    data, adjacency = fetch_published(options, REDDIT, lambda file: REDDIT_URL)
    with reading(data, AGAIN), open_npz(data) as file:
        x = compact(file["feature"])
        # `node_types` counts train, val, test from 1, as `shoal.storage.graph.graph` does.
        y, split = file["label"], file["node_types"]
    with reading(adjacency, AGAIN), open_npz(adjacency) as file:
        entries = matrix_of(file, len(x)).tocoo()
        edges = np.stack([entries.row, entries.col])
    where = {**dict.fromkeys(("x", "y", "split"), str(data)), "edge_index": str(adjacency)}
    return graph_from_arrays(name, {"edge_index": edges, "x": x, "y": y, "split": split}, where)


DATASETS = (
    *(DatasetSpec(name, load_npz_graph, [Path(file)]) for name, file in FILES.items()),
    DatasetSpec("reddit", load_reddit, REDDIT),
)
