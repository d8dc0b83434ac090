"""Node-labelled graphs of the Open Graph Benchmark, read in blocks from the files as published.

Hu et al., "Open Graph Benchmark: Datasets for Machine Learning on Graphs", NeurIPS 2020. The arrays are
kept next to the files, to be mapped and used again until a file changes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.storage.datasets.sources.derived import DerivedChecksums, open_derived, synthetic_identity
from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import DatasetSpec, DataSource, data_root, derived_root, find_folder
from shoal.storage.datasets.sources.streams import NpzMember, column_count, csv_blocks, number_in
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write
from shoal.storage.files.digest import input_digest
from shoal.storage.graph.graph import Graph
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL
from shoal.storage.out_of_core.external_csr import FILES, external_csr, open_csr
from shoal.storage.out_of_core.npy_rows import write_rows

URL = "https://snap.stanford.edu/ogb/data/nodeproppred"
ADVICE = "delete it and get it again"
PARTS = {TRAIN: "train", VAL: "valid", TEST: "test"}
CSV = ("edge", "node-feat", "node-label", "num-node-list", "num-edge-list")
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 16, 1 << 24


@dataclass(frozen=True)
class Published:
    """Published form of one graph: its folder below the data root, its .zip file, and the folder of its official split;
    a binary one is in .npz files, else in .csv.gz files. `feature_dtype` is how features are kept by default.
    """

    folder: str
    archive: str
    split: str
    classes: int
    binary: bool = False
    feature_dtype: str = "float32"


PUBLISHED = {
    "ogbn-arxiv": Published("ogbn_arxiv", "arxiv.zip", "time", 40),
    "ogbn-products": Published("ogbn_products", "products.zip", "sales_ranking", 47),
    "ogbn-papers100m": Published("ogbn_papers100M", "papers100M-bin.zip", "time", 172, True, "float16"),
}

Rows = Callable[[int], Iterable[np.ndarray]]


class Raw(NamedTuple):
    """The published files of one graph, opened, and what errors call edges, features and labels (`where`).

    Each function gives rows in blocks, from a given row number on: edges int64 `[2, e]`, features float32 `[n, F]`,
    labels `[n]` of any number type, NaN where there is none. Counts are as the files announce them.
    """

    nodes: int
    edges: int
    features: int
    edge_columns: Rows
    feature_rows: Rows
    label_rows: Rows
    where: tuple[str, str, str]


def load_ogb(name: str, options: DataSource) -> Graph:
    """Loads `ogbn-arxiv`, `ogbn-products` or `ogbn-papers100m`, from OGB's own layout below the data root.

    Memory stays below `options.memory_limit`, the interpreter not counted; the first call writes the clean adjacency,
    features, labels and split to `ogb-derived/<name>`, and goes on there if it was killed. x is float32 or float16
    `[N, F]` as `feature_dtype` says. Files that are missing are downloaded, except the 57 GB of ogbn-papers100m. Files
    that `write_ogb_layout` wrote give a synthetic graph with the name of the twin.
    """
    spec = _published(options)
    identity = _twin_in_place(options)
    files = _files(options, spec, identity)
    dtype = np.dtype(_feature_dtype(options))
    limit = options.memory_limit
    contents = {part: input_digest(path) for part, path in files.items()}
    with open_derived(derived_root(options) / "ogb-derived" / name, contents) as folder:
        names = f"x-{dtype.name}.npy", "y.npy", "split.npy"
        csr, (x, y, split) = folder / "csr", (folder / name for name in names)
        checksums = DerivedChecksums(folder, [*(f"csr/{name}" for name in FILES), *names])
        if not all(path.exists() for path in (csr, x, y, split)):
            block_bytes = min(MAX_BLOCK_BYTES, max(MIN_BLOCK_BYTES, limit // 16))
            raw = (_open_npz if spec.binary else _open_csv)(files, block_bytes)
            external_csr(raw.edge_columns, raw.nodes, raw.edges, csr, limit, raw.where[0])
            features = partial(_checked_features, raw, dtype)
            write_rows(x, (raw.nodes, raw.features), dtype, features, limit, raw.where[1])
            labels = partial(_checked_labels, raw, spec.classes)
            write_rows(y, (raw.nodes,), np.dtype(np.int64), labels, limit, raw.where[2])
            _write_split(split, raw.nodes, {code: files[part] for code, part in PARTS.items()}, block_bytes)
        checksums.require()
        indptr, indices, cleaning = open_csr(csr)
        x, y, split = (np.load(path, mmap_mode="r", allow_pickle=False) for path in (x, y, split))
    synthetic = identity is not None
    name = identity["dataset"] if identity else name
    return Graph(name, indptr, indices, x, y, spec.classes, split=split, cleaning=cleaning, synthetic=synthetic)


def _published(options: DataSource) -> Published:
    """Returns the published form of a graph, with its folder, that of OGB's library, in the data root or in `ogb`."""
    published = PUBLISHED[options.key]
    folder = find_folder(data_root(options.root), [Path(published.folder), Path("ogb", published.folder)], "raw")
    return replace(published, folder=str(folder))


