"""Cora, CiteSeer and PubMed with their public split."""

from pathlib import Path

import numpy as np

from storage.datasets.download import published
from storage.datasets.features import compact
from storage.datasets.source import DataSource, data_root, reading
from storage.graph import TEST, TRAIN, UNASSIGNED, VAL, Graph, clean_edges

URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def paths(name: str) -> list[Path]:
    """The published files of a graph, below the data root."""
    return [Path("planetoid") / FOLDERS[name] / "raw" / f"ind.{name}.{part}" for part in PARTS]


def load_planetoid(name: str, options: DataSource) -> Graph:
    """A citation graph: words of papers (x, CSR if sparse), field of a paper (y), who cites whom (edges).

    PyG's reader parses `<data root>/planetoid/<name>/raw`; it drops loops and duplicates itself, so
    `cleaning` counts what was left to do. These files are pickles: use only ones you trust. Source: Yang,
    Cohen and Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016.

    Raises:
        ShoalError: A file is missing and cannot be downloaded, or is damaged.
    """
    files = paths(name)
    folder = data_root(options.root) / files[0].parent
    published(name, folder, [file.name for file in files], lambda file: f"{URL}/{file}")
    from torch_geometric.io import read_planetoid_data

    with reading(folder, f"replace the raw files of dataset '{name}'"):
        data = read_planetoid_data(str(folder), name)
    split = np.full(data.num_nodes, UNASSIGNED, dtype=np.int8)
    for mask, part in ((data.train_mask, TRAIN), (data.val_mask, VAL), (data.test_mask, TEST)):
        split[mask.numpy()] = part
    y = data.y.numpy()
    indptr, indices, cleaning = clean_edges(data.edge_index.numpy(), len(y), str(folder))
    return Graph(name, indptr, indices, compact(data.x.numpy()), y, int(y.max()) + 1, split=split, cleaning=cleaning)
