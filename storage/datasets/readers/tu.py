"""Datasets of many small graphs, each with one label or numbers, as the TU collection publishes them."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from pyarrow import csv as arrow_csv

from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, data_root, find_folder, reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import MOST_OF_A_BYTE, require_free
from shoal.storage.files.reading import open_plain
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.dataset_names import TU
from shoal.storage.options.target_names import CLASSIFICATION, REGRESSION

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
# Numbers of every graph, for `target: regression`; labels and attributes of edges.
NUMBERS, OF_EDGES = "graph_attributes", ("edge_labels", "edge_attributes")
MOST_LABELS = 1 << 16
# The folders of the collection below the data root, ours and that of PyG's class; the root itself is the last.
COLLECTION = ("tu", "tudataset", "TUDataset", "")


def _title(options: DataSource) -> str:
    """Returns the name that TU has for a dataset, and for its files."""
    return NAMES.get(options.key, options.key.removeprefix(TU))


def folders(options: DataSource) -> list[Path]:
    """Lists the folders below the data root in which files of a dataset are looked for, as PyG or TU lay them out."""
    title = _title(options)
    return [Path(top, title, inner) for top in COLLECTION for inner in ("raw", "")]


def paths(options: DataSource) -> list[Path]:
    """Lists the published files of a dataset below the data root; the text of DGCNN's authors if only that is there."""
    title, root = _title(options), data_root(options.root)
    folder = find_folder(root, folders(options), f"{title}_{EDGES}.txt")
    of_nodes = OF_NODES.get(options.key, ())
    if options.key not in NAMES:
        # Only the files tell what is known of nodes.
        of_nodes = tuple(part for part in (OF_NODE, ATTRIBUTES) if (root / folder / f"{title}_{part}.txt").is_file())
    of_graphs = NUMBERS if options.target == REGRESSION else LABELS
    reads_edges = options.key not in NAMES and options.edge_features == "keep"
    of_edges = [part for part in OF_EDGES if reads_edges and (root / folder / f"{title}_{part}.txt").is_file()]
    files = [folder / f"{title}_{part}.txt" for part in (EDGES, GRAPHS, of_graphs, *of_nodes, *of_edges)]
    text = Path("tu_text") / f"{title}.zip"
    return [text] if not (root / files[0]).is_file() and (root / text).is_file() else files


def _options(name: str) -> tuple[str, ...]:
    """Names the options that may change a dataset."""
    if name not in NAMES:
        return ("node_attributes", "degree_cap")
    if name not in OF_NODES:
        return ("degree_cap",)
    return ("node_attributes",) if len(OF_NODES[name]) > 1 else ()


def _content(options: DataSource) -> dict[str, Any]:
    """Returns the options that change a dataset, where they are set."""
    changed = {option: value for option in _options(options.key) if (value := getattr(options, option))}
    drops = options.key not in NAMES and options.edge_features == "drop"
    return changed | ({"edge_features": "drop"} if drops else {})


