"""Labels that are names, or numbers with gaps: classes from 0, and what each class is called."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.storage.errors import ShoalError

Names = tuple[str, ...]


def coded_labels(values: np.ndarray, where: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Class of every item, int64 `[items]`, -1 is unlabelled; and the name of every class, texts `[C]`.

    Values are texts, or None. Numbers are in the order of their size, names in that of their letters; -1 and what is
    empty is no label. Numbers 0 … C-1 without a gap are the classes themselves, and have no names. Raises ShoalError:
    no item has a label.
    """
    texts = np.array(["" if value is None else str(value) for value in values])
    distinct, place = np.unique(texts, return_inverse=True)
    numbers = [_whole(text) for text in distinct]
    keys: list[Any]
    if all(number is not None or not text for number, text in zip(numbers, distinct)):
        keys = [None if number is None or number == -1 else number for number in numbers]
    else:
        keys = [str(text) or None for text in distinct]
    named = sorted({key for key in keys if key is not None})
    if not named:
        raise ShoalError(where, "no node has a label; there is nothing to learn")
    class_of = {key: number for number, key in enumerate(named)}
    y = np.array([-1 if key is None else class_of[key] for key in keys], dtype=np.int64)[place]
    return y, None if named == list(range(len(named))) else np.array([str(key) for key in named])


def joined_labels(
    labels: Sequence[np.ndarray], names: Sequence[Names | None], graphs: Sequence[str]
) -> tuple[list[np.ndarray], Names | None]:
    """Joined labels `[items]` of graphs: equal names are one class; without names, equal numbers.

    Raises ShoalError: classes of some have names, and those of others only numbers.
    """
    if all(own is None for own in names):
        return list(labels), None
    for own, graph in zip(names, graphs):
        if own is None:
            raise ShoalError(
                "data.dataset", f"labels of {graph} are numbers and those of others names; use names in all"
            )
    found = [own for own in names if own is not None]
    union = found[0] if len(set(found)) == 1 else tuple(sorted({name for own in found for name in own}))
    place = {name: number for number, name in enumerate(union)}
    return [
        np.append([place[name] for name in own], -1)[label].astype(np.int64) for own, label in zip(found, labels)
    ], union


def _whole(text: str) -> int | None:
    """The whole number that a text is; None: it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