def _twin_in_place(options: DataSource) -> dict[str, Any] | None:
    """Returns the identity of the twin in the folder of the original; None if the files are the original's."""
    return synthetic_identity(data_root(options.root) / _published(options).folder)


def _feature_dtype(options: DataSource) -> str:
    """Returns the type of stored features: `float32` or `float16`."""
    dtype = options.feature_dtype or PUBLISHED[options.key].feature_dtype
    if dtype not in ("float32", "float16"):
        raise ShoalError("data.options.feature_dtype", f"'{dtype}' must be float32 or float16")
    return dtype


def raw_files(known: Published) -> dict[str, Path]:
    """Returns the path below the data root of every published file, by what it holds."""
    inside = {"data": "raw/data.npz", "node-label": "raw/node-label.npz"}
    if not known.binary:
        inside = {part: f"raw/{part}.csv.gz" for part in CSV}
    inside |= {part: f"split/{known.split}/{part}.csv.gz" for part in PARTS.values()}
    return {part: Path(known.folder) / file for part, file in inside.items()}


def _files(options: DataSource, known: Published, identity: dict[str, Any] | None) -> dict[str, Path]:
    """Returns files by what they hold; all are there."""
    root, address = data_root(options.root), f"{URL}/{known.archive}"
    if not known.binary and identity is None:
        tree, base = Path(known.folder), PUBLISHED[options.key].folder
        looked = [folder for folder in (Path(base), Path("ogb", base)) if folder != tree]
        fetch_published(options, list(raw_files(known).values()), lambda file: address, tree, looked, ["ogb"])
    files = {part: root / file for part, file in raw_files(known).items()}
    missing = next((path for path in files.values() if not path.is_file()), None)
    if missing is not None and identity is not None:
        raise ShoalError(
            missing,
            f"not found; the folder holds a part of {identity['dataset']}, which was not "
            "written to its end; run `shoal synthesize` again or delete the folder",
        )
    if missing is not None:
        raise ShoalError(
            missing,
            f"not found; unpack {address} (57 GB) and rename its folder to {root / known.folder}, or set "
            f"data.root or SHOAL_DATA to a folder that has the raw files of dataset '{options.key}'",
        )
    return files


def _open_csv(files: dict[str, Path], block_bytes: int) -> Raw:
    nodes, edges = (number_in(files[f"num-{part}-list"], ADVICE) for part in ("node", "edge"))
    if column_count(files["edge"], ADVICE) != 2:
        raise ShoalError(files["edge"], f"a line must have two fields, source and target; {ADVICE}")

    def blocks(part: str, dtype: type, first: int) -> Iterator[np.ndarray]:
        return csv_blocks(files[part], dtype, block_bytes, ADVICE, first)

    return Raw(
        nodes,
        edges,
        column_count(files["node-feat"], ADVICE),
        lambda first: (block.T for block in blocks("edge", np.int64, first)),
        lambda first: blocks("node-feat", np.float32, first),
        lambda first: (block[:, 0] for block in blocks("node-label", np.float64, first)),
        (str(files["edge"]), str(files["node-feat"]), str(files["node-label"])),
    )


