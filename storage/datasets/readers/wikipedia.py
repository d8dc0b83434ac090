"""Pages of Wikipedia on one subject, joined by links, and how often they are visited: numbers to predict."""

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
from shoal.storage.options.target_names import REGRESSION

URL = "https://github.com/benedekrozemberczki/MUSAE/raw/master/input"
SUBJECTS = ("chameleon", "crocodile", "squirrel")


def paths(name: str) -> list[Path]:
    """Lists the published files of a graph, below the data root: edges, features, numbers."""
    return [Path("musae") / name / f"{name}_{part}" for part in ("edges.csv", "features.json", "target.csv")]


def load_wikipedia(name: str, options: DataSource) -> Graph:
    """Pages as nodes, links as edges; y is log10 of the mean monthly visits of a page; no split.

    x is 0/1 float32 SciPy CSR `[N, F]`: the nouns of a page, which are numbered subject by subject. These are not the
    graphs of five classes that were made of them (Pei et al., ICLR 2020). Source: Rozemberczki, Allen and Sarkar,
    "Multi-scale Attributed Node Embedding", 2021.
    """
    urls = {
        f"{name}_edges.csv": f"{URL}/edges/{name}_edges.csv",
        f"{name}_features.json": f"{URL}/features/{name}.json",
        f"{name}_target.csv": f"{URL}/target/{name}_target.csv",
    }
    edges_file, features_file, target_file = fetch_published(options, paths(name), urls.__getitem__)
    with reading(target_file, AGAIN), target_file.open(encoding="utf-8", newline="") as file:
        visits_of = {int(row["id"]): int(row["target"]) for row in csv.DictReader(file)}
        visits_N = np.array([visits_of[node] for node in range(len(visits_of))], dtype=np.float64)
        if not (visits_N > 0).all():
            raise ValueError("a page has no visits")
    with reading(features_file, AGAIN):
        x = _features(json.loads(features_file.read_text()), len(visits_N))
    with reading(edges_file, AGAIN):
        table = arrow_csv.read_csv(edges_file)
        edges = np.stack([column.to_numpy() for column in table.columns])
    where = {"edge_index": str(edges_file), "x": str(features_file), "y": str(target_file)}
    arrays = {"edge_index": edges, "x": x, "y": np.log10(visits_N)}
    return graph_from_arrays(name, arrays, where, target=REGRESSION)


def _features(columns_of: dict[str, list[int]], nodes: int) -> sp.csr_array:
    rows = [sorted(set(columns_of[str(node)])) for node in range(nodes)]
    if len(columns_of) > nodes:
        raise ValueError(f"names a page beyond the {nodes} of the graph")
    columns = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
    indptr = np.cumsum([0, *map(len, rows)])
    return sp.csr_array((np.ones(len(columns), np.float32), columns, indptr), shape=(nodes, int(columns.max()) + 1))


DATASETS = tuple(DatasetSpec(name, load_wikipedia, paths(name), target=REGRESSION) for name in SUBJECTS)
