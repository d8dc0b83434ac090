"""ACM and DBLP with their kinds of nodes and edges, in the files of HeCo."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.kinds import NodeKind, Relation, join_kinds, values_of_kind
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import load_npy, matrix_of, open_npz
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

URL = "https://github.com/liun-online/HeCo/raw/main/data"
# Labelled nodes of a class that train, in the published split that is read.
A_CLASS = 60
PARTS = {TRAIN: f"train_{A_CLASS}.npy", VAL: f"val_{A_CLASS}.npy", TEST: f"test_{A_CLASS}.npy"}
LABELS = "labels.npy"


@dataclass(frozen=True)
class _Network:
    """Kinds of nodes by the letters of files, how many there are, those with features, and whose labels are known."""

    kinds: Mapping[str, tuple[str, int]]
    features: str
    labelled: str
    relations: Mapping[str, str]


NETWORKS = {
    "heco-acm": _Network(
        {"p": ("paper", 4019), "a": ("author", 7167), "s": ("subject", 60)}, "pa", "p", {"pa": "by", "ps": "about"}
    ),
    "heco-dblp": _Network(
        {"p": ("paper", 14328), "a": ("author", 4057), "c": ("venue", 20), "t": ("term", 7723)},
        "pa",
        "a",
        {"pa": "by", "pc": "at", "pt": "with"},
    ),
}


def paths(name: str, options: DataSource) -> list[Path]:
    """Lists the published files, below the data root."""
    folder, network = Path(name.replace("-", "/")), NETWORKS[name]
    features = [f"{letter}_feat.npz" for letter in network.features]
    edges = [f"{letters}.txt" for letters in network.relations]
    return [folder / file for file in (LABELS, *PARTS.values(), *features, *edges)]


def load_heco(name: str, options: DataSource) -> Graph:
    """Papers, authors and subjects (ACM), or papers, authors, venues and terms (DBLP), as one graph of kinds.

    Papers of ACM have one of 3 areas, authors of DBLP one of 4. The split is the published one with 60 labelled nodes a
    class. Kinds are joined by `join_kinds`. Source: Wang et al., "Self-supervised Heterogeneous Graph Neural Network
    with Co-contrastive Learning", KDD 2021.
    """
    wanted = paths(name, options)
    files = dict(zip((path.name for path in wanted), fetch_published(options, wanted, partial(_url, name))))
    network = NETWORKS[name]
    kinds: dict[str, NodeKind] = {}
    for letter, (kind, nodes) in network.kinds.items():
        x = None
        if letter in network.features:
            file = files[f"{letter}_feat.npz"]
            with reading(file, AGAIN), open_npz(file) as npz:
                x = sp.csr_array(matrix_of(npz, nodes).tocsr(), dtype=np.float32)
            if x.shape[0] != nodes:
                raise ShoalError(file, f"expected {nodes} rows, got {x.shape[0]}; {AGAIN}")
        kinds[kind] = NodeKind(nodes, x)
    relations: dict[Relation, np.ndarray] = {}
    for letters, called in network.relations.items():
        source, target = (network.kinds[letter][0] for letter in letters)
        with reading(files[f"{letters}.txt"], AGAIN):
            relations[source, called, target] = np.loadtxt(files[f"{letters}.txt"], dtype=np.int64, ndmin=2).T
    places = {relation: files[f"{letters}.txt"] for relation, letters in zip(relations, network.relations)}
    arrays = join_kinds(kinds, relations, places)
    labelled, count = network.kinds[network.labelled]
    with reading(files[LABELS], AGAIN):
        label = load_npy(files[LABELS]).astype(np.int64)
    if label.shape != (count,):
        raise ShoalError(files[LABELS], f"expected {count} labels, got {list(label.shape)}; {AGAIN}")
    split = np.zeros(count, dtype=np.int8)
    for part, called in PARTS.items():
        with reading(files[called], AGAIN):
            split[load_npy(files[called])] = part
    arrays["y"] = values_of_kind(label, labelled, kinds, -1, files[LABELS])
    arrays["split"] = values_of_kind(split, labelled, kinds, 0, files[LABELS])
    if options.edge_features == "drop":
        del arrays["edge_attr"], arrays["edge_names"]
    return graph_from_arrays(name, arrays, {**dict.fromkeys(arrays, name), "y": str(files[LABELS])})


def _url(name: str, file: str) -> str:
    return f"{URL}/{name.removeprefix('heco-')}/{file}"


DATASETS = tuple(
    DatasetSpec(
        name,
        load_heco,
        partial(paths, name),
        classes=lambda options: 3 if options.dataset.lower() == "heco-acm" else 4,
        content=lambda options: {} if options.edge_features == "keep" else {"edge_features": "drop"},
    )
    for name in NETWORKS
)
