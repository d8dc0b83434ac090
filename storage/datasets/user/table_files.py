"""A table on disk, CSV or Parquet, a file or a folder of parts: its columns by name, its rows in batches of numbers."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from shoal.storage.datasets.sources.source import reading
from shoal.storage.errors import ShoalError

PARQUET = ".parquet"
KINDS = (
    *(f".{text}{packed}" for text in ("csv", "tsv") for packed in ("", ".gz", ".bz2", ".zst", ".lz4")),
    PARQUET,
)
ADVICE = "write it again in UTF-8, with a header and one value in every column"
SEPARATORS = (",", ";", "\t", "|")
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
TEXTS = (pa.types.is_string, pa.types.is_large_string)
NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
# Folders of these hold files that are no part of the table any more.
VERSIONED = ("_delta_log", ".hoodie")
BLOCK_BYTES, BATCH_ROWS = 1 << 24, 1 << 17


class Rows(NamedTuple):
    """Rows of a table: the file they are in, the number of the first one there, and their columns."""

    file: Path
    first: int
    batch: pa.RecordBatch


def table_of(folder: Path, name: str) -> Path | None:
    """The table `name` in a folder, of any kind, a file or a folder of parts; None if there is none.

    Raises ShoalError: there are two, or it is of a kind that is not read.
    """
    found = [path for kind in KINDS if (path := folder / f"{name}{kind}").exists()]
    if len(found) > 1:
        raise ShoalError(found[0], f"there is also {found[1].name}; keep one of the two")
    others = sorted(path for path in folder.glob(f"{name}*") if path.name.partition(".")[0] == name)
    if others and not found and not (folder / "edge_index.npy").exists():
        raise ShoalError(others[0], f"expected {name}.csv or {name}.parquet; write the table as one of these")
    return found[0] if found else None


def parts_of(table: Path) -> list[Path]:
    """The files of a table, one or its parts in the order of their names; empty, hidden and `_` ones are no parts."""
    if not table.is_dir():
        return [table]
    if log := next((name for name in VERSIONED if (table / name).exists()), None):
        raise ShoalError(table, f"has {log}, so that not every file is valid; write the table as plain Parquet")
    parts = sorted(path for path in table.iterdir() if not path.name.startswith((".", "_")))
    for part in parts:
        if part.is_dir():
            raise ShoalError(part, "a folder inside of a table; write the table again, not divided by a column")
    parts = [part for part in parts if part.stat().st_size]
    if not parts:
        raise ShoalError(table, "has no part of a table; write it again")
    return parts


def open_table(table: Path, known: Sequence[str]) -> tuple[list[str], Iterator[Rows]]:
    """The columns of a table, each once, and its rows; of CSV all are texts, of which an empty one is null.

    Names are without spaces around them, and those of `known` in lower case. Raises ShoalError: a file has no header,
    a name is there twice, or parts have different columns.
    """
    is_parquet = table.suffix == PARQUET
    parts = parts_of(table)
    # Columns of a part, and how its lines are separated.
    heads = [(_parquet_names(part), "") if is_parquet else _header(part, known) for part in parts]
    columns = [[_named(name, known) for name in names] for names, _ in heads]
    for part, own in zip(parts, columns):
        if len(set(own)) < len(own):
            twice = next(name for name in own if own.count(name) > 1)
            raise ShoalError(part, f"column {twice!r} is there twice; give each once")
        if differing := sorted({*own} ^ {*columns[0]}):
            raise ShoalError(part, f"column {differing[0]!r} is in only one of this part and {parts[0].name}")

    def rows() -> Iterator[Rows]:
        for part, own, (names, separator) in zip(parts, columns, heads):
            first = 0
            with reading(part, "write it again as Parquet" if is_parquet else ADVICE):
                batches = pq.ParquetFile(part).iter_batches(BATCH_ROWS) if is_parquet else _csv(part, names, separator)
            while (batch := _next(part, batches)) is not None:
                if batch.num_rows:
                    yield Rows(part, first, batch.rename_columns(own))
                first += batch.num_rows

    return columns[0], rows()


def numbers(rows: Rows, name: str, what: str) -> np.ndarray:
    """A column as numbers, float32 `[n, width]`; it is `what`, and lists of one length are as many columns.

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
    values = _parsed(column) if any(is_kind(column.type) for is_kind in TEXTS) else column
    if isinstance(values, int):
        wrong = values
    elif values.null_count:
        raise fault(pc.is_null(values).index(True).as_py() // width, "has no value; give it one")
    else:
        # A value too large for float32 becomes infinity.
        with np.errstate(over="ignore"):
            found = np.asarray(values.to_numpy(zero_copy_only=False)).astype(np.float32)
        if np.isfinite(found).all():
            return found.reshape(-1, width)
        wrong = int((~np.isfinite(found)).argmax())
    word = str(column[wrong].as_py())
    decimal = "," in word and _is_number(word.replace(",", ".", 1))
    way_out = "write decimals with a point" if decimal else "give a finite one, or take the column out"
    raise fault(wrong // width, f"is {word[:40]!r}: {way_out}")


def _parsed(texts: pa.Array) -> pa.Array | int:
    """Texts as numbers, or as truth values if they are True and False; else the first row that is neither."""
    trimmed = pc.utf8_trim_whitespace(texts)
    for kind in (pa.float32(), pa.bool_()):
        try:
            return trimmed.cast(kind)
        except pa.ArrowInvalid:
            continue
    words = trimmed.to_pylist()
    # Where truth values stand among numbers, they are what is wrong.
    for fits in (lambda word: _is_number(word) or _is_truth(word), _is_number):
        for row, word in enumerate(words):
            if word is not None and not fits(word):
                return row
    return 0


def _is_truth(text: str) -> bool:
    return text.lower() in ("true", "false")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _named(name: str, known: Sequence[str]) -> str:
    name = name.strip()
    return name.lower() if name.lower() in known else name


def _parquet_names(part: Path) -> list[str]:
    with reading(part, "write it again as Parquet"):
        return list(pq.read_schema(part).names)


def _header(part: Path, known: Sequence[str]) -> tuple[list[str], str]:
    """The names in a CSV file's header, as they are written, and what separates them: a comma, if none is `known`."""
    with reading(part, ADVICE):
        # It is decompressed as the file's name says.
        with io.BufferedReader(pa.input_stream(str(part))) as lines:
            header = lines.readline(BLOCK_BYTES)
        found = {separator: _names(header, separator) for separator in SEPARATORS}
    fits = (by for by, names in found.items() if any(_named(name, known) in known for name in names))
    separator = next(fits, SEPARATORS[0])
    names = found[separator]
    if all(map(_is_number, names)):
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
