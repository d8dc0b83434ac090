"""Combinations of a study on a grid of two keys with numbers, a panel for each combination of the others.

A cell has the score, or the difference to a reference at the same settings, paired by seeds, with its interval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

import numpy as np

from shoal.engine.config.effects import without_effect
from shoal.study.groups import Group, baseline_of, interval_95, list_varied, paired_differences
from shoal.study.main_score import MainScore
from shoal.study.plain_names import METHOD, MODEL

# A panel with fewer cells says less than lines. Of a grid at least this share of cells must be there.
FEWEST_CELLS, FILLED = 6, 0.6
SAME = 1e-9


@dataclass(frozen=True)
class Axis:
    """A key with numbers as an axis of a grid.

    Attributes:
        values: Its values as texts, ascending; before them that of `switch` without which the key has no effect.
        switch: A key with one value where this key has an effect, and another one where it has none; empty: none.
    """

    key: str
    values: tuple[str, ...]
    switch: str = ""

    def place(self, group: Group) -> int | None:
        """Returns the place of a combination; None: it has none."""
        value = group.columns.get(self.key, group.columns.get(self.switch, ""))
        return self.values.index(value) if value in self.values else None


@dataclass(frozen=True)
class Cells:
    """A panel: means and half of their 95 % intervals, in percent, float64 `[rows, columns]`; NaN: there is none."""

    middle: np.ndarray
    half: np.ndarray


@dataclass(frozen=True)
class Grid:
    """Panels by title, with what their rows and columns are; `reference` has keys and values: cells are differences."""

    rows: Axis
    columns: Axis
    panels: dict[str, Cells]
    reference: Mapping[str, str]


def numbers_in(values: Sequence[str]) -> set[float]:
    """Reads texts as numbers; none if one of them is no number."""
    try:
        return {float(value) for value in values}
    except ValueError:
        return set()


def make_grid(
    groups: Sequence[Group],
    main: MainScore,
    keys: Sequence[str],
    reference: Mapping[str, str],
    label: Callable[[Group, Sequence[str]], str],
) -> Grid | None:
    """Makes the grid of the first two of some keys that combinations fill; None if no two do.

    Args:
        keys: Those with numbers, in the order in which they are tried; the one with more values has the columns.
        reference: Keys and values of combinations that others are compared with, where both are there; else cells are
            scores.
        label: Names a combination by some of its keys.
    """
    # A sweep has a value of each axis in all of its runs, of keys without effect, too.
    groups = [replace(group, columns=_with_effect(group.columns)) for group in groups]
    for pair in combinations(keys, 2):
        rows, columns = sorted((_make_axis(groups, key) for key in pair), key=lambda axis: len(axis.values))
        compared = _panels(groups, main, rows, columns, reference, label) if reference else {}
        panels = compared or _panels(groups, main, rows, columns, {}, label)
        filled = max((int(np.isfinite(cells.middle).sum()) for cells in panels.values()), default=0)
        if filled >= max(FEWEST_CELLS, FILLED * len(rows.values) * len(columns.values)):
            return Grid(rows, columns, panels, reference if compared else {})
    return None


def _with_effect(columns: dict[str, str]) -> dict[str, str]:
    idle = without_effect(columns)
    return {key: value for key, value in columns.items() if key not in idle}


def _make_axis(groups: Sequence[Group], key: str) -> Axis:
    there = [group for group in groups if key in group.columns]
    values = sorted(dict.fromkeys(group.columns[key] for group in there), key=float)
    without = [group for group in groups if key not in group.columns]
    for other in list_varied(groups) if without else ():
        on, off = ({group.columns.get(other) for group in several} for several in (there, without))
        (value,) = off if len(off) == 1 else (None,)
        if other not in (*METHOD, *MODEL) and len(on) == 1 and value is not None and value not in {*on, *values}:
            return Axis(key, (value, *values), other)
    return Axis(key, tuple(values))


def _panels(
    groups: Sequence[Group],
    main: MainScore,
    rows: Axis,
    columns: Axis,
    reference: Mapping[str, str],
    label: Callable[[Group, Sequence[str]], str],
) -> dict[str, Cells]:
    """Returns the panels with a cell or more that says something: none in which each is the reference itself."""
    shown = {rows.key, rows.switch, columns.key, columns.switch}
    others = [key for key in list_varied(groups) if key not in shown]
    panels, says = dict[str, Cells](), set[str]()
    for group in groups:
        row, column = rows.place(group), columns.place(group)
        base = baseline_of(group, groups, reference) if reference else None
        if row is None or column is None or (reference and base is None):
            continue
        # A reference that is on an axis is a cell of its own, which differs from itself by nothing.
        values = _compare(group, base, main) if base is not None else main.values(group)
        if not values:
            continue
        title = label(group, others)
        size = (len(rows.values), len(columns.values))
        cells = panels.setdefault(title, Cells(np.full(size, np.nan), np.full(size, np.nan)))
        cells.middle[row, column] = 100 * fmean(values)
        # Differences that are equal but for last bits have no interval.
        if (half := interval_95(values)) is not None and half > SAME:
            cells.half[row, column] = 100 * half
        if base is not group:
            says.add(title)
    return {title: cells for title, cells in panels.items() if title in says}


def _compare(group: Group, base: Group, main: MainScore) -> list[float]:
    return list(paired_differences(group, base, main.figure(group), main.figure(base)).values())
