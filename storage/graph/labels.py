"""Labels as users write them: what is none, which are one class, and what each class is called."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from shoal.storage.errors import ShoalError

Names = tuple[str, ...]

# These are no label: -1, nothing, and what `pandas.read_csv` takes for a missing value.
MISSING = {"", "-1", "-1.0", "NaN", "nan", "-NaN", "-nan", "NA", "N/A", "n/a", "<NA>", "#NA", "#N/A", "#N/A N/A", "NaT"}
MISSING |= {"NULL", "null", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
# Whole numbers as they are usually written, in a column of floats, too; others, as 007 or 1e2, are codes.
WHOLE = re.compile(r"(0|-?[1-9][0-9]*)(\.0*)?")
NUMBER = re.compile(r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
# Few enough for any number of items, and more than any graph that has ever been published.
ALWAYS, MOST = 1024, 1 << 17
MEASURED = "a measured number; labels are classes 0 … C-1: for regression set target to regression"
SEVERAL = "give one class each, or set target to multilabel or regression"
NEGATIVE = "which is no class; a label is a whole number from 0 or a name, and -1 is none"


def coded_labels(values: Any, where: str) -> tuple[np.ndarray, Names | None]:
    """Class of every item, int64 `[items]`, and what the classes are called, C texts; every class has an item.

    NaN, None and `MISSING` are no label. Whole numbers 0 … C-1 without a gap are the classes themselves, and have no
    names. Others without a gap, such as 1 … 4, are counted from the least; those with gaps are numbered as they first
    occur, as if they had been written 0, 1, …; 1.0 is 1. Where one label is no whole number, all are names, compared as
    they are written and in the order of their letters.

    Values are an array of NumPy, SciPy or Arrow: `[items]` or `[items, 1]` numbers, truth values, texts, bytes, objects
    or categories; or `[items, C]` of zeros with a one in the column of the class. A ShoalError names `where`: a label
    is measured, negative or of several classes, or two differ in blanks alone.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _of_arrow(values, where)
    values = one_column(values, where)
    if values.dtype.kind in "biuf":
        return _of_numbers(values, where)
    number_of: dict[str, int] = {}
    place = [number_of.setdefault(_text(value, where), len(number_of)) for value in values.tolist()]
    return _of_texts(number_of, np.array(place, dtype=np.int64), where)


def coded_together(columns: Sequence[Any], where: Sequence[str]) -> tuple[list[np.ndarray], Names | None]:
    """Codes the items of several graphs as `coded_labels` does; equal labels are one class.

    A ShoalError names the graph with a wrong label, or with another number of columns; else the first and the last.
    """
    wide = [
        (values.shape[1], place) for values, place in zip(columns, where) if values.ndim == 2 and values.shape[1] > 1
    ]
    for width, place in wide:
        if width != wide[0][0]:
            raise ShoalError(place, f"expected {wide[0][0]} columns, one a class, as {wide[0][1]} has, got {width}")
    arrays = [one_column(values, place) for values, place in zip(columns, where)]
    if all(array.dtype.kind in "biuf" for array in arrays):
        together = np.concatenate(arrays)
    else:
        together = np.array([value for array in arrays for value in array.tolist()], dtype=object)
    try:
        y, names = coded_labels(together, f"{where[0]} to {where[-1]}")
    except ShoalError:
        for array, place in zip(arrays, where):
            coded_labels(array, place)
        raise
    ends = np.cumsum([len(array) for array in arrays])
    return np.split(y, ends[:-1]), names


def one_column(values: Any, where: str) -> np.ndarray:
    """Returns labels of NumPy or SciPy, `[items]`, `[items, 1]` or with a column a class, as `[items]`, not coded.

    Raises ShoalError: an item has several labels, or they are neither numbers nor texts.
    """
    values = values.toarray() if sp.issparse(values) else np.asarray(values)
    if values.ndim == 2:
        values = values[:, 0] if values.shape[1] == 1 else _of_columns(values, where)
    if values.dtype.kind not in "biufUSOT" or values.ndim != 1:
        raise ShoalError(where, f"labels are numbers or texts, one an item, found {values.dtype} {list(values.shape)}")
    return values


