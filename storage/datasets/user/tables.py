"""A graph in tables, as people have it: a folder with edges.csv and nodes.csv, or the same as .parquet."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.storage.datasets.sources.source import reading
from shoal.storage.datasets.user.table_files import ADVICE, Rows, numbers, open_table
from shoal.storage.errors import ShoalError
from shoal.storage.graph.ids import clean_ids
from shoal.storage.graph.labels import coded_labels
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

EDGES, NODES = "edges", "nodes"
ENDS, WEIGHT = ("source", "target"), "weight"
ID, LABEL, SPLIT, CLIENT = "id", "label", "split", "assignment"
PARTS = {
    **dict.fromkeys(("", "none", "0"), UNASSIGNED),
    **dict.fromkeys(("train", "1"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "2"), VAL),
    **dict.fromkeys(("test", "3"), TEST),
}
# Letters and digits of names that are no features: what they say, and the way out.
NO_FEATURES = (
    (
        "the number of a row",
        "leave it out, in pandas with index=False",
        "index idx rowindex rownumber rownum rowid rowname rownames level0",
    ),
    ("an id", "call the ids 'id' and leave others out", "node nodeid nodeidx nodeindex nid ids"),
    ("a label", "the label is column 'label'; leave others out", "y labels labelid class classid target targets"),
    (
        "a part of the split",
        "write one column 'split' of train, val and test",
        "trainmask valmask validmask validationmask testmask mask train val test istrain isval istest splits",
    ),
    ("a client", "write its number as column 'assignment'", "client clientid clients assignments party partyid"),
    ("a graph", "write every graph into a folder of its own", "graph graphid graphidx graphindex domain domainid"),
)
# Names that pandas and others give to columns that have none: row numbers, as they write them.
UNNAMED = re.compile(r"\W*|Unnamed: [\d.]+|__index_level_\d+__")


def read_tables(edges: Path, nodes: Path | None, labels: bool = True) -> dict[str, Any]:
    """The arrays of a graph, by the names of `graph_from_arrays`; without `nodes` these are the ends of edges.

    `edges` has the columns `source` and `target`, an edge a row, one way or both ways, named by ids, and optionally
    `weight`, a number. `nodes` has `id` (integers or texts, each once), `label` (see `coded_labels`; may be missing
    where `labels` are not read), optionally `split` (train, val, test, or 1, 2, 3; empty or 0 is none) and `assignment`
    (number of the client); every other column is a feature, of numbers, named after what it stands for, or of lists of
    numbers, which are several features. Nodes are numbered in the order of their rows. Both are read in batches: memory
    is taken for ids, features and numbered edges.

    Raises:
        ShoalError: A column is missing or unknown, an id is there twice or is not there, or a value is wrong; names
            file, column and row.
    """
    if nodes is None:
        ids = _ends(edges)
        arrays = {**_edges(edges, ids), "ids": clean_ids(ids, len(ids), edges), "y": np.full(len(ids), -1)}
        return {name: value for name, value in arrays.items() if value is not None}
    columns, parts = open_table(nodes, (ID, LABEL, SPLIT, CLIENT))
    _require_columns(nodes, columns, (ID, LABEL) if labels else (ID,))
    others = [name for name in columns if name not in (ID, LABEL, SPLIT, CLIENT)]
    unnamed = [name for name in others if UNNAMED.fullmatch(name)]
    features = [name for name in others if name not in unnamed]
    for name in features:
        _require_feature(nodes, name)
    blocks: list[np.ndarray] = []
    widths: dict[str, int] = {}
    texts: dict[str, list[pa.Array]] = {name: [] for name in (ID, LABEL, SPLIT, CLIENT) if name in columns}
    for rows in parts:
        for name, kept in texts.items():
            with reading(rows.file, ADVICE):
                column = rows.batch.column(name)
                kept.append(column if name == LABEL else _texts(column))
        for name in unnamed:
            _require_row_numbers(rows, name)
        block = {name: numbers(rows, name, "a feature") for name in features}
        for name, values in block.items():
            if values.shape[1] != widths.setdefault(name, values.shape[1]):
                lengths = f"{values.shape[1]} numbers from row {rows.first} on, {widths[name]} before"
                raise ShoalError(rows.file, f"column {name!r}: {lengths}; give lists of one length")
        if block:
            blocks.append(np.concatenate(list(block.values()), axis=1))
    if not texts[ID]:
        raise ShoalError(nodes, "no row; there is nothing to learn")
    whole = {name: pa.concat_arrays(kept) for name, kept in texts.items() if name != LABEL}
    ids = clean_ids(whole[ID], len(whole[ID]), nodes)
    notes = [f"{nodes}: column {name!r} has no name and is left out" for name in unnamed]
    found: dict[str, Any] = {**_edges(edges, whole[ID]), "ids": ids, "notes": notes}
    label = pa.chunked_array(texts.get(LABEL, [pa.nulls(len(whole[ID]))]))
    found["y"], found["label_names"] = coded_labels(label, f"{nodes} (label)")
    if features:
        names = [name if width == 1 else f"{name}[{place}]" for name, width in widths.items() for place in range(width)]
        found |= {"x": np.concatenate(blocks), "vocabulary": np.array(names)}
    if SPLIT in whole:
        found["split"] = _parts(nodes, whole[SPLIT])
    if CLIENT in whole:
        with reading(nodes, f"column {CLIENT} is the number of a client"):
            found["assignment"] = whole[CLIENT].cast(pa.int64()).to_numpy()
    return {name: value for name, value in found.items() if value is not None}


def _require_columns(path: Path, columns: list[str], needed: tuple[str, ...]) -> None:
    for name in needed:
        if name not in columns:
            raise ShoalError(path, f"no column {name!r}; it needs {' and '.join(needed)}, found {', '.join(columns)}")


def _require_feature(path: Path, name: str) -> None:
    """Refuses a column whose name means something else than a feature, however it is spelled."""
    word = "".join(letter for letter in name.lower() if letter.isalnum())
    for what, way_out, words in NO_FEATURES:
        if word in words.split():
            raise ShoalError(path, f"column {name!r} means {what} and is no feature; {way_out}, or rename it")


def _require_row_numbers(rows: Rows, name: str) -> None:
    """Refuses a column without a name of its own that has anything but whole numbers, as those of rows are."""
    try:
        _texts(rows.batch.column(name)).cast(pa.int64())
    except pa.ArrowInvalid:
        raise ShoalError(
            rows.file, f"column {name!r} has no name and no whole numbers; name it, or take it out"
        ) from None


def _texts(column: pa.Array) -> pa.Array:
    """Whole numbers, without a point, names or categories as texts, and NaN as nothing; else a ValueError."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    return column.cast(pa.large_string())


