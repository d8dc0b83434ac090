"""A graph in tables, as people have it: a folder with edges.csv and nodes.csv, or the same as .parquet.

A table is a file or a folder of parts: its columns are read by name, its rows in batches of numbers.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse as sp
from pyarrow import csv

from shoal.storage.datasets.sources.source import reading
from shoal.storage.datasets.user.table_faults import (
    CLIENT,
    ENDS,
    ID,
    KIND,
    LABEL,
    RELATION,
    SPLIT,
    UNNAMED,
    WEIGHT,
    Faults,
    is_feature,
    means_other,
    other_names,
    plain_word,
    require_columns,
)
from shoal.storage.datasets.user.table_files import PARQUET, parts_of
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edge_features import merge_relations
from shoal.storage.graph.ids import clean_ids
from shoal.storage.graph.labels import coded_labels
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL
from shoal.storage.options.target_names import CLASSIFICATION, Target

ADVICE = "write it again in UTF-8, with a header and one value in every column"
SEPARATORS = (",", ";", "\t", "|")
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
TEXTS = (pa.types.is_string, pa.types.is_large_string)
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
BLOCK_BYTES, BATCH_ROWS = 1 << 24, 1 << 17
# Columns of several targets have names that begin so.
SEVERAL = "label_"
# What a column is in messages.
FEATURE, OF_EDGES = "a feature", "a feature of edges"
# Kinds of nodes, or of edges, that a column may name.
MOST_KINDS = 256
PARTS = {
    **dict.fromkeys(("", "none", "0"), UNASSIGNED),
    **dict.fromkeys(("train", "1"), TRAIN),
    **dict.fromkeys(("val", "valid", "validation", "2"), VAL),
    **dict.fromkeys(("test", "3"), TEST),
}


class Rows(NamedTuple):
    """Rows of a table: the file they are in, the number of the first one there, and their columns."""

    file: Path
    first: int
    batch: pa.RecordBatch


def open_table(table: Path, known: Sequence[str], needed: Sequence[str] = ()) -> tuple[list[str], Iterator[Rows]]:
    """Opens the columns of a table, each once, and its rows; of CSV all are texts, of which an empty one is null.

    Names are without spaces around them, and those of `known` in lower case; other names of those that are `needed`
    tell the separator, too. Raises ShoalError: a file has no header,
    a name is there twice, or parts have different columns.
    """
    is_parquet = table.suffix == PARQUET
    parts = parts_of(table)
    # Columns of a part, and how its lines are separated.
    heads = [(_parquet_names(part), "") if is_parquet else _header(part, known, needed) for part in parts]
    columns = [[_known_name(name, known) for name in names] for names, _ in heads]
    for part, names_of_part in zip(parts, columns):
        if len(set(names_of_part)) < len(names_of_part):
            twice = next(name for name in names_of_part if names_of_part.count(name) > 1)
            raise ShoalError(part, f"column {twice!r} is there twice; give each once")
        if differing := sorted({*names_of_part} ^ {*columns[0]}):
            raise ShoalError(part, f"column {differing[0]!r} is in only one of this part and {parts[0].name}")

    def rows() -> Iterator[Rows]:
        for part, names_of_part, (names, separator) in zip(parts, columns, heads):
            first = 0
            with reading(part, "write it again as Parquet" if is_parquet else ADVICE):
                batches = pq.ParquetFile(part).iter_batches(BATCH_ROWS) if is_parquet else _csv(part, names, separator)
            while (batch := _next(part, batches)) is not None:
                if batch.num_rows:
                    yield Rows(part, first, batch.rename_columns(names_of_part))
                first += batch.num_rows

    return columns[0], rows()


def numbers(rows: Rows, name: str, what: str, may_miss: bool = False) -> np.ndarray:
    """Reads a column as numbers, float32 `[n, width]`; it is `what`, and lists of one length are as many columns.

    Where values `may_miss`, they are NaN.

    Raises ShoalError: a value is missing, not finite or no number, or lists are of different lengths; names the column
    and the row.
    """
    column, width = rows.batch.column(name), 1

    def fault(row: int, says: str) -> ShoalError:
        return ShoalError(rows.file, f"column {name!r} is {what} and must be numbers; row {rows.first + row} {says}")

    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if any(is_kind(column.type) for is_kind in LISTS):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        width = int(lengths[0])
        if not width or (lengths != width).any():
            row = int((lengths != width).argmax())
            raise fault(row, f"has {lengths[row]} numbers, and the first one {width}; give lists of one length")
        column = column.flatten()
    if not any(is_kind(column.type) for is_kind in (*TEXTS, *NUMBERS)):
        raise ShoalError(rows.file, f"column {name!r} is {what} and must be numbers, found {column.type}")
    if may_miss and pa.types.is_null(column.type):
        column = column.cast(pa.float32())
    values = _parse(column) if any(is_kind(column.type) for is_kind in TEXTS) else column
    if may_miss and not isinstance(values, int):
        values = values.cast(pa.float64()) if pa.types.is_boolean(values.type) else values
        values = values.cast(pa.float64()).fill_null(np.nan)
    if isinstance(values, int):
        wrong = values
    elif values.null_count:
        raise fault(pc.is_null(values).index(True).as_py() // width, "has no value; give it one")
    else:
        # A value too large for float32 becomes infinity.
        with np.errstate(over="ignore"):
            x = np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.float32)
        sound = np.isfinite(x) | (np.isnan(x) & may_miss)
        if sound.all():
            return x.reshape(-1, width)
        wrong = int((~sound).argmax())
    word = str(column[wrong].as_py())
    decimal = "," in word and is_number(word.replace(",", ".", 1))
    way_out = "write decimals with a point" if decimal else "give a finite one, or take the column out"
    if what == FEATURE and not decimal and not is_number(word):
        way_out = "name a column of texts in data.options.text, or take the column out"
    raise fault(wrong // width, f"is {word[:40]!r}: {way_out}")


def _parse(texts: pa.Array) -> pa.Array | int:
    """Parses texts as numbers, or as truth values if they are True and False; else gives the first wrong row."""
    trimmed = pc.utf8_trim_whitespace(texts)
    for kind in (pa.float32(), pa.bool_()):
        try:
            return trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
    words = trimmed.to_pylist()
    # Truth values among numbers are what is wrong.
    for fits in (lambda word: is_number(word) or word.lower() in ("true", "false"), is_number):
        for row, word in enumerate(words):
            if word is not None and not fits(word):
                return row
    return 0


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _known_name(name: str, known: Sequence[str]) -> str:
    name = name.strip()
    return name.lower() if name.lower() in known else name


def _parquet_names(part: Path) -> list[str]:
    with reading(part, "write it again as Parquet"):
        return list(pq.read_schema(part).names)


def _header(part: Path, known: Sequence[str], needed: Sequence[str]) -> tuple[list[str], str]:
    """Reads the names in a CSV file's header, as they are written, and the separator: a comma, if none is `known`."""
    others = other_names(needed)
    with reading(part, ADVICE):
        # It is decompressed as the file's name says.
        with io.BufferedReader(pa.input_stream(str(part))) as lines:
            header = lines.readline(BLOCK_BYTES)
        names_by = {separator: _names(header, separator) for separator in SEPARATORS}
    is_known = lambda name: _known_name(name, known) in known or plain_word(name) in others  # noqa: E731
    fits = (by for by, names in names_by.items() if any(map(is_known, names)))
    separator = next(fits, SEPARATORS[0])
    names = names_by[separator]
    if all(map(is_number, names)):
        raise ShoalError(part, f"expected names of columns in the first line, got {', '.join(names[:3])}; add a header")
    return names, separator


