"""Datasets of many small graphs, each with one label, as the TU collection publishes them."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from pyarrow import csv as arrow_csv

from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, data_root, reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import MOST_OF_A_BYTE, require_free
from shoal.storage.files.reading import open_plain
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

# Bytes of memory for each byte of a text: the text twice, and a number of eight bytes for every two.
OF_A_BYTE = 6


def read_dgcnn_text(path: Path, member: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads edges int64 `[2, E]`, the graph of every node int64 `[N]`, and the label of every graph int64 `[G]`.

    The text is numbers: how many graphs; of each how many nodes, and its label; of each node a tag, which is left, how
    many neighbours, and these, counted from 0 in their graph. Source: Zhang et al., "An End-to-End Deep Learning
    Architecture for Graph Classification", AAAI 2018. A ValueError says that the text is not of this form, a
    MemoryError that it is larger than the free memory; a damaged .zip raises what `zipfile` does.
    """
    with open_plain(path) as file, zipfile.ZipFile(file) as archive:
        info = archive.getinfo(member)
        if info.file_size > MOST_OF_A_BYTE * (info.compress_size + 1):
            raise ValueError(f"{member}: {info.file_size} bytes cannot come from {info.compress_size}")
        require_free(OF_A_BYTE * info.file_size)
        text = archive.read(member)
    if text.translate(None, b"-0123456789 \t\r\n"):
        raise ValueError(f"{member}: more than whole numbers")
    return _graphs_in(np.fromstring(text.decode(), dtype=np.int64, sep=" "), member)


