"""A graph in tables, as people have it: a folder with edges.csv and nodes.csv, or the same as .parquet."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from shoal.storage.datasets.sources.source import reading
from shoal.storage.errors import ShoalError
from shoal.storage.graph.labels import coded_labels
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

EDGES, NODES = "edges", "nodes"
KINDS = (".csv", ".parquet")
ENDS, WEIGHT = ("source", "target"), "weight"
ID, LABEL, SPLIT, CLIENT = "id", "label", "split", "assignment"
PARTS = {
    **dict.fromkeys(("", "none", "0"), UNASSIGNED),
    **dict.fromkeys(("train", "1"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "2"), VAL),
    **dict.fromkeys(("test", "3"), TEST),
}
ADVICE = "write it again, with a header and one value in every column"
BLOCK_BYTES, BATCH_ROWS = 1 << 24, 1 << 17


def table_of(folder: Path, name: str) -> Path | None:
    """The table `name` in a folder, of either kind; None if there is none, a ShoalError if there are both."""
    found = [path for kind in KINDS if (path := folder / f"{name}{kind}").is_file()]
    if len(found) > 1:
        raise ShoalError(found[0], f"there is also {found[1].name}; keep one of the two")
    return found[0] if found else None


def read_tables(edges: Path, nodes: Path | None, labels: bool = True) -> dict[str, Any]:
    """The arrays of a graph, by the names of `graph_from_arrays`; without `nodes` these are the ends of edges.

    `edges` has the columns `source` and `target`, an edge a row, one way or both ways, named by ids, and optionally
    `weight`, a number. `nodes` has `id` (integers or texts, each once), `label` (see `coded_labels`; may
    be missing where `labels` are not read), optionally `split` (train, val, test, or 1, 2, 3; empty or 0 is none) and
    `assignment` (number of the client); every other column is a feature, of numbers, named after what it stands for.
    Nodes are numbered in the order of their rows. Both are read in batches: memory is taken for ids, features and
    numbered edges.

    Raises:
        ShoalError: A column is missing or unknown, an id is there twice or is not there, or a value is wrong; names
            file, column and row.
    """
    if nodes is None:
        ids = _ends(edges)
        return {**_edges(edges, ids), "y": np.full(len(ids), -1)}
    columns, batches = _table(nodes)
    _require_columns(nodes, columns, (ID, LABEL) if labels else (ID,))
    features = [name for name in columns if name not in (ID, LABEL, SPLIT, CLIENT)]
    blocks: list[np.ndarray] = []
    texts: dict[str, list[pa.Array]] = {name: [] for name in (ID, LABEL, SPLIT, CLIENT) if name in columns}
    with reading(nodes, ADVICE):
        for batch in batches:
            for name, kept in texts.items():
                kept.append(batch.column(name) if name == LABEL else _texts(batch.column(name)))
            if features:
                block = [_numbers(batch.column(name), f"{name!r} is a feature") for name in features]
                blocks.append(np.stack(block, axis=1))
    if not texts[ID]:
        raise ShoalError(nodes, "no row; there is nothing to learn")
    whole = {name: pa.concat_arrays(kept) for name, kept in texts.items() if name != LABEL}
    ids = whole[ID]
    _require_ids(nodes, ids)
    found: dict[str, Any] = _edges(edges, ids)
    label = pa.chunked_array(texts.get(LABEL, [pa.nulls(len(ids))]))
    found["y"], found["label_names"] = coded_labels(label, f"{nodes} (label)")
    if features:
        found |= {"x": np.concatenate(blocks), "vocabulary": np.array(features)}
    if SPLIT in whole:
        found["split"] = _parts(nodes, whole[SPLIT])
    if CLIENT in whole:
        with reading(nodes, f"column {CLIENT} is the number of a client"):
            found["assignment"] = whole[CLIENT].cast(pa.int64()).to_numpy()
    return {name: value for name, value in found.items() if value is not None}


def _table(path: Path) -> tuple[list[str], Iterable[pa.RecordBatch]]:
    """The columns of a table, each once, and its rows in batches; of a CSV file texts, but for features."""
    if path.suffix == ".parquet":
        with reading(path, "write it again as Parquet"):
            file = pq.ParquetFile(path)
        columns = list(file.schema_arrow.names)
        batches = file.iter_batches(batch_size=BATCH_ROWS)
    else:
        with reading(path, ADVICE):
            with path.open(encoding="utf-8-sig", newline="") as lines:
                header = lines.readline()
            columns = csv.read_csv(pa.BufferReader(header.encode())).column_names
            texts = (*ENDS, ID, LABEL, SPLIT, CLIENT)
            types = {name: pa.large_string() if name in texts else pa.float32() for name in columns}
            wanted = csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
            batches = csv.open_csv(path, csv.ReadOptions(block_size=BLOCK_BYTES), convert_options=wanted)
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise ShoalError(path, f"column {twice!r} is there twice; give each once")
    return columns, batches


def _require_columns(path: Path, columns: list[str], needed: tuple[str, ...]) -> None:
    for name in needed:
        if name not in columns:
            raise ShoalError(path, f"no column {name!r}; it needs {' and '.join(needed)}, found {', '.join(columns)}")


def _texts(column: pa.Array) -> pa.Array:
    """Whole numbers, without a point, names or categories as texts, and NaN as nothing; else a ValueError."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    return column.cast(pa.large_string())