def _ends(path: Path) -> pa.Array:
    """Ids of the nodes that edges join: whole numbers by their size, else texts by their letters."""
    columns, parts = open_table(path, (*ENDS, WEIGHT))
    _require_columns(path, columns, ENDS)
    found = []
    for rows in parts:
        with reading(rows.file, ADVICE):
            found += [_texts(rows.batch.column(name)) for name in ENDS]
    ids = pc.drop_null(pc.unique(pa.chunked_array(found, pa.large_string())))
    try:
        order = pc.sort_indices(ids.cast(pa.int64()))
    except pa.ArrowInvalid:
        order = pc.sort_indices(ids)
    return ids.take(order)


def _edges(path: Path, ids: pa.Array) -> dict[str, np.ndarray]:
    """Rows of the nodes that edges join, `edge_index` int32 `[2, E]`, and if there are `edge_weight` float32 `[E]`."""
    columns, parts = open_table(path, (*ENDS, WEIGHT))
    _require_columns(path, columns, ENDS)
    for name in columns:
        if name not in (*ENDS, WEIGHT):
            raise ShoalError(
                path, f"column {name!r} would not be used; take it out, edges are source, target and weight"
            )
    found: list[list[np.ndarray]] = [[], []]
    weights: list[np.ndarray] = []
    known = pc.SetLookupOptions(value_set=ids)
    for rows in parts:
        for kept, name in zip(found, ENDS):
            with reading(rows.file, ADVICE):
                texts = _texts(rows.batch.column(name))
                places = pc.index_in(texts, options=known)
            if places.null_count:
                wrong = pc.is_null(places).index(True).as_py()
                raise ShoalError(
                    rows.file,
                    f"{name} of row {rows.first + wrong} is {texts[wrong].as_py()!r}, which is the id of no node",
                )
            kept.append(places.to_numpy())
        if WEIGHT in columns:
            weights.append(numbers(rows, WEIGHT, "what an edge weighs")[:, 0])
    if not found[0]:
        return {"edge_index": np.empty((2, 0), dtype=np.int32)}
    edge_index = np.stack([np.concatenate(kept) for kept in found])
    return {"edge_index": edge_index} | ({"edge_weight": np.concatenate(weights)} if weights else {})


def _parts(path: Path, texts: pa.Array) -> np.ndarray:
    """Part of every node, int8 `[N]`."""
    words = pc.dictionary_encode(texts.fill_null(""))
    codes = []
    for word in words.dictionary.to_pylist():
        if (part := PARTS.get(word.strip().lower())) is None:
            raise ShoalError(path, f"split {word!r}; it is train, val or test, or nothing")
        codes.append(part)
    return np.array(codes, dtype=np.int8)[words.indices.to_numpy()]