def _graphs_in(numbers: np.ndarray, member: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads the graphs of `read_dgcnn_text` from all numbers of a text."""
    sizes, labels, degrees, near, at = [], [], [], [], 1
    try:
        for _ in range(numbers[0]):
            sizes.append(numbers[at])
            labels.append(numbers[at + 1])
            at += 2
            for _ in range(sizes[-1]):
                degrees.append(numbers[at + 1])
                at += 2
                near.append(numbers[at : at + degrees[-1]])
                at += max(degrees[-1], 0)
    except IndexError:
        at = -1
    if at != len(numbers) or min(sizes, default=numbers[0] + 1) < 1 or min(degrees, default=0) < 0:
        raise ValueError(f"{member}: ends before its last graph, or goes on after it")
    graph = np.repeat(np.arange(len(sizes)), sizes)
    node = np.repeat(np.arange(len(near)), degrees)
    other, size = np.concatenate(near, dtype=np.int64), np.array(sizes, dtype=np.int64)
    if (other < 0).any() or (other >= size[graph[node]]).any():
        raise ValueError(f"{member}: a neighbour is no node of its graph")
    first = np.cumsum(size) - size
    return np.stack([node, first[graph[node]] + other]), graph, np.array(labels, dtype=np.int64)


URL = "https://www.chrsmrrs.com/graphkerneldatasets"
NAMES = {"nci1": "NCI1", "proteins": "PROTEINS", "imdb-binary": "IMDB-BINARY", "collab": "COLLAB"}
EDGES, GRAPHS, LABELS = "A", "graph_indicator", "graph_labels"
# Files with labels and attributes of nodes.
OF_NODE, ATTRIBUTES = "node_labels", "node_attributes"
OF_NODES = {"nci1": (OF_NODE,), "proteins": (OF_NODE, ATTRIBUTES)}
MOST_LABELS = 1 << 16


def paths(options: DataSource) -> list[Path]:
    """Lists the published files of a dataset below the data root; the text of DGCNN's authors if only that is there."""
    name, root = options.key, data_root(options.root)
    theirs = NAMES[name]
    folder = Path("tu") / theirs / "raw"
    files = [folder / f"{theirs}_{part}.txt" for part in (EDGES, GRAPHS, LABELS, *OF_NODES.get(name, ()))]
    text = Path("tu_text") / f"{theirs}.zip"
    return [text] if not (root / files[0]).is_file() and (root / text).is_file() else files


def _option(name: str) -> str | None:
    """Names the option that changes a dataset, if there is one."""
    if name not in OF_NODES:
        return "degree_cap"
    return "node_attributes" if len(OF_NODES[name]) > 1 else None


def _content(options: DataSource) -> dict[str, Any]:
    """Returns the option that changes a dataset, where it is set."""
    option = _option(options.key)
    return {option: getattr(options, option)} if option and getattr(options, option) else {}


def load_tu(name: str, options: DataSource) -> Graph:
    """Loads graphs with one label each: molecules (nci1), proteins, circles of actors (imdb-binary), authors (collab).

    x are the labels of nodes, one-hot, as in PyG's TUDataset, and before them with `options.node_attributes` their
    measured attributes; where nodes have neither, their degrees, one-hot. Columns have names, by which datasets are
    joined: labels of nodes of two datasets are not the same, degrees are. Source: Morris et al., "TUDataset: A
    Collection of Benchmark Datasets for Learning with Graphs", 2020.
    """
    files = paths(options)
    if files[0].suffix == ".zip":
        text = data_root(options.root) / files[0]
        with reading(text, "put the file back as it was published"):
            edges, graph, y = read_dgcnn_text(text, f"{NAMES[name]}/{NAMES[name]}.txt")
        arrays = {"edge_index": edges, "graph": graph, "y": y}
        return _graph(name, options, arrays, {}, dict.fromkeys((EDGES, GRAPHS, LABELS), str(text)))
    paths_of = fetch_published(options, files, lambda file: f"{URL}/{NAMES[name]}.zip")
    where = {file.stem.removeprefix(f"{NAMES[name]}_"): str(file) for file in paths_of}
    columns: dict[str, np.ndarray] = {}
    for part, file in where.items():
        with reading(file, AGAIN):
            columns[part] = _columns(file, whole=part != ATTRIBUTES)
    arrays = {"edge_index": columns.pop(EDGES).T - 1, "graph": columns.pop(GRAPHS)[:, 0] - 1}
    arrays["y"] = columns.pop(LABELS)[:, 0]
    return _graph(name, options, arrays, columns, where)


def _graph(
    name: str, options: DataSource, arrays: dict[str, Any], of_nodes: dict[str, np.ndarray], where: dict[str, str]
) -> Graph:
    """Makes the clean graph: with what is known of nodes, or, where that is nothing, their degrees up to a cap."""
    for part, rows in of_nodes.items():
        if len(rows) != len(arrays["graph"]):
            raise ShoalError(where[part], f"{len(rows)} rows for {len(arrays['graph'])} nodes; {AGAIN}")
    parts = [_one_hot(of_nodes[OF_NODE], f"{name} label")] if of_nodes else []
    if options.node_attributes and ATTRIBUTES in of_nodes:
        attributes = of_nodes[ATTRIBUTES]
        parts.insert(0, (sp.csr_array(attributes), [f"{name} attribute {k}" for k in range(attributes.shape[1])]))
    arrays["y"] = np.unique(arrays["y"], return_inverse=True)[1]
    if parts:
        arrays["x"] = sp.hstack([x for x, _ in parts], format="csr", dtype=np.float32)
        arrays["vocabulary"] = np.array([column for _, names in parts for column in names])
    else:
        arrays["x"] = sp.csr_array((len(arrays["graph"]), 1), dtype=np.float32)
    places = {"edge_index": where[EDGES], "graph": where[GRAPHS], "y": where[LABELS]}
    made = graph_from_arrays(name, arrays, {**dict.fromkeys(arrays, name), **places})
    if parts:
        return made
    degree, cap = np.diff(made.indptr), options.degree_cap
    highest = int(degree.max(initial=0)) if cap is None else cap
    names = np.array([f"degree {k}" for k in range(highest + 1)])
    return replace(made, x=_ones(np.minimum(degree, highest), highest + 1), vocabulary=names)


def _one_hot(labels: np.ndarray, what: str) -> tuple[sp.csr_array, list[str]]:
    """Makes every column of labels `[N, L]` one-hot from its lowest to its highest, and names the columns."""
    blocks, names = [], []
    for number, column in enumerate(labels.T):
        low, high = int(column.min()), int(column.max())
        if high - low >= MOST_LABELS:
            raise ShoalError(what, f"one-hot labels are fewer than {MOST_LABELS}, found {low} to {high}")
        blocks.append(_ones(column - low, high - low + 1))
        names += [f"{what} {number}.{k}" for k in range(low, high + 1)]
    return sp.hstack(blocks, format="csr", dtype=np.float32), names


def _ones(column: np.ndarray, width: int) -> sp.csr_array:
    """Puts a one into the given column of every row, float32 `[N, width]`."""
    rows = len(column)
    return sp.csr_array((np.ones(rows, np.float32), column, np.arange(rows + 1)), shape=(rows, width))


def _columns(path: str, whole: bool) -> np.ndarray:
    """Reads numbers, a row a line, separated by commas: int64 `[lines, columns]`, or, where not `whole`, float32."""
    table = arrow_csv.read_csv(path, arrow_csv.ReadOptions(autogenerate_column_names=True))
    numbers = np.stack([column.to_numpy() for column in table.columns], axis=1)
    if numbers.dtype.kind not in ("i" if whole else "if"):
        raise ValueError(f"its lines are no {'whole ' if whole else ''}numbers")
    return numbers if whole else numbers.astype(np.float32)


DATASETS = tuple(
    DatasetSpec(name, load_tu, paths, "graph", content=_content, options=tuple(filter(None, [_option(name)])))
    for name in NAMES
)