def _of_arrow(values: Any, where: str) -> tuple[np.ndarray, Names | None]:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_boolean(values.type) or "string" in str(values.type):
        values = values.cast(pa.large_string())
    kind = values.type
    if pa.types.is_nested(kind):
        raise ShoalError(where, f"labels are numbers or texts, one an item, found {kind}")
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and not values.null_count):
        return _of_numbers(np.asarray(values), where)
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    texts = pc.dictionary_encode(values, null_encoding="encode")
    return _of_texts([_text(value, where) for value in texts.dictionary.to_pylist()], texts.indices.to_numpy(), where)


def _of_columns(values: np.ndarray, where: str) -> np.ndarray:
    """Returns the class of every item, from a column a class; -1 for a row of zeros."""
    is_one = values == 1
    several = is_one.sum(1) > 1
    if several.any() or not (is_one | (values == 0)).all():
        fault = f"row {int(several.argmax())} is of several classes" if several.any() else "not all are 0 or 1"
        raise ShoalError(where, f"y is {list(values.shape)}, {fault}; {SEVERAL}")
    return np.where(is_one.any(1), is_one.argmax(1), -1)


def _text(value: Any, where: str) -> str:
    """Returns a label as it is written; of an object that holds one number, that."""
    if hasattr(value, "item") and np.shape(value) in ((), (1,)):
        value = value.item()
    if np.ndim(value) or isinstance(value, dict | set):
        raise ShoalError(where, f"{value!r} is no label; give one class each")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, bool | float) and float(value).is_integer():
        _refuse_inexact(np.array([float(value)]), where)
        return str(int(value))
    return str(value)


def _of_numbers(given: np.ndarray, where: str) -> tuple[np.ndarray, Names | None]:
    """Does the work of `coded_labels` for truth values, integers or floats `[items]`."""
    kind, values = given.dtype, given
    if kind.kind == "b":
        values = given.astype(np.int8)
    elif kind.kind == "u" and kind.itemsize > 1:
        _refuse(given == np.iinfo(kind).max, given, f"which is -1 as {kind}; write y as int64", where)
    elif kind.kind == "f":
        nothing = np.isnan(given)
        _refuse(~nothing & (given != np.floor(given)), given, MEASURED, where)
        _refuse_inexact(given, where)
        values = np.where(nothing, -1, given).astype(np.int64)
    _refuse(values < -1, given, NEGATIVE, where)
    labels = values[values >= 0]
    if not len(labels):
        return np.full(len(values), -1), None
    if labels.max() < MOST and np.bincount(labels.astype(np.int64)).all():
        return values.astype(np.int64), None
    present, first = np.unique(labels, return_index=True)
    order = np.arange(len(present)) if _without_gap(present) else np.argsort(first)
    place = np.argsort(order)[np.searchsorted(present, labels)]
    y = np.full(len(values), -1)
    y[values >= 0] = place
    return y, _names(present[order].tolist(), len(labels), bool((given == -1).any()), where)


def _of_texts(distinct: Iterable[str], place: np.ndarray, where: str) -> tuple[np.ndarray, Names | None]:
    """Does the work of `coded_labels` for the texts that occur, and the number of every item's text `[items]`."""
    given = list(distinct)
    texts = [text.strip() for text in given]
    labels = sorted(set(texts) - MISSING)
    key_of: dict[str, Any] = {text: text for text in labels}
    if all(WHOLE.fullmatch(text) for text in labels):
        key_of = {text: int(text.partition(".")[0]) for text in labels}
    else:
        _require_names(labels, given, where)
    classes = sorted(set(key_of.values()))
    are_classes = classes == list(range(len(classes)))
    if classes and isinstance(classes[0], int) and not are_classes:
        if classes[0] < 0:
            raise ShoalError(where, f"label {classes[0]}, {NEGATIVE}")
        if not _without_gap(classes):
            classes = list(dict.fromkeys(key_of[text] for text in texts if text in key_of))
    number_of = {key: number for number, key in enumerate(classes)}
    y = np.array([number_of[key_of[text]] if text in key_of else -1 for text in texts], dtype=np.int64)[place]
    if are_classes:
        return y, None
    return y, _names(classes, int((y >= 0).sum()), not {"-1", "-1.0"}.isdisjoint(texts), where)