def _names(header: bytes, separator: str) -> list[str]:
    table = csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=csv.ParseOptions(delimiter=separator))
    return list(table.column_names)


def _csv(part: Path, names: Sequence[str], separator: str) -> Iterator[pa.RecordBatch]:
    types = dict.fromkeys(names, pa.large_string())
    wanted = csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    read = csv.ReadOptions(block_size=BLOCK_BYTES)
    return iter(csv.open_csv(part, read, csv.ParseOptions(delimiter=separator), wanted))


def _next(part: Path, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    with reading(part, ADVICE):
        return next(batches, None)


def read_tables(
    edges: Path,
    nodes: Path | None,
    labels: bool = True,
    target: Target = CLASSIFICATION,
    texts: Sequence[str] = (),
    edge_features: bool = True,
) -> dict[str, Any]:
    """Reads the arrays of a graph, by the names of `graph_from_arrays`; without `nodes`, from the ends of edges.

    `edges` has the columns `source` and `target`, an edge a row, one way or both ways, named by ids, and optionally
    `weight`, a number, and `relation`, a text, the kind of the edge, of which two nodes may share several; every other
    column is a feature of edges (`edge_features`, else they are left out). `nodes` has `id` (integers or texts, each
    once), `label` (see `coded_labels`; may be missing where `labels` are not read), optionally `split` (train, val,
    test, or 1, 2, 3; empty or 0 is none) and `assignment` (number of the client); every other column is a feature, of
    numbers, named after what it stands for, or of lists of numbers, which are several features. Where `kind` says of
    which kind each node is, a feature that those of other kinds lack is zero for them, and kinds are features, too.
    With another `target` than classes `label` is of numbers, of which an empty one is missing, or there are several,
    `label_…`. Columns of `texts` are no features, and stand by their names under `texts`. Nodes are numbered in the
    order of their rows. Both are read in batches: memory is taken for ids, features and numbered edges. Raises
    ShoalError: A column is missing or unknown, an id is there twice or is not there, or a value is wrong; names file,
    column and row of every fault of both tables.
    """
    faults, arrays = Faults(), dict[str, Any]()
    ids: pa.Array | None = None
    if nodes is not None:
        with faults.gathered():
            arrays, ids = _nodes(nodes, labels, faults, target, texts)
    elif (ids := _ends(edges, faults)) is not None:
        arrays = {"ids": clean_ids(ids, len(ids), edges), "y": np.full(len(ids), -1)}
    with faults.gathered():
        arrays |= _edges(edges, ids, faults, edge_features)
    faults.require_none(edges.parent)
    notes = [*arrays.pop("notes", []), *arrays.pop("notes_of_edges", [])]
    return {name: value for name, value in {**arrays, "notes": notes}.items() if value is not None}


def _nodes(
    nodes: Path, labels: bool, faults: Faults, target: Target, texts_of: Sequence[str]
) -> tuple[dict[str, Any], pa.Array | None]:
    """Reads the arrays of nodes, and their ids as texts, also where some are there twice; None: there are none."""
    needed = (ID, LABEL) if labels else (ID,)
    columns, parts = open_table(nodes, (ID, LABEL, SPLIT, CLIENT, KIND), needed)
    targets = [] if target == CLASSIFICATION else [name for name in columns if name.startswith(SEVERAL)]
    meant = require_columns(nodes, columns, needed[: 1 if targets else 2], faults)
    others = [name for name in columns if name not in (ID, LABEL, SPLIT, CLIENT, KIND, *meant, *targets, *texts_of)]
    if targets and LABEL in columns:
        faults.add(nodes, f"there are both {LABEL!r} and {targets[0]!r}; keep one of the two")
    for name in texts_of:
        if name not in columns:
            raise ShoalError(nodes, f"no column {name!r} of texts; found {', '.join(columns)}")
    unnamed = [name for name in others if UNNAMED.fullmatch(name)]
    features = [name for name in others if name not in unnamed and is_feature(nodes, name, faults)]
    blocks: list[np.ndarray] = []
    widths: dict[str, int] = {}
    several_kinds = KIND in columns
    of_texts = [name for name in (ID, SPLIT, CLIENT, KIND, *texts_of) if name in columns]
    texts: dict[str, list[pa.Array]] = {name: [] for name in of_texts}
    given: list[tuple[Path, pa.Array]] = []
    of_label = [LABEL] if LABEL in columns and labels and target != CLASSIFICATION else []
    kept_targets: dict[str, list[np.ndarray]] = {name: [] for name in (targets or of_label)} if labels else {}
    for rows in parts:
        for name, kept in texts.items():
            with reading(rows.file, ADVICE):
                kept.append(_texts(rows.batch.column(name)))
        if LABEL in columns and target == CLASSIFICATION:
            given.append((rows.file, rows.batch.column(LABEL)))
        for name in kept_targets:
            with faults.gathered(of=name):
                kept_targets[name].append(numbers(rows, name, "a target", may_miss=True))
        block = []
        for name in features:
            with faults.gathered(of=name):
                block.append(_block(rows, name, widths, several_kinds))
        for name in unnamed:
            with faults.gathered(of=name):
                _require_row_numbers(rows, name)
        if block and not faults.errors:
            blocks.append(np.concatenate(block, axis=1))
    if not texts.get(ID):
        if ID in columns:
            raise ShoalError(nodes, "no row; there is nothing to learn")
        return {}, None
    whole = {name: pa.concat_arrays(kept) for name, kept in texts.items()}
    arrays: dict[str, Any] = {"notes": [_without_name(nodes, name) for name in unnamed]}
    ids = whole[ID].drop_null().unique()
    with faults.gathered():
        arrays["ids"], ids = clean_ids(whole[ID], len(whole[ID]), nodes), whole[ID]
    with faults.gathered():
        if kept_targets and not faults.errors:
            arrays["y"] = np.concatenate([np.concatenate(kept) for kept in kept_targets.values()], axis=1)
            names = [name.removeprefix(SEVERAL) for name in kept_targets]
            arrays["label_names"] = np.array(names) if targets and len(names) == arrays["y"].shape[1] else None
        elif not kept_targets:
            label = _of_one_type(given) if given else pa.nulls(len(whole[ID]))
            arrays["y"], arrays["label_names"] = coded_labels(label, f"{nodes} (label)")
    if blocks:
        names = [name if width == 1 else f"{name}[{place}]" for name, width in widths.items() for place in range(width)]
        arrays |= {"x": np.concatenate(blocks), "vocabulary": np.array(names)}
    with faults.gathered():
        if several_kinds:
            arrays |= _with_kinds(arrays, whole[KIND], nodes)
    if texts_of:
        arrays["texts"] = {name: whole[name].fill_null("").to_pylist() for name in texts_of}
    with faults.gathered():
        arrays["split"] = parts_of_split(nodes, whole[SPLIT]) if SPLIT in whole else None
    with faults.gathered(), reading(nodes, f"column {CLIENT} is the number of a client"):
        arrays["assignment"] = whole[CLIENT].cast(pa.int64()).to_numpy() if CLIENT in whole else None
    return arrays, ids


def has_kinds(nodes: Path) -> bool:
    """Whether a table of nodes says of which kind each is; reading it tells what is wrong with one that is damaged."""
    try:
        return KIND in open_table(nodes, (ID, LABEL, SPLIT, CLIENT, KIND), (ID,))[0]
    except ShoalError:
        return False


def _with_kinds(arrays: dict[str, Any], kinds: pa.Array, nodes: Path) -> dict[str, Any]:
    """Makes features, sparse float32 `[N, F]`, of those of nodes and, behind them, of their kinds."""
    of_kinds, names = _one_hot(kinds, nodes, KIND)
    x = arrays.get("x")
    parts = [of_kinds] if x is None else [sp.csr_array(x), of_kinds]
    return {"x": sp.hstack(parts, format="csr"), "vocabulary": np.array([*arrays.get("vocabulary", ()), *names])}


def _one_hot(values: pa.Array, path: Path, column: str) -> tuple[Any, list[str]]:
    """Makes a one for the value of every row, sparse float32 `[n, kinds]`, and names of the kinds, in their order.

    Raises ShoalError: a row has none, or there are more than `MOST_KINDS`.
    """
    if values.null_count:
        row = pc.is_null(values).index(True).as_py()
        raise ShoalError(path, f"column {column!r}: row {row} has no value; name its kind")
    coded = values.dictionary_encode()
    order = np.argsort(np.array(coded.dictionary.to_pylist(), dtype=object))
    if len(order) > MOST_KINDS:
        raise ShoalError(
            path,
            f"column {column!r} has {len(order)} values, kinds are at most {MOST_KINDS}; take it out, or rename it",
        )
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    columns = place[coded.indices.to_numpy()]
    starts = np.arange(len(columns) + 1)
    one_hot = sp.csr_array((np.ones(len(columns), np.float32), columns, starts), shape=(len(columns), len(order)))
    return one_hot, [f"{column} {coded.dictionary[int(k)].as_py()}" for k in order]


def _block(rows: Rows, name: str, widths: dict[str, int], may_miss: bool = False) -> np.ndarray:
    """Reads a feature in some rows, `[rows, width]`; all rows are of one width, which `widths` keeps.

    Where values `may_miss`, they are zero.
    """
    values = numbers(rows, name, FEATURE, may_miss)
    if may_miss:
        values = np.nan_to_num(values, copy=False)
    if values.shape[1] != widths.setdefault(name, values.shape[1]):
        lengths = f"{values.shape[1]} numbers from row {rows.first} on, {widths[name]} before"
        raise ShoalError(rows.file, f"column {name!r}: {lengths}; give lists of one length")
    return values


def _without_name(table: Path, name: str) -> str:
    return f"{table}: column {name!r} has no name and is left out"


def _require_row_numbers(rows: Rows, name: str) -> None:
    """Refuses a column without a name of its own that has anything but whole numbers, as those of rows are."""
    try:
        _texts(rows.batch.column(name)).cast(pa.int64())
    except pa.ArrowInvalid:
        raise ShoalError(
            rows.file, f"column {name!r} has no name and no whole numbers; name it, or take it out"
        ) from None


def _texts(column: pa.Array) -> pa.Array:
    """Converts whole numbers without a point, names or categories to texts, and NaN to nothing; else a ValueError."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    return column.cast(pa.large_string())


def _of_one_type(given: Sequence[tuple[Path, pa.Array]]) -> pa.ChunkedArray:
    """Joins the labels of all parts as one file of these rows would have them; `given` are files and their rows.

    Writers of parts give each the type of the rows that they saw: none where all are empty, text where one is a text.
    Raises ShoalError: a type is neither of numbers nor of texts, and others have another; names the part and both.
    """
    columns = [(file, c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c) for file, c in given]
    kinds = {column.type: file for file, column in reversed(columns) if not pa.types.is_null(column.type)}
    kind = next(iter(kinds), pa.null())
    if len(kinds) > 1:
        plain = (*TEXTS, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        if other := next((kind for kind in kinds if not any(is_kind(kind) for is_kind in plain)), None):
            rest = next(kind for kind in kinds if kind != other)
            where = f"column {LABEL!r} is {other}, and in {kinds[rest].name} {rest}"
            raise ShoalError(kinds[other], f"{where}; write labels of one type in all parts")
        integers = all(pa.types.is_integer(kind) for kind in kinds)
        numbers_alone = integers or all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in kinds)
        kind = pa.int64() if integers else pa.float64() if numbers_alone else pa.large_string()
    chunks = []
    for file, column in columns:
        with reading(file, f"write column {LABEL!r} of one type in all parts"):
            chunks.append(column.cast(kind))
    return pa.chunked_array(chunks, kind)


def _ends(path: Path, faults: Faults) -> pa.Array | None:
    """Lists ids of the nodes that edges join: whole numbers by their size, else texts by their letters.

    None: columns are missing, which is a fault of the edges.
    """
    columns, parts = open_table(path, (*ENDS, WEIGHT), ENDS)
    if not {*ENDS} <= {*columns}:
        return None
    columns_of_ids = []
    for rows in parts:
        with reading(rows.file, ADVICE):
            columns_of_ids += [_texts(rows.batch.column(name)) for name in ENDS]
    ids = pc.drop_null(pc.unique(pa.chunked_array(columns_of_ids, pa.large_string())))
    try:
        order = pc.sort_indices(ids.cast(pa.int64()))
    except pa.ArrowInvalid:
        order = pc.sort_indices(ids)
    return ids.take(order)


def _edges(path: Path, ids: pa.Array | None, faults: Faults, features: bool) -> dict[str, Any]:
    """Numbers the nodes that edges join, `edge_index` int32 `[2, E]`, and reads what else is known of edges, if any.

    That is `edge_weight` float32 `[E]`, and by `features` `edge_attr` float32 `[E, D]`. Without ids the columns alone
    are looked at.
    """
    columns, parts = open_table(path, (*ENDS, WEIGHT, RELATION), (*ENDS, WEIGHT, RELATION))
    meant = require_columns(path, columns, ENDS, faults)
    others = [name for name in columns if name not in (*ENDS, WEIGHT, *meant)]
    unnamed = [name for name in others if UNNAMED.fullmatch(name)]
    # Where an end is missing, another column may be it.
    named = [name for name in others if name not in unnamed]
    other = [name for name in named if {*ENDS} <= {*columns} and means_other(path, name, WEIGHT in columns, faults)]
    of_edges = [name for name in named if name not in other and features]
    if {WEIGHT, RELATION} <= {*columns} and features:
        faults.add(path, f"there are both {WEIGHT!r} and {RELATION!r}; keep one of the two")
    blocks: dict[str, list[Any]] = {name: [] for name in of_edges}
    places_of: dict[str, list[np.ndarray]] = {name: [] for name in ENDS if name in columns}
    weights: list[np.ndarray] = []
    for rows in parts if ids is not None else ():
        for name, kept in places_of.items():
            with faults.gathered(of=name):
                kept.append(_places(rows, name, ids))
        for name in unnamed:
            with faults.gathered(of=name):
                _require_row_numbers(rows, name)
        if WEIGHT in columns:
            with faults.gathered(of=WEIGHT):
                weights.append(numbers(rows, WEIGHT, "what an edge weighs")[:, 0])
        for name, block in blocks.items():
            with faults.gathered(of=name):
                column = rows.batch.column(name)
                block.append(_texts(column) if name == RELATION else numbers(rows, name, OF_EDGES))
    if faults.errors:
        return {}
    left_out = [] if features else named
    notes = [f"{path}: column {name!r} is left out, as data.edge_features has it" for name in left_out]
    arrays: dict[str, Any] = {"notes_of_edges": [*(_without_name(path, name) for name in unnamed), *notes]}
    if not places_of[ENDS[0]]:
        return arrays | {"edge_index": np.empty((2, 0), dtype=np.int32)}
    arrays["edge_index"] = np.stack([np.concatenate(kept) for kept in places_of.values()])
    if blocks:
        arrays |= _edge_attr(path, arrays["edge_index"], blocks)
    return arrays | ({"edge_weight": np.concatenate(weights)} if weights else {})


def _edge_attr(path: Path, edge_index: np.ndarray, blocks: dict[str, list[Any]]) -> dict[str, Any]:
    """Makes `edge_attr` of the columns of edges, kinds of relations a column each; an edge of several has each once."""
    parts, names, kinds = [], list[str](), 0
    # Relations come first.
    for name in sorted(blocks, key=lambda name: name != RELATION):
        block = blocks[name]
        if name == RELATION:
            one_hot, called = _one_hot(pa.concat_arrays(block), path, name)
            parts.append(one_hot.toarray())
            names += called
            kinds = len(called)
        else:
            parts.append(np.concatenate(block))
            width = parts[-1].shape[1]
            names += [name] if width == 1 else [f"{name}[{place}]" for place in range(width)]
    attr = np.concatenate(parts, axis=1)
    some = {"edge_kinds": np.array(kinds)} if 0 < kinds < attr.shape[1] else {}
    if kinds:
        edge_index, attr = merge_relations(edge_index, attr, kinds, path)
    return {"edge_index": edge_index, "edge_attr": attr, "edge_names": np.array(names), **some}


def _places(rows: Rows, name: str, ids: pa.Array) -> np.ndarray:
    """Numbers the nodes at an end of edges, int32."""
    with reading(rows.file, ADVICE):
        texts = _texts(rows.batch.column(name))
        places = pc.index_in(texts, options=pc.SetLookupOptions(value_set=ids))
    if places.null_count:
        wrong = pc.is_null(places).index(True).as_py()
        more = f" (1 of {places.null_count:,} such rows)" if places.null_count > 1 else ""
        raise ShoalError(
            rows.file,
            f"{name} of row {rows.first + wrong} is {texts[wrong].as_py()!r}, which is the id of no node{more}",
        )
    return places.to_numpy()


def parts_of_split(path: Path, texts: pa.Array) -> np.ndarray:
    """Reads the part of every node, int8 `[N]`."""
    words = pc.dictionary_encode(texts.fill_null(""))
    codes = []
    for word in words.dictionary.to_pylist():
        if (part := PARTS.get(word.strip().lower())) is None:
            raise ShoalError(path, f"split {word!r}; it is train, val or test, or nothing")
        codes.append(part)
    return np.array(codes, dtype=np.int8)[words.indices.to_numpy()]