def _open_npz(files: dict[str, Path], block_bytes: int) -> Raw:
    edge, feature, count = (
        NpzMember(files["data"], name, ADVICE) for name in ("edge_index", "node_feat", "num_nodes_list")
    )
    label = NpzMember(files["node-label"], "node_label", ADVICE)
    if count.shape != (1,) or count.dtype.kind not in "iu":
        form = f"{count.dtype} {list(count.shape)}"
        raise ShoalError(count.where, f"must be the number of nodes, found {form}; {ADVICE}")
    nodes = int(next(iter(count.values(0, 1)))[0])
    for member, kinds, holds in (
        (edge, "iu", len(edge.shape) == 2 and edge.shape[0] == 2),
        (feature, "f", len(feature.shape) == 2 and feature.shape[0] == nodes and not feature.columns_first),
        (label, "iuf", label.shape in ((nodes,), (nodes, 1))),
    ):
        if not holds or member.dtype.kind not in kinds:
            form = f"{member.dtype} {list(member.shape)}"
            raise ShoalError(member.where, f"not what a graph of {nodes} nodes has, found {form}; {ADVICE}")
    pair, row = 2 * edge.dtype.itemsize, feature.dtype.itemsize * feature.shape[1]
    return Raw(
        nodes,
        edge.shape[1],
        feature.shape[1],
        lambda first: edge.columns(first, block_bytes // pair),
        lambda first: feature.rows(first, max(1, block_bytes // row)),
        lambda first: label.values(first, block_bytes // label.dtype.itemsize),
        (edge.where, feature.where, label.where),
    )


def _checked_features(raw: Raw, dtype: np.dtype, first: int) -> Iterator[np.ndarray]:
    """Yields features as they are kept."""
    for block in raw.feature_rows(first):
        # A value too large for float16 becomes infinity, and is refused below.
        with np.errstate(over="ignore"):
            kept = block.astype(dtype)
        finite = np.isfinite(kept).all(axis=1)
        if not finite.all():
            row = first + int(finite.argmin())
            raise ShoalError(raw.where[1], f"row {row} has NaN, infinity, or more than {dtype} holds; {ADVICE}")
        yield kept
        first += len(block)


def _checked_labels(raw: Raw, classes: int, first: int) -> Iterator[np.ndarray]:
    """Yields labels as they are kept: -1 where there is none."""
    for block in raw.label_rows(first):
        labelled = ~np.isnan(block)
        label = np.where(labelled, block, -1).astype(np.int64)
        invalid = labelled & ((label != block) | (label < 0) | (label >= classes))
        if invalid.any():
            at = int(invalid.argmax())
            raise ShoalError(
                raw.where[2], f"node {first + at} has label {block[at]:g}, the dataset has classes 0 to {classes - 1}"
            )
        yield label
        first += len(block)


def _write_split(path: Path, nodes: int, files: dict[int, Path], block_bytes: int) -> None:
    """Writes the part of every node, int8 `[N]`, from files of node numbers; a killed write begins again."""
    if path.exists():
        return
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        code = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.int8, shape=(nodes,))
        for value, file in files.items():
            for block in csv_blocks(file, np.int64, block_bytes, ADVICE):
                ids = block[:, 0]
                if len(ids) and not (ids.min() >= 0 and ids.max() < nodes):
                    raise ShoalError(file, f"names a node beyond the {nodes} of the graph; {ADVICE}")
                if (code[ids] != UNASSIGNED).any():
                    node = int(ids[code[ids] != UNASSIGNED][0])
                    raise ShoalError(file, f"node {node} is in another part of the split, too; {ADVICE}")
                code[ids] = value
        code.flush()
        unfinished.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _content(options: DataSource) -> dict[str, Any]:
    """Describes the type of stored features, and the twin whose files are in the folder of the original."""
    twin = _twin_in_place(options)
    return {"feature_dtype": _feature_dtype(options)} | ({} if twin is None else {"synthetic": twin})


DATASETS = tuple(
    DatasetSpec(
        name,
        load_ogb,
        lambda options: list(raw_files(_published(options)).values()),
        classes=lambda options: PUBLISHED[options.key].classes,
        content=_content,
        options=("feature_dtype", "scratch"),
        finite=True,
    )
    for name in PUBLISHED
)
