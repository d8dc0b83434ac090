"""A twin written in the files and formats in which OGB publishes the original."""

import gzip
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from shoal.storage.datasets.readers.ogb import PARTS, PUBLISHED, raw_files
from shoal.storage.datasets.sources.derived import mark_synthetic, synthetic_identity
from shoal.storage.datasets.synthetic.twin import Twin
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write
from shoal.storage.files.disk import require_disk
from shoal.storage.out_of_core.npy_rows import npy_header
from shoal.storage.progress import step

YEAR = 2015


def write_ogb_layout(root: Path, twin: Twin, compress: bool = False) -> Path:
    """Writes the raw files of the twin's original, block by block, and gives their folder.

    A twin that is there is replaced. Before any other file a note is written that the files are synthetic; `load_ogb`
    reads it. The folder, below the data root, is that of the original; `compress` deflates .npz files. A ShoalError
    says that it holds files that are not a twin's, or that the disk is too small.
    """
    spec = PUBLISHED[f"ogbn-{twin.name.removesuffix('-like')}"]
    folder = root / spec.folder
    paths = [root / file for file in raw_files(spec).values()]
    existing = [path for path in paths if path.exists()]
    if existing and synthetic_identity(folder) is None:
        raise ShoalError(existing[0], f"is there, and not synthetic; choose another root than {root}")
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        mark_synthetic(folder, twin.identity)
        if spec.binary and not compress:
            require_disk(folder, 16 * twin.edges + twin.nodes * (4 * twin.features + 12), "the raw files")
        (_write_npz if spec.binary else _write_csv)(folder / "raw", twin, compress)
        _write_split(folder / "split" / spec.split, twin)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder


def _write_csv(raw: Path, twin: Twin, compress: bool) -> None:
    edges = _with_progress("edges", twin.edges, (block.T for block in twin.edge_blocks()))
    labels = _with_progress("labels", twin.nodes, (block[:, None] for block in twin.labels()))
    _write_gz_csv(raw / "edge.csv.gz", edges)
    _write_gz_csv(raw / "node-feat.csv.gz", _with_progress("features", twin.nodes, twin.feature_rows()))
    _write_gz_csv(raw / "node-label.csv.gz", labels)
    _write_gz_csv(raw / "num-node-list.csv.gz", [np.array([[twin.nodes]])])
    _write_gz_csv(raw / "num-edge-list.csv.gz", [np.array([[twin.edges]])])


def _write_npz(raw: Path, twin: Twin, compress: bool) -> None:
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    sources_then_targets = (block[end] for end in (0, 1) for block in twin.edge_blocks())
    ends = _with_progress("ends of edges", 2 * twin.edges, sources_then_targets)
    years = (np.full((len(block), 1), YEAR) for block in twin.split_codes())
    with zipfile.ZipFile(raw / "data.npz", "w", method) as archive:
        _write_member(archive, "edge_index", (2, twin.edges), np.int64, ends)
        features = _with_progress("features", twin.nodes, twin.feature_rows())
        _write_member(archive, "node_feat", (twin.nodes, twin.features), np.float32, features)
        _write_member(archive, "node_year", (twin.nodes, 1), np.int64, _with_progress("years", twin.nodes, years))
        _write_member(archive, "num_nodes_list", (1,), np.int64, [np.array([twin.nodes])])
        _write_member(archive, "num_edges_list", (1,), np.int64, [np.array([twin.edges])])
    with zipfile.ZipFile(raw / "node-label.npz", "w", method) as archive:
        labels = (np.where(block < 0, np.nan, block) for block in twin.labels())
        _write_member(archive, "node_label", (twin.nodes, 1), np.float32, _with_progress("labels", twin.nodes, labels))


def _write_split(folder: Path, twin: Twin) -> None:
    for part, name in PARTS.items():
        ids, first = [], 0
        for block in _with_progress(f"{name} nodes", twin.nodes, twin.split_codes()):
            ids.append(first + np.flatnonzero(block == part))
            first += len(block)
        _write_gz_csv(folder / f"{name}.csv.gz", [np.concatenate(ids)[:, None]])


def _write_gz_csv(path: Path, blocks: Iterable[np.ndarray]) -> None:
    options = csv.WriteOptions(include_header=False)
    with gzip.open(path, "wb", compresslevel=1) as file:
        for block in blocks:
            columns = [pa.array(np.ascontiguousarray(column)) for column in block.T]
            csv.write_csv(pa.table(columns, [str(number) for number in range(len(columns))]), file, options)


def _write_member(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: type, blocks: Iterable[np.ndarray]
) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        file.write(npy_header(shape, np.dtype(dtype)))
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))


def _with_progress(what: str, rows: int, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    with step(what, rows, "rows") as advance:
        for block in blocks:
            yield block
            advance(len(block))
