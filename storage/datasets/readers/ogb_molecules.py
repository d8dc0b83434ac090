"""Molecules of the Open Graph Benchmark: graphs with a class, a number or several labels, as published.

Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020, after MoleculeNet (Wu et al.,
Chem. Sci. 2018).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from shoal.storage.datasets.sources.atoms import (
    ATOM_FEATURES,
    BOND_FEATURES,
    bond_names,
    column_names,
    one_hot,
    one_hot_bonds,
)
from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import AGAIN, DatasetSpec, DataSource, data_root, find_folder
from shoal.storage.datasets.sources.streams import column_count, csv_blocks
from shoal.storage.errors import ShoalError
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL
from shoal.storage.options.target_names import CLASSIFICATION, MULTILABEL, REGRESSION

URL = "https://snap.stanford.edu/ogb/data/graphproppred/csv_mol_download"
# Names of datasets, and of their archives, the .zip of which has one folder.
ARCHIVES = {f"ogbg-mol{archive}": archive for archive in ("hiv", "bace", "bbbp")}
# The same of molecules with a number, and of those with so many labels.
OF_NUMBERS = {"ogbg-molesol": "esol", "ogbg-molfreesolv": "freesolv", "ogbg-mollipo": "lipophilicity"}
LABELS_OF = {"sider": 27, "tox21": 12, "toxcast": 617, "clintox": 2, "muv": 17, "pcba": 128, "chembl": 1310}
OF_LABELS = {f"ogbg-mol{archive}": archive for archive in LABELS_OF}
EDGES, ATOMS, LABELS = "edge", "node-feat", "graph-label"
BONDS = "edge-feat"
ATOM_COUNTS, BOND_COUNTS = "num-node-list", "num-edge-list"
RAW = (EDGES, ATOMS, LABELS, ATOM_COUNTS, BOND_COUNTS)
SPLIT = {TRAIN: "train", VAL: "valid", TEST: "test"}
CLASSES = 2
BLOCK_BYTES = 1 << 24
MOST = 1 << 31


def folders(name: str) -> list[Path]:
    """Lists the folders below the data root in which a dataset is looked for, as OGB's library calls them."""
    folder = name.replace("-", "_")
    return [Path(folder), Path("ogb", folder)]


def paths(options: DataSource) -> list[Path]:
    """Lists the published files that are read of a dataset, below the data root."""
    folder = find_folder(data_root(options.root), folders(options.key), "raw")
    raw = [folder / "raw" / f"{part}.csv.gz" for part in _raw(options)]
    return raw + [folder / "split/scaffold" / f"{part}.csv.gz" for part in SPLIT.values()]


def _raw(options: DataSource) -> tuple[str, ...]:
    return (*RAW, BONDS) if options.edge_features == "keep" else RAW


def load_ogb_molecules(name: str, options: DataSource) -> Graph:
    """Molecules with one class: against HIV (molhiv), BACE-1 (molbace), through the blood-brain barrier (molbbbp); with
    a number, as their solubility (molesol), or with several labels, some of which are missing (moltox21).

    x is what is known of an atom, one-hot feature by feature, sparse float32 `[N, 174]`: a linear map of it is the sum
    of embeddings of OGB's AtomEncoder. Columns have names, by which these datasets are joined. Bonds are edges both
    ways, published one way, and what is known of them (type, stereo, conjugation) is one-hot, too, `[E, 13]`. The split
    is the published one, by scaffolds.
    """
    archive = {**ARCHIVES, **OF_NUMBERS, **OF_LABELS}[name]
    published, named = paths(options), _raw(options)
    folder = published[0].parent.parent
    looked = [other for other in folders(name) if other != folder]
    files = fetch_published(options, published, lambda file: f"{URL}/{archive}.zip", folder, looked, ["ogb"])
    raw, parts = dict(zip(named, files)), dict(zip(SPLIT, files[len(named) :]))
    atoms = _table(raw[ATOMS], np.int64, len(ATOM_FEATURES), "the features of an atom")
    pairs = _table(raw[EDGES], np.int64, 2, "the ends of a bond")
    target = REGRESSION if name in OF_NUMBERS else MULTILABEL if name in OF_LABELS else CLASSIFICATION
    if target == CLASSIFICATION:
        y = _labels(raw[LABELS])
    else:
        y = _table(raw[LABELS], np.float64, LABELS_OF.get(archive, 1), "the labels of a graph")
    sizes = _counts(raw[ATOM_COUNTS], 1, len(y), len(atoms), ATOMS)
    bonds = _counts(raw[BOND_COUNTS], 0, len(y), len(pairs), EDGES)
    graph_of = np.repeat(np.arange(len(y)), sizes)
    arrays = {
        "edge_index": _joined_ends(pairs, np.repeat(np.arange(len(y)), bonds), sizes, raw[EDGES]).T,
        "x": one_hot(_in_bounds(atoms, raw[ATOMS], ATOM_FEATURES)),
        "y": y,
        "graph": graph_of,
        "split": _codes(parts, len(y)),
        "vocabulary": column_names(),
    }
    if BONDS in raw:
        codes = _table(raw[BONDS], np.int64, len(BOND_FEATURES), "the features of a bond")
        if len(codes) != len(pairs):
            raise ShoalError(raw[BONDS], f"{len(codes)} rows, and {EDGES}.csv.gz has {len(pairs)}; {AGAIN}")
        arrays |= {"edge_attr": one_hot_bonds(_in_bounds(codes, raw[BONDS], BOND_FEATURES)), "edge_names": bond_names()}
    where = {"edge_index": str(raw[EDGES]), "x": str(raw[ATOMS]), "y": str(raw[LABELS]), "graph": str(raw[ATOM_COUNTS])}
    made = graph_from_arrays(name, arrays, {**dict.fromkeys(arrays, name), **where}, target=target)
    return made if target != CLASSIFICATION else replace(made, classes=CLASSES)