def load_tu(name: str, options: DataSource) -> Graph:
    """Loads graphs with one label each: molecules (nci1), proteins, circles of actors (imdb-binary), authors (collab);
    or any other dataset of the collection, `tu:MUTAG`, with numbers of graphs where `options.target` is `regression`.

    x are the labels of nodes, one-hot, as in PyG's TUDataset, and before them with `options.node_attributes`, or where
    there are no labels, their measured attributes; where nodes have neither, their degrees, one-hot. Labels of edges,
    one-hot, and their attributes are features of edges. Columns have names, by which datasets are joined: labels of
    nodes of two datasets are not the same, degrees are. Source: Morris et al., "TUDataset: A Collection of Benchmark
    Datasets for Learning with Graphs", 2020.
    """
    files, title, name = paths(options), _title(options), options.name
    if files[0].suffix == ".zip":
        text = data_root(options.root) / files[0]
        with reading(text, "put the file back as it was published"):
            edges, graph, y = read_dgcnn_text(text, f"{title}/{title}.txt")
        arrays = {"edge_index": edges, "graph": graph, "y": y}
        return _graph(name, options, arrays, {}, dict.fromkeys((EDGES, GRAPHS, LABELS), str(text)))
    others = [folder for folder in folders(options) if folder != files[0].parent]
    fetch_published(
        options, files, lambda file: f"{URL}/{title}.zip", looked=others, archives=[top for top in COLLECTION if top]
    )
    root = data_root(options.root)
    where = {file.stem.removeprefix(f"{title}_"): str(root / file) for file in paths(options)}
    columns: dict[str, np.ndarray] = {}
    for part, file in where.items():
        with reading(file, AGAIN):
            columns[part] = _columns(file, whole=part not in (ATTRIBUTES, NUMBERS, OF_EDGES[1]))
    arrays = {"edge_index": columns.pop(EDGES).T - 1, "graph": columns.pop(GRAPHS)[:, 0] - 1}
    arrays["y"] = columns.pop(NUMBERS) if options.target == REGRESSION else columns.pop(LABELS)[:, 0]
    of_edges = {part: columns.pop(part) for part in OF_EDGES if part in columns}
    arrays |= _edge_attr(name, of_edges, arrays["edge_index"].shape[1], where)
    return _graph(name, options, arrays, columns, where)


def _edge_attr(name: str, of_edges: dict[str, np.ndarray], edges: int, where: dict[str, str]) -> dict[str, Any]:
    """Makes `edge_attr` of the labels of edges, one-hot, and their attributes, and its names; empty: there are none."""
    parts, names = [], list[str]()
    for part, rows in of_edges.items():
        if len(rows) != edges:
            raise ShoalError(where[part], f"{len(rows)} rows for {edges} edges; {AGAIN}")
        if part == OF_EDGES[0]:
            one_hot, named = _one_hot(rows, f"{name} edge label")
            parts.append(one_hot.toarray())
        else:
            named = [f"{name} edge attribute {k}" for k in range(rows.shape[1])]
            parts.append(rows)
        names += named
    return {"edge_attr": np.concatenate(parts, axis=1), "edge_names": np.array(names)} if parts else {}


def _graph(
    name: str, options: DataSource, arrays: dict[str, Any], of_nodes: dict[str, np.ndarray], where: dict[str, str]
) -> Graph:
    """Makes the clean graph: with what is known of nodes, or, where that is nothing, their degrees up to a cap."""
    for part, rows in of_nodes.items():
        if len(rows) != len(arrays["graph"]):
            raise ShoalError(where[part], f"{len(rows)} rows for {len(arrays['graph'])} nodes; {AGAIN}")
    parts = [_one_hot(of_nodes[OF_NODE], f"{name} label")] if OF_NODE in of_nodes else []
    if ATTRIBUTES in of_nodes and (options.node_attributes or not parts):
        attributes = of_nodes[ATTRIBUTES]
        parts.insert(0, (sp.csr_array(attributes), [f"{name} attribute {k}" for k in range(attributes.shape[1])]))
    if options.target != REGRESSION:
        arrays["y"] = np.unique(arrays["y"], return_inverse=True)[1]
    if parts:
        arrays["x"] = sp.hstack([x for x, _ in parts], format="csr", dtype=np.float32)
        arrays["vocabulary"] = np.array([column for _, names in parts for column in names])
    else:
        arrays["x"] = sp.csr_array((len(arrays["graph"]), 1), dtype=np.float32)
    places = {"edge_index": where[EDGES], "graph": where[GRAPHS], "y": where.get(LABELS) or where[NUMBERS]}
    made = graph_from_arrays(name, arrays, {**dict.fromkeys(arrays, name), **places}, target=options.target)
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


DATASETS = tuple(DatasetSpec(name, load_tu, paths, "graph", content=_content, options=_options(name)) for name in NAMES)


def describe_any(options: DataSource) -> DatasetSpec:
    """Makes the record of any dataset of the collection, `tu:NAME`; its files tell whether it has what is asked for."""
    target = REGRESSION if options.target == REGRESSION else CLASSIFICATION
    return DatasetSpec(
        options.key, load_tu, paths, "graph", content=_content, options=_options(options.key), target=target
    )