def _numbers(column: pa.Array, what: str) -> np.ndarray:
    """A number of every row, float32, else a ValueError; `what` says of which column, and what it is."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"column {what} and must be numbers, found {kind}")
    if column.null_count:
        raise ValueError(f"column {what} and has no value in some row")
    # A value too large for float32 becomes infinity, which is refused later.
    with np.errstate(over="ignore"):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.float32)


def _require_ids(path: Path, ids: pa.Array) -> None:
    if ids.null_count:
        raise ShoalError(path, f"row {pc.is_null(ids).index(True).as_py()} has no id; every node needs one")
    if pc.count_distinct(ids).as_py() < len(ids):
        counts = pc.value_counts(ids)
        twice = counts.field("values")[pc.greater(counts.field("counts"), 1).index(True).as_py()]
        raise ShoalError(path, f"id {twice.as_py()!r} is there twice; one row a node")


def _ends(path: Path) -> pa.Array:
    """Ids of the nodes that edges join: whole numbers by their size, else texts by their letters."""
    columns, batches = _table(path)
    _require_columns(path, columns, ENDS)
    with reading(path, ADVICE):
        found = [_texts(batch.column(name)) for batch in batches for name in ENDS]
    ids = pc.drop_null(pc.unique(pa.chunked_array(found, pa.large_string())))
    try:
        order = pc.sort_indices(ids.cast(pa.int64()))
    except pa.ArrowInvalid:
        order = pc.sort_indices(ids)
    return ids.take(order)


def _edges(path: Path, ids: pa.Array) -> dict[str, np.ndarray]:
    """Rows of the nodes that edges join, `edge_index` int32 `[2, E]`, and if there are `edge_weight` float32 `[E]`."""
    columns, batches = _table(path)
    _require_columns(path, columns, ENDS)
    for name in columns:
        if name not in (*ENDS, WEIGHT):
            raise ShoalError(
                path, f"column {name!r} would not be used; take it out, edges are source, target and weight"
            )
    found: list[list[np.ndarray]] = [[], []]
    weights: list[np.ndarray] = []
    row = 0
    known = pc.SetLookupOptions(value_set=ids)
    for batch in _read(path, batches):
        for kept, name in zip(found, ENDS):
            with reading(path, ADVICE):
                texts = _texts(batch.column(name))
                rows = pc.index_in(texts, options=known)
            if rows.null_count:
                wrong = pc.is_null(rows).index(True).as_py()
                raise ShoalError(
                    path, f"{name} of row {row + wrong} is {texts[wrong].as_py()!r}, which is the id of no node"
                )
            kept.append(rows.to_numpy())
        if WEIGHT in columns:
            with reading(path, ADVICE):
                weights.append(_numbers(batch.column(WEIGHT), f"{WEIGHT!r} is what an edge weighs"))
        row += batch.num_rows
    if not found[0]:
        return {"edge_index": np.empty((2, 0), dtype=np.int32)}
    edge_index = np.stack([np.concatenate(kept) for kept in found])
    return {"edge_index": edge_index} | ({"edge_weight": np.concatenate(weights)} if weights else {})


def _read(path: Path, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with reading(path, ADVICE):
        yield from batches


def _parts(path: Path, texts: pa.Array) -> np.ndarray:
    """Part of every node, int8 `[N]`."""
    words = pc.dictionary_encode(texts.fill_null(""))
    codes = []
    for word in words.dictionary.to_pylist():
        if word not in PARTS:
            raise ShoalError(path, f"split {word!r}; it is train, val or test, or nothing")
        codes.append(PARTS[word])
    return np.array(codes, dtype=np.int8)[words.indices.to_numpy()]
