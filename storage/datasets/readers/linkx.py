"""Students of five universities on Facebook, and users of genius.com: larger heterophilous graphs, in LINKX's files."""

from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

from shoal.storage.datasets.sources.dataset_spec import DatasetSpec
from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

URL = "https://github.com/CUAI/Non-Homophily-Large-Scale/raw/master/data"
FILES = {
    "penn94": "facebook100/Penn94.mat",
    "reed98": "facebook100/Reed98.mat",
    "amherst41": "facebook100/Amherst41.mat",
    "cornell5": "facebook100/Cornell5.mat",
    "johnshopkins55": "facebook100/Johns%20Hopkins55.mat",
    "genius": "genius.mat",
}
# Of what is known of a student; 0: it is not.
GENDER = 1


def path_of(name: str) -> Path:
    """The published file of a graph, below the data root."""
    return Path(name) / "raw" / "data.mat"


def load_linkx(name: str, options: DataSource) -> Graph:
    """One of six graphs, without a split of its own.

    Students have their gender as label, -1 where it is not known, and 0/1 float32 SciPy CSR features: a column for
    every value of each of the six other things that are known of them. Users of Genius have twelve numbers, and are
    marked or not.

    Source: Lim et al., "Large Scale Learning on Non-Homophilous Graphs: New Benchmarks and Strong Simple Methods",
    NeurIPS 2021.

    Raises:
        ShoalError: The file is missing and cannot be downloaded, or is damaged or of wrong values.
    """
    path = data_root(options.root) / path_of(name)
    published(name, path.parent, [path.name], lambda _: f"{URL}/{FILES[name]}")
    with reading(path, "delete it, and it is downloaded again"):
        file = scipy.io.loadmat(path)
        arrays = _users(file) if name == "genius" else _students(file)
    return graph_from_arrays(name, arrays, {key: f"{path} ({key})" for key in arrays})


def _users(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"edge_index": file["edge_index"], "x": file["node_feat"], "y": file["label"].reshape(-1)}


def _students(file: dict[str, np.ndarray]) -> dict[str, object]:
    friends, known = sp.coo_array(file["A"]), file["local_info"].astype(np.int64)
    if not friends.shape[0] == friends.shape[1] == len(known):
        raise ValueError(f"{len(known)} students in a graph of {friends.shape[0]} by {friends.shape[1]}")
    others = np.delete(known, GENDER, axis=1)
    return {
        "edge_index": np.stack([friends.row, friends.col]),
        "x": sp.hstack([_one_hot(column) for column in others.T], format="csr"),
        "y": known[:, GENDER] - 1,
    }


def _one_hot(values: np.ndarray) -> sp.csr_array:
    """A column for every value, in ascending order, float32 `[N, values]`."""
    found, columns = np.unique(values, return_inverse=True)
    ones = np.ones(len(values), dtype=np.float32)
    return sp.csr_array((ones, columns, np.arange(len(values) + 1)), shape=(len(values), len(found)))


DATASETS = tuple(DatasetSpec(name, load_linkx, [path_of(name)]) for name in FILES)
