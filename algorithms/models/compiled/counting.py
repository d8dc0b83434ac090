"""Counts of what a model predicts for rows of a client, by passes over its data and a loop over the logits.

Axes: M rows of all parts, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numba
import numpy as np
from torch import Tensor

from shoal.algorithms.models.compiled.kept_by_view import KeptByView
from shoal.algorithms.models.compiled.memory import numbers_at
from shoal.algorithms.models.compiled.operations import Base, execute
from shoal.algorithms.models.compiled.passes import Pass, Passes, addresses, parts_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.storage.shards.view import View


class Rows(NamedTuple):
    """Rows of logits: their places among these and their classes, int64 `[M]`, and where each part ends, `[parts]`."""

    place: np.ndarray
    label: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor]]) -> "Rows":
        """Joins places and classes by part."""
        places, labels = zip(*((place.numpy(), label.numpy()) for place, label in parts))
        return cls(np.concatenate(places), np.concatenate(labels), np.cumsum([len(place) for place in places]))

    @classmethod
    def of_part(cls, part: int, label: Tensor) -> "Rows":
        """Takes all rows, with their classes, as those of one part; parts before it have none."""
        return cls(np.arange(len(label)), label.numpy(), np.array([0] * part + [len(label)]))


# Gives inputs of a client, and the rows that are counted of the logits for each.
Ask = Callable[[], Sequence[tuple[Inputs, Rows]]]


class _Question(NamedTuple):
    """A pass, its inputs, the bases of its operations, and the rows of its logits that are counted."""

    compiled: Pass
    inputs: Sequence[Any]
    bases: np.ndarray
    rows: Rows


Questions = KeptByView[list[_Question] | None]
_COUNTERS: WeakKeyDictionary[Passes, Questions] = WeakKeyDictionary()


def _find_pass(passes: Passes, inputs: Inputs, rows: Rows) -> _Question | None:
    compiled, arrays = passes.of(inputs, embeds=False), parts_of(inputs)
    if compiled is None or arrays is None:
        return None
    return _Question(compiled, arrays, addresses(arrays, False), rows)


def count_in_passes(passes: Passes, data: View, w: Tensor, ask: Ask, counts: np.ndarray) -> int | None:
    """Counts rows of a client by a model with parameters `[P]`, see `count_logits`; None: it has no passes for that.

    `ask` sets the model to evaluation, and gives inputs, with the rows of the logits of each that are counted; both
    depend on the client alone.
    """

    def find() -> tuple[list[_Question] | None, Sequence[Any]]:
        asked = [_find_pass(passes, of_parts, rows) for of_parts, rows in ask()]
        questions = [question for question in asked if question is not None and question.compiled.logits[1] == classes]
        inputs = [part for question in questions for part in question.inputs]
        return questions if len(questions) == len(asked) else None, inputs

    classes = counts.shape[2]
    kept = _COUNTERS.setdefault(passes, KeptByView()).get(data, find)
    for compiled, _, bases, rows in kept or ():
        room = passes.room(compiled.work)
        at = room.memory.data_ptr()
        bases[Base.WEIGHTS], bases[Base.WORK] = w.data_ptr(), at
        execute(*compiled.forward, bases)
        if (part := count_logits(at + compiled.at, compiled.logits[1], *rows, counts)) >= 0:
            return int(part)
    return None if kept is None else -1


@numba.njit(cache=True, nogil=True)
def count_logits(
    logits_at: int, classes: int, place: np.ndarray, label: np.ndarray, end: np.ndarray, counts: np.ndarray
) -> int:
    """Adds to `counts`, int64 `[parts, 3, C]`, rows of the class, those predicted so, and those rightly so.

    A row's class is that of its largest logit, the first one of several. Returns the first part with a row whose
    largest logit is not finite, where NaN counts as the largest, or else -1.
    """
    first = 0
    for part in range(len(end)):
        for row in range(first, end[part]):
            logits = numbers_at(logits_at + 4 * classes * place[row], classes)
            largest, winner = -np.float32(np.inf), 0
            for c in range(classes):
                if not logits[c] <= largest:
                    largest, winner = logits[c], c
                    if np.isnan(largest):
                        break
            if not np.isfinite(largest):
                return part
            counts[part, 0, label[row]] += 1
            counts[part, 1, winner] += 1
            if winner == label[row]:
                counts[part, 2, winner] += 1
        first = end[part]
    return -1
