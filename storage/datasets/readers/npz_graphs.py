"""Amazon co-purchase and Coauthor graphs: one .npz each that holds adjacency and features as CSR arrays."""

from pathlib import Path

import numpy as np

from shoal.storage.datasets.sources.dataset_spec import DatasetSpec
from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.files.bounded_npy import compressed, degrees_of, open_npz, shape_of
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

URL = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
FILES = {
    "computers": "amazon/Computers/raw/amazon_electronics_computers.npz",
    "photo": "amazon/Photo/raw/amazon_electronics_photo.npz",
    "cs": "coauthor/CS/raw/ms_academic_cs.npz",
    "physics": "coauthor/Physics/raw/ms_academic_phy.npz",
}


def load_npz_graph(name: str, options: DataSource) -> Graph:
    """A graph of goods bought together, or of authors who write together; no split of its own.

    x is 0/1 float32 SciPy CSR `[N, F]` and never dense (Physics would take 1.2 GB): like PyG's `read_npz` it
    keeps which words occur, not how often. Source: Shchur et al., "Pitfalls of Graph Neural Network
    Evaluation", 2018.

    Raises:
        ShoalError: The file is missing and cannot be downloaded, or is damaged or of wrong values.
    """
    path = data_root(options.root) / FILES[name]
    published(name, path.parent, [path.name], lambda file: f"{URL}/{file}")
    # Physics also holds a pickled array of class names, which is not read
    with reading(path, "delete it, and it is downloaded again"), open_npz(path) as file:
        shape = shape_of(file["attr_shape"])
        x = compressed("csr", file["attr_data"], file["attr_indices"], file["attr_indptr"], shape)
        degrees = degrees_of(file["adj_indptr"], file["adj_indices"])
        edges = np.stack([np.repeat(np.arange(len(degrees), dtype=np.int32), degrees), file["adj_indices"]])
        y = file["labels"]
    x = x.astype(np.float32)
    x.sum_duplicates()
    x.eliminate_zeros()
    x.data[x.data > 0] = 1
    return graph_from_arrays(
        name, {"edge_index": edges, "x": x, "y": y}, dict.fromkeys(("edge_index", "x", "y"), str(path))
    )


DATASETS = tuple(DatasetSpec(name, load_npz_graph, [Path(file)]) for name, file in FILES.items())
