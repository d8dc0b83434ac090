"""Web pages of three universities, and actors: small heterophilous graphs in the files of Geom-GCN."""

from pathlib import Path

import numpy as np

from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import open_npz
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

URL = "https://raw.githubusercontent.com/graphdml-uiuc-jlu/geom-gcn/master"
# What the files call each graph.
WORDS = {"cornell": "cornell", "texas": "texas", "wisconsin": "wisconsin", "actor": "film"}
NODES, EDGES = "out1_node_feature_label.txt", "out1_graph_edges.txt"
MASKS = {"train_mask": TRAIN, "val_mask": VAL, "test_mask": TEST}
ADVICE = "delete it, and it is downloaded again"


def paths(name: str) -> list[Path]:
    """The published files of a graph, below the data root."""
    return [Path(name) / "raw" / file for file in _files(name)]


def _files(name: str) -> list[str]:
    return [NODES, EDGES, f"{WORDS[name]}_split_0.6_0.2_0.npz"]


def load_geom_gcn(name: str, options: DataSource) -> Graph:
    """One of four graphs; its own split is the first of the ten that are published.

    Features of pages are words, given for each; those of actors are the numbers of the words that are there.

    Source: Pei et al., "Geom-GCN: Geometric Graph Convolutional Networks", ICLR 2020.

    Raises:
        ShoalError: A file is missing and cannot be downloaded, or is damaged or of wrong values.
    """
    nodes, edges, split = (data_root(options.root) / path for path in paths(name))
    word = WORDS[name]
    published(
        name,
        nodes.parent,
        _files(name),
        lambda file: f"{URL}/splits/{file}" if file == split.name else f"{URL}/new_data/{word}/{file}",
    )
    with reading(nodes, ADVICE):
        lines = [line.split("\t") for line in nodes.read_text().splitlines()[1:]]
        numbers = np.array([int(number) for number, _, _ in lines])
        if not np.array_equal(np.sort(numbers), np.arange(len(lines))):
            raise ValueError(f"nodes are not numbered from 0 to {len(lines) - 1}")
        values = [[int(value) for value in text.split(",")] for _, text, _ in lines]
        x = _listed(numbers, values) if name == "actor" else _given(numbers, values)
        y = np.empty(len(lines), dtype=np.int64)
        y[numbers] = [int(label) for _, _, label in lines]
    with reading(edges, ADVICE):
        pairs = [[int(end) for end in line.split("\t")] for line in edges.read_text().splitlines()[1:]]
        edge_index = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    where = {"edge_index": str(edges), "x": str(nodes), "y": str(nodes), "split": str(split)}
    arrays = {"edge_index": edge_index, "x": x, "y": y, "split": _split(split, len(lines))}
    return graph_from_arrays(name, arrays, where)


def _given(numbers: np.ndarray, values: list[list[int]]) -> np.ndarray:
    """Rows of as many numbers as there are words."""
    x = np.empty((len(values), len(values[0])), dtype=np.float32)
    x[numbers] = values
    return x


def _listed(numbers: np.ndarray, values: list[list[int]]) -> np.ndarray:
    """Ones in the columns of the words that are there."""
    rows = np.repeat(numbers, [len(words) for words in values])
    columns = np.concatenate([np.array(words) for words in values])
    x = np.zeros((len(values), int(columns.max()) + 1), dtype=np.float32)
    x[rows, columns] = 1
    return x


def _split(path: Path, nodes: int) -> np.ndarray:
    """Part of every node, int8 `[N]`."""
    split = np.full(nodes, UNASSIGNED, dtype=np.int8)
    with reading(path, ADVICE), open_npz(path) as file:
        masks = {key: np.asarray(file[key]).astype(bool) for key in MASKS}
    for key, mask in masks.items():
        if mask.shape != split.shape:
            raise ShoalError(f"{path} ({key}): must be truth values of {nodes} nodes, found {list(mask.shape)}")
        split[mask] = MASKS[key]
    return split
