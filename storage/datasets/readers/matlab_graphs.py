"""Graphs in MATLAB files: papers of ACM and DBLP, and LINKX's larger heterophilous graphs of students and of users."""

from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, data_root, find_folder, reading
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

ARCHIVES_URL = "https://github.com/shenxiaocam/ACDNE/raw/master/ACDNE_codes/input"
ARCHIVES = {"acmv9": Path("acdne/acmv9.mat"), "dblpv7": Path("acdne/dblpv7.mat")}
LINKX_URL = "https://github.com/CUAI/Non-Homophily-Large-Scale/raw/master/data"
LINKX = {
    "penn94": "facebook100/Penn94.mat",
    "reed98": "facebook100/Reed98.mat",
    "amherst41": "facebook100/Amherst41.mat",
    "cornell5": "facebook100/Cornell5.mat",
    "johnshopkins55": "facebook100/Johns%20Hopkins55.mat",
    "genius": "genius.mat",
}
MATRICES = "data.mat"
# This column of a student's data is the gender; 0: it is not known.
GENDER = 1


def load_archive(name: str, options: DataSource) -> Graph:
    """Papers of one archive, their words (x), their area (y, of five), who cites whom; no split of its own.

    x is 0/1 float32 SciPy CSR `[N, 6775]`: the same words in both archives. Papers of two areas, and those of none, are
    dropped with their edges: `cleaning.nodes_dropped` counts them. Another cut of these archives (UDAGCN's) has 7,410
    and 5,578 papers of six areas. Source: Shen et al., "Adversarial Deep Network Embedding for Cross-Network Node
    Classification", AAAI 2020.
    """
    (path,) = fetch_published(options, [ARCHIVES[name]], lambda file: f"{ARCHIVES_URL}/{file}")
    with reading(path, AGAIN):
        arrays = scipy.io.loadmat(path)
        group, x = np.asarray(arrays["group"]), sp.csr_array(arrays["attrb"]).astype(np.float32)
        network = sp.coo_array(arrays["network"])
        if not len(group) == x.shape[0] == network.shape[0] == network.shape[1]:
            raise ValueError(f"{len(group)} labels, {x.shape[0]} rows of words, a graph of {network.shape[0]} papers")
        kept = np.flatnonzero((group != 0).sum(1) == 1)
        number = np.full(len(group), -1, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        edges = number[np.stack([network.row, network.col])]
        edges = edges[:, (edges >= 0).all(0)]
        y = (group[kept] != 0).argmax(1)
    arrays_of_graph = {"edge_index": edges, "x": x[kept], "y": y}
    graph = graph_from_arrays(name, arrays_of_graph, dict.fromkeys(arrays_of_graph, str(path)))
    return graph.without_nodes(len(group) - len(kept))


def folders(name: str) -> list[Path]:
    """Lists the folders below the data root in which a graph is looked for: as PyG has it, and in the collection's."""
    return [Path(top, name, "raw") for top in ("", "linkx")]


def linkx_path(options: DataSource) -> Path:
    """Returns the published file of a graph, below the data root."""
    return find_folder(data_root(options.root), folders(options.key), MATRICES) / MATRICES


def load_linkx(name: str, options: DataSource) -> Graph:
    """Students of a university on Facebook, or users of genius.com, without a split of their own.

    Students have their gender as label, -1 where it is not known, and 0/1 float32 SciPy CSR features: a column for
    every value of each of the six other things that are known of them. Users of Genius have twelve numbers, and are
    marked or not. Source: Lim et al., "Large Scale Learning on Non-Homophilous Graphs: New Benchmarks and Strong Simple
    Methods", NeurIPS 2021.
    """
    (path,) = fetch_published(
        options, [linkx_path(options)], lambda _: f"{LINKX_URL}/{LINKX[name]}", looked=folders(name)[1:]
    )
    with reading(path, AGAIN):
        file = scipy.io.loadmat(path)
        if name == "genius":
            arrays = {"edge_index": file["edge_index"], "x": file["node_feat"], "y": file["label"].reshape(-1)}
        else:
            arrays = _students(file)
    return graph_from_arrays(name, arrays, {key: f"{path} ({key})" for key in arrays})


def _students(file: dict[str, np.ndarray]) -> dict[str, object]:
    friends, info = sp.coo_array(file["A"]), file["local_info"].astype(np.int64)
    if not friends.shape[0] == friends.shape[1] == len(info):
        raise ValueError(f"{len(info)} students in a graph of {friends.shape[0]} by {friends.shape[1]}")
    others = np.delete(info, GENDER, axis=1)
    return {
        "edge_index": np.stack([friends.row, friends.col]),
        "x": sp.hstack([_one_hot(column) for column in others.T], format="csr"),
        "y": info[:, GENDER] - 1,
    }


def _one_hot(values: np.ndarray) -> sp.csr_array:
    """Makes a column for every value, in ascending order, float32 `[N, values]`."""
    distinct, columns = np.unique(values, return_inverse=True)
    ones = np.ones(len(values), dtype=np.float32)
    return sp.csr_array((ones, columns, np.arange(len(values) + 1)), shape=(len(values), len(distinct)))


DATASETS = (
    *(DatasetSpec(name, load_archive, [file]) for name, file in ARCHIVES.items()),
    *(DatasetSpec(name, load_linkx, lambda options: [linkx_path(options)]) for name in LINKX),
)
