"""Runs of a study by what they share: repetitions of one combination, summed up and compared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Literal

from shoal.engine.config.names import shown_name
from shoal.study.study import Selection, is_seed

Statistic = Literal["mean", "median"]


@dataclass(frozen=True)
class Row:
    """A run of a study: its folder, values of keys that vary, seeds among them, and, if it is finished, its figures.

    Its state is `finished`, `failed` with an error, `waiting`, or `not chosen`. A key without effect in it is missing.
    `one_model` says who took part, if its method has one model; see `RunPlan.one_model`.
    """

    columns: dict[str, str]
    figures: dict[str, float] = field(default_factory=dict)
    run: str = ""
    state: str = "finished"
    error: str = ""
    one_model: str = ""

    @property
    def path(self) -> Path:
        """Its folder."""
        return Path(self.run)

    @property
    def label(self) -> str:
        """Its values, in a line."""
        return ", ".join(f"{key} {value}" for key, value in self.columns.items())


Key = tuple[tuple[str, str], ...]


def varied_in(rows: Sequence[Row] | Sequence[Selection]) -> dict[str, list[str]]:
    """Returns the keys in which runs differ, seeds among them, with their values in order."""
    keys = dict.fromkeys(key for row in rows for key in row.columns)
    values = {key: dict.fromkeys(row.columns.get(key) for row in rows) for key in keys}
    return {key: [v for v in several if v is not None] for key, several in values.items() if len(several) > 1}


def short_key(key: str, keys: Iterable[str]) -> str:
    """Returns a key as short as it is clear among others: without its section, and `algorithm.name` without `name`."""
    names = {other: other.removesuffix(".name").rpartition(".")[2] for other in keys}
    return names[key] if list(names.values()).count(names[key]) == 1 else key


def others_of(row: Row, key: str = "") -> Key:
    """Returns the columns of a run but seeds and one key."""
    return tuple((name, value) for name, value in row.columns.items() if name != key and not is_seed(name))


def label_of(row: Row, varied: Sequence[str]) -> str:
    """Returns the values of a run, of the keys that vary, in a line."""
    keys = [key for key in varied if key in row.columns]
    return ", ".join(f"{short_key(key, varied)} {shown_name(row.columns[key])}" for key in keys)


@dataclass(frozen=True)
class Group:
    """Repetitions of one combination: the values that they share, without seeds, and the runs in their order."""

    columns: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def finished(self) -> int:
        """Number of runs with figures."""
        return sum(bool(row.figures) for row in self.rows)

    @property
    def one_model(self) -> str:
        """Says who took part, if its method has one model; empty without a finished run."""
        return next((row.one_model for row in self.rows if row.figures), "")

    def values(self, figure: str) -> list[float]:
        """Returns a figure of every run that has it."""
        return [row.figures[figure] for row in self.rows if figure in row.figures]


@dataclass(frozen=True)
class Spread:
    """A figure over repetitions: mean and sample deviation, or median and quartiles; no spread of a single run."""

    middle: float
    low: float | None
    high: float | None


def group_runs(rows: Sequence[Row]) -> list[Group]:
    """Groups runs that differ in seeds alone, in the order of their first runs."""
    members_of: dict[Key, list[Row]] = {}
    for row in rows:
        members_of.setdefault(others_of(row), []).append(row)
    return [Group(dict(key), tuple(members)) for key, members in members_of.items()]


def list_varied(groups: Sequence[Group]) -> list[str]:
    """Returns the keys in which groups differ, in the order of their first mention."""
    keys = list(dict.fromkeys(key for group in groups for key in group.columns))
    return [key for key in keys if len({group.columns.get(key) for group in groups}) > 1]


def spread_of(values: Sequence[float], statistic: Statistic) -> Spread | None:
    """Computes the mean and the sample standard deviation, or the median and quartiles; None without values."""
    if not values:
        return None
    if statistic == "mean":
        deviation = stdev(values) if len(values) > 1 else None
        return Spread(fmean(values), deviation, deviation)
    if len(values) == 1:
        return Spread(values[0], None, None)
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), low, high)


def baseline_of(group: Group, groups: Sequence[Group], baseline: Mapping[str, str]) -> Group | None:
    """Finds the group to compare with: of the columns that both have, it differs in those of the baseline alone."""
    # A method has columns for its options, which other methods lack.
    sections = {key.partition(".")[0] for key in baseline}
    for other in groups:
        others = {key for key in group.columns.keys() | other.columns.keys() if key.partition(".")[0] not in sections}
        if all(other.columns.get(key) == value for key, value in baseline.items()) and all(
            other.columns.get(key) == group.columns.get(key) for key in others
        ):
            return other
    return None


def differences(group: Group, other: Group, figure: str) -> list[float]:
    """Returns a figure of a group over that of another one, of runs with the same seeds."""
    return [mine - others for mine, others in _pairs(group, other, figure)]


def paired_differences(group: Group, other: Group, figure: str, of_other: str) -> dict[Key, float]:
    """Returns a figure of a group over one of another group, by the seeds that both have."""
    mine, others = _by_seeds(group, figure), _by_seeds(other, of_other)
    return {seeds: mine[seeds] - others[seeds] for seeds in mine if seeds in others}


def interval_95(values: Sequence[float]) -> float | None:
    """Computes half the interval of 95 % of a mean by Student's t; None with fewer than two values, or equal ones."""
    if len(values) < 2 or stdev(values) == 0:
        return None
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5)


def paired_p(group: Group, other: Group, figure: str) -> float | None:
    """Computes the two-sided p of the paired t-test over runs with the same seeds.

    None with fewer than two pairs, or if all pairs differ by the same amount: the test then has no variance.
    """
    pairs = _pairs(group, other, figure)
    if len(pairs) < 2 or stdev(mine - others for mine, others in pairs) == 0:
        return None
    # SciPy's statistics take a second to import, so only a table that needs them does.
    from scipy.stats import ttest_rel

    return float(ttest_rel(*zip(*pairs)).pvalue)


def _pairs(group: Group, other: Group, figure: str) -> list[tuple[float, float]]:
    mine, others = (_by_seeds(members, figure) for members in (group, other))
    return [(mine[seeds], others[seeds]) for seeds in mine if seeds in others]


def _by_seeds(group: Group, figure: str) -> dict[Key, float]:
    rows = [row for row in group.rows if figure in row.figures]
    return {tuple(item for item in row.columns.items() if is_seed(item[0])): row.figures[figure] for row in rows}