def _without_gap(ascending: Sequence[int] | np.ndarray) -> bool:
    return bool(ascending[-1] - ascending[0] == len(ascending) - 1)


def _require_names(known: Sequence[str], given: Sequence[str], where: str) -> None:
    """Raises ShoalError: labels are measured numbers, or two of those given differ in blanks around them alone."""
    if all(NUMBER.fullmatch(text) for text in known):
        for text in known:
            if not float(text.replace(",", ".")).is_integer():
                raise ShoalError(where, f"label {text} is {MEASURED}")
    given_as: dict[str, str] = {}
    for text in given:
        if given_as.setdefault(text.strip(), text) != text and text.strip() not in MISSING:
            raise ShoalError(where, f"labels {given_as[text.strip()]!r} and {text!r} differ in blanks alone; write one")


def _names(classes: Sequence[Any], labelled: int, minus: bool, where: str) -> Names:
    """Names classes, in their order. `minus`: -1 occurs, too.

    Raises ShoalError: There are too many to learn, or -1 and 1 are the two classes.
    """
    if len(classes) > min(max(ALWAYS, labelled // 2), MOST):
        raise ShoalError(
            where, f"{len(classes)} different labels of {labelled} items; a label is a class that many items share"
        )
    if minus and len(classes) == 1 and str(classes[0]) in ("1", "+1"):
        raise ShoalError(where, "labels are 1 and -1, and -1 is no label; write 1 and 0")
    return tuple(str(key) for key in classes)


def _refuse(fault: np.ndarray, values: np.ndarray, reason: str, where: str) -> None:
    """Raises ShoalError: there is a fault; names the first row with one."""
    if fault.any():
        row = int(fault.argmax())
        raise ShoalError(where, f"row {row} is {values[row]}, {reason}")


def _refuse_inexact(values: np.ndarray, where: str) -> None:
    """Raises ShoalError: a float is so large that whole numbers beside it are no floats."""
    last = 2 ** (np.finfo(values.dtype).nmant + 1)
    _refuse(np.abs(values) > last, values, f"and {values.dtype} is exact up to {last}; write integers or texts", where)


def joined_labels(
    labels: Sequence[np.ndarray], names: Sequence[Names | None], classes: Sequence[int], graphs: Sequence[str]
) -> tuple[list[np.ndarray], int, Names | None]:
    """Joins labels `[items]` of graphs, and gives the number and names of all classes; equal ones are one class.

    Raises ShoalError: classes of some have names, and those of others only numbers.
    """
    if all(texts is None for texts in names):
        return list(labels), max(classes), None
    names_of = [tuple(map(str, range(count))) if texts is None else texts for texts, count in zip(names, classes)]
    union: Sequence[str] = (
        names_of[0] if len(set(names_of)) == 1 else sorted({name for texts in names_of for name in texts})
    )
    if all(name.isdecimal() for name in union):
        union = sorted(union, key=int)
    for texts, count, graph in zip(names, classes, graphs):
        if texts is None and count and not all(name.isdecimal() for name in union):
            raise ShoalError(
                "data.dataset", f"labels of {graph} are numbers and those of others names; use names in all"
            )
    place = {name: number for number, name in enumerate(union)}
    together = [
        np.append([place[name] for name in texts], -1)[label].astype(np.int64) for texts, label in zip(names_of, labels)
    ]
    numbered = list(place) == [str(number) for number in place.values()]
    return together, len(place), None if numbered else tuple(union)