def _table(path: Path, dtype: type, columns: int, what: str) -> np.ndarray:
    """Reads all rows of a file, `[lines, columns]`."""
    fields = column_count(path, AGAIN)
    if fields != columns:
        raise ShoalError(path, f"a line must have {columns} fields, {what}, found {fields}; {AGAIN}")
    return np.concatenate(list(csv_blocks(path, dtype, BLOCK_BYTES, AGAIN)))


def _labels(path: Path) -> np.ndarray:
    """Reads the label of every graph, int64 `[G]`."""
    label = _table(path, np.float64, 1, "the label of a graph")[:, 0]
    wrong = ~np.isin(label, range(CLASSES))
    if wrong.any():
        graph = int(wrong.argmax())
        label_given = "no label" if np.isnan(label[graph]) else f"label {label[graph]:g}"
        raise ShoalError(path, f"graph {graph} has {label_given}, every graph has 0 or 1; {AGAIN}")
    return label.astype(np.int64)


def _counts(path: Path, least: int, graphs: int, rows: int, of: str) -> np.ndarray:
    """Reads how many rows of another file every graph has, int64 `[G]`."""
    count = _table(path, np.int64, 1, "how many a graph has")[:, 0]
    if len(count) != graphs:
        raise ShoalError(path, f"{len(count)} rows, and {LABELS}.csv.gz has {graphs}; {AGAIN}")
    wrong = (count < least) | (count >= MOST)
    if wrong.any():
        graph = int(wrong.argmax())
        raise ShoalError(path, f"graph {graph} has {count[graph]}, at least {least} was expected; {AGAIN}")
    if count.sum() != rows:
        raise ShoalError(path, f"counts {count.sum()} rows of {of}.csv.gz, which has {rows}; {AGAIN}")
    return count


def _joined_ends(pairs: np.ndarray, graph: np.ndarray, sizes: np.ndarray, path: Path) -> np.ndarray:
    """Numbers ends of bonds `[E, 2]` from the first atom of all; published they count from that of the graph."""
    outside = ((pairs < 0) | (pairs >= sizes[graph][:, None])).any(1)
    if outside.any():
        row = int(outside.argmax())
        atom, other = pairs[row]
        atoms = sizes[graph[row]]
        raise ShoalError(path, f"row {row} joins {atom} and {other}, graph {graph[row]} has {atoms} atoms; {AGAIN}")
    return pairs + (np.cumsum(sizes) - sizes)[graph][:, None]


def _in_bounds(codes: np.ndarray, path: Path, features: Mapping[str, int]) -> np.ndarray:
    """Returns features of atoms or bonds; raises a ShoalError where one has a value that there is none of."""
    widths = np.array(list(features.values()))
    outside = (codes < 0) | (codes >= widths)
    if outside.any():
        row, column = (int(place[0]) for place in np.nonzero(outside))
        feature = f"column {column} ({list(features)[column]})"
        raise ShoalError(path, f"row {row}, {feature} is {codes[row, column]}, not in 0..{widths[column] - 1}; {AGAIN}")
    return codes


def _codes(files: dict[int, Path], graphs: int) -> np.ndarray:
    """Reads the part of every graph, int8 `[G]`."""
    code = np.full(graphs, UNASSIGNED, dtype=np.int8)
    for part, file in files.items():
        numbers = _table(file, np.int64, 1, "the number of a graph")[:, 0]
        outside = (numbers < 0) | (numbers >= graphs)
        if outside.any():
            raise ShoalError(file, f"names graph {numbers[outside][0]}, there are 0 to {graphs - 1}; {AGAIN}")
        taken = code[numbers] != UNASSIGNED
        if taken.any():
            raise ShoalError(file, f"graph {numbers[taken][0]} is in another part of the split, too; {AGAIN}")
        code[numbers] = part
    return code


DATASETS = tuple(
    DatasetSpec(
        name,
        load_ogb_molecules,
        paths,
        "graph",
        # Stores from before bonds had features lack them.
        content=lambda options: {"bonds": "kept"} if options.edge_features == "keep" else {},
        target=target,
    )
    for names, target in ((ARCHIVES, CLASSIFICATION), (OF_NUMBERS, REGRESSION), (OF_LABELS, MULTILABEL))
    for name in names
)
