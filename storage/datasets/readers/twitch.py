"""Twitch: people who stream in one language, joined by friendship; one feature space and one question for all."""

import csv
import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from pyarrow import csv as arrow_csv

from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, reading
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

URL = "https://github.com/benedekrozemberczki/MUSAE/raw/master/input"
CODES = {
    "twitch-de": "DE",
    "twitch-en": "ENGB",
    "twitch-es": "ES",
    "twitch-fr": "FR",
    "twitch-pt": "PTBR",
    "twitch-ru": "RU",
    "twitch-tw": "ZHTW",
}
# Games and habits are numbered the same in all languages; in some of these no node has the last.
FEATURES = 3170
LABELS = {"False": 0, "True": 1}


def paths(name: str) -> list[Path]:
    """Lists the published files of a graph, below the data root: edges, features, labels."""
    code = CODES[name]
    return [Path("musae/twitch") / code / f"{code}_{part}" for part in ("edges.csv", "features.json", "target.csv")]


def load_twitch(name: str, options: DataSource) -> Graph:
    """Streamers of one language, whether their streams are for adults (y, 0 or 1), who is a friend of whom; no split.

    x is 0/1 float32 SciPy CSR `[N, 3170]`: the games someone plays, where they live and how they stream. Nodes are the
    distinct `new_id`s; PyG's class has 128 columns that were derived from these. Source: Rozemberczki, Allen and
    Sarkar, "Multi-scale Attributed Node Embedding", 2021.
    """
    code = CODES[name]
    urls = {
        f"{code}_edges.csv": f"{URL}/edges/{code}_edges.csv",
        f"{code}_features.json": f"{URL}/features/{code}.json",
        f"{code}_target.csv": f"{URL}/target/{code}_target.csv",
    }
    edges_file, features_file, target_file = fetch_published(options, paths(name), urls.__getitem__)
    with reading(target_file, AGAIN):
        y = _labels(target_file)
    with reading(features_file, AGAIN):
        x = _features(features_file, len(y))
    with reading(edges_file, AGAIN):
        table = arrow_csv.read_csv(edges_file)
        edges = np.stack([column.to_numpy() for column in table.columns])
    where = {"edge_index": str(edges_file), "x": str(features_file), "y": str(target_file)}
    return graph_from_arrays(name, {"edge_index": edges, "x": x, "y": y}, where)


def _labels(path: Path) -> np.ndarray:
    """Reads the label of every node, by `new_id`; an id that is there twice must have the same both times."""
    label_of: dict[int, int] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            node, label = int(row["new_id"]), LABELS[row["mature"]]
            if label_of.setdefault(node, label) != label:
                raise ValueError(f"new_id {node} has two labels")
    if sorted(label_of) != list(range(len(label_of))):
        raise ValueError(f"the {len(label_of)} ids do not count from 0")
    return np.array([label_of[node] for node in range(len(label_of))], dtype=np.int64)


def _features(path: Path, nodes: int) -> sp.csr_array:
    columns_of = json.loads(path.read_text())
    rows = [np.array(columns_of.get(str(node), []), dtype=np.int64) for node in range(nodes)]
    if len(columns_of) > nodes or not columns_of.keys() <= set(map(str, range(nodes))):
        raise ValueError(f"names a node beyond the {nodes} of the graph")
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    columns = np.concatenate(rows)
    if len(columns) and not 0 <= columns.min() <= columns.max() < FEATURES:
        raise ValueError(f"names a feature beyond the {FEATURES} of all languages")
    x = sp.csr_array((np.ones(len(columns), dtype=np.float32), columns, indptr), shape=(nodes, FEATURES))
    # A game that is named twice counts once.
    x.sum_duplicates()
    x.data[:] = 1
    return x


DATASETS = tuple(DatasetSpec(name, load_twitch, paths(name)) for name in CODES)
