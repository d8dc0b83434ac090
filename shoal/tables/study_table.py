"""The table of a study: methods by row, settings or figures by column, spreads over seeds in cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shoal.engine.config.sizes import size
from shoal.engine.records.summary import OF_SAMPLES, OF_SOME, SAMPLED
from shoal.storage.errors import ShoalError
from shoal.storage.suggestions import did_you_mean, suggest
from shoal.study.constant_class import constant_of
from shoal.study.groups import (
    Group,
    Row,
    Spread,
    Statistic,
    baseline_of,
    differences,
    group_runs,
    list_varied,
    paired_p,
    spread_of,
)
from shoal.study.main_score import MainScore
from shoal.study.means import (
    MEANS,
    SCOPES,
    Mean,
    by_one_mean,
    comparable,
    is_of_sample,
    is_share,
    is_short,
    is_test,
    several_clients,
)
from shoal.study.plain_names import PlainNames
from shoal.study.untrained import note_untrained
from shoal.tables.text_table import TextTable

Ties = Literal["shown", "exact"]
Place = tuple[int, int]
METHOD = "algorithm"
# These sections choose the items that are scored, and the clients that hold them. Runs that differ in them are never
# compared.
OF_DATA = ("data", "partition", "task", "evaluation")
# So are runs under another attack, with other shares of clients, or with more privacy: these are settings.
SETTINGS = (*OF_DATA, "attack", "participation", "privacy")


def shared_keys(groups: Sequence[Group]) -> list[str]:
    """Returns the keys that groups must share to be compared: all that vary, but those of the method.

    A key with a single value for each method, such as a rate that validation chose, belongs to the method. If methods
    do not vary, all keys but those of the settings are compared.
    """
    keys = list_varied(groups)
    of_method = [key for key in keys if _section(key) == METHOD]
    shared = [key for key in keys if key not in of_method and (of_method or _section(key) in SETTINGS)]
    for key in [key for key in shared if _section(key) not in SETTINGS]:
        others = [*of_method, *(other for other in shared if other != key)]
        values = {tuple(group.columns.get(other) for other in others) for group in groups}
        if len(values) == len({tuple(group.columns.get(other) for other in (*others, key)) for group in groups}):
            shared.remove(key)
    return shared


def mark_best(
    values: Mapping[Place, float], equal: Callable[[float, float], bool], not_worse: Callable[[Place, Place], bool]
) -> tuple[list[Place], list[Place]]:
    """Returns the places of the best, and of the second best, of values that are compared; none if there is only one.

    The best are the highest and those that are equal to it or `not_worse(place, highest)`; the second best are the
    highest of the rest and those equal to it.
    """
    if len(values) < 2:
        return [], []
    top = max(values, key=values.__getitem__)
    best = [place for place, v in values.items() if equal(v, values[top]) or not_worse(place, top)]
    rest = {place: value for place, value in values.items() if place not in best}
    return best, [place for place, value in rest.items() if equal(value, max(rest.values()))]


def _section(key: str) -> str:
    return key.partition(".")[0]


# One score of two models stands in a table where some clients miss rounds.
PAIR = ("global.best.test", "deployed.best.test")
CONSTANT = "constant class"
# The number of visits that failed is shown if there are any.
LEFT_OUT = "left_out.visits"
# So many columns of one score fit a terminal beside the methods.
MOST_COLUMNS = 4


@dataclass(frozen=True)
class Layout:
    """The layout of a table.

    Attributes:
        figures: Names of figures; empty: the test score at best validation of deployed models, and of the server's
            model beside it where some clients miss rounds (see `MainScore`).
        rows: Keys that name a row, and `columns`, the key whose values are the columns; without both, of one figure
            methods are rows and a key of the settings is the columns (see `_pivot`).
        statistic: Mean ± sample standard deviation, or median [quartiles], over runs that differ in seeds alone.
        against: `NAME` or `KEY=VALUE,KEY=VALUE`: the method, or combination, of which each setting's cells show the
            differences, paired by seeds, with p of the paired t-test.
        mean: The mean over clients of scores with short names; None: see `by_one_mean`.
        ties: Values tie with the best or the second best if they are `shown` as the same number, or `exact`ly equal.
        not_worse: Level of the paired t-test over seeds; a value that is not worse by it is marked with the best.
        wide: Without figures, validation and test of every scope at best validation, and costs.
        labels: Display names of values, keys and figures.
        notes: Lines that stand below the table before its own.
    """

    figures: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    columns: str | None = None
    statistic: Statistic = "mean"
    against: str = ""
    mean: Mean | None = None
    ties: Ties = "shown"
    not_worse: float | None = None
    wide: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def table_of(rows: Sequence[Row], layout: Layout, title: str = "") -> TextTable:
    """Makes the table of the finished runs; marks the best and the second best of cells that may be compared."""
    read = _read_runs(rows, layout)
    if read is None:
        return TextTable(("runs",), (), 1, title=title, notes=("no run is finished",))
    keys, column, apart = _arrange(read, layout)
    table = _join(_cells(read.numbers.groups, keys, column, apart), keys, column, read, title)
    return replace(table, notes=(*layout.notes, *table.notes))


def long_table_of(rows: Sequence[Row], layout: Layout) -> TextTable:
    """Makes a table for other programs: a row for each combination and figure, keys and figures by their own names.

    Shares are between 0 and 1, and all numbers have all their digits.
    """
    read = _read_runs(rows, layout)
    if read is None:
        return TextTable(("runs",), (), 1)
    numbers, figures = read.numbers, read.figures
    keys = list_varied(numbers.groups)
    best, second = _marks([[group] * len(figures) for group in numbers.groups], figures, numbers, 0)
    spread = ("mean", "sd") if numbers.statistic == "mean" else ("median", "lower", "upper")
    compared = ("difference", *(f"difference_{name}" for name in spread[1:]), "p") if numbers.against else ()
    table = []
    for r, group in enumerate(numbers.groups):
        for c, figure in enumerate(figures):
            mark = "best" if (r, c) in best else "second" if (r, c) in second else ""
            row = [group.columns.get(key, "") for key in keys]
            row += [figure, numbers.mean if is_short(figure) else "", str(len(group.values(figure)))]
            row += _digits(numbers.spread(group, figure), len(spread))
            if compared:
                other = numbers.baseline(group, figure)
                apart = None if other is None else spread_of(differences(group, other, figure), numbers.statistic)
                p = None if other is None else paired_p(group, other, figure)
                row += [*_digits(apart, len(spread)), "" if p is None else repr(p)]
            table.append((*row, mark))
    heads = (*keys, "figure", "averaged", "runs", *spread, *compared, "mark")
    return TextTable(heads, tuple(table), len(keys) + 2)


def _digits(spread: Spread | None, count: int) -> list[str]:
    numbers = [None] * 3 if spread is None else [spread.middle, spread.low, spread.high]
    return ["" if value is None else repr(value) for value in numbers[:count]]


@dataclass(frozen=True)
class _Read:
    """The finished runs, and the figures and names that a layout asks for.

    `pair` is true for one score of two models, the server's and deployed ones.
    """

    numbers: "_Numbers"
    figures: tuple[str, ...]
    names: PlainNames
    left_out: bool
    pair: bool


def _read_runs(rows: Sequence[Row], layout: Layout) -> _Read | None:
    """Chooses runs and figures for a layout; None if no run is finished.

    Raises ShoalError: the layout names a figure, a key or a combination that no run has.
    """
    chosen, mean = by_one_mean([row for row in rows if row.state != "not chosen"], layout.mean)
    groups = [group for group in group_runs(chosen) if any(row.figures for row in group.rows)]
    if not groups:
        return None
    largest: dict[str, float] = {}
    for figures_of_run in (row.figures for group in groups for row in group.rows):
        largest.update({name: max(value, largest.get(name, value)) for name, value in figures_of_run.items()})
    pair = not layout.figures and not layout.wide and MainScore(groups).of_server and set(PAIR) <= largest.keys()
    figures = layout.figures or (PAIR if pair else _choose_figures(largest, layout.wide))
    for figure in figures:
        if figure not in largest:
            raise ShoalError(f"--figure {figure}", f"{_meant(figure, largest)}")
    names = PlainNames(groups, figures, layout.labels)
    against = read_against(layout.against, groups, names)
    all_keys = list(dict.fromkeys(key for group in groups for key in group.columns))
    for key in (*layout.rows, *([layout.columns] if layout.columns else []), *against):
        if key not in all_keys:
            raise ShoalError(key, f"runs do not differ in this key; they do in {', '.join(all_keys) or 'seeds alone'}")
    if against and not any(against.items() <= group.columns.items() for group in groups):
        raise ShoalError("--against", f"no finished runs have {_join_pairs(against)}")
    numbers = _Numbers(layout.statistic, against, groups, mean, layout.ties, layout.not_worse)
    return _Read(numbers, figures, names, bool(largest.get(LEFT_OUT)), pair)


def read_against(text: str, groups: Sequence[Group], names: PlainNames) -> dict[str, str]:
    """Reads keys and values of `KEY=VALUE,…`, or of a value or name alone. Raises ShoalError: not one key has it."""
    if not text or "=" in text:
        pairs = [part.partition("=") for part in text.split(",") if part]
        if wrong := next((key for key, equals, _ in pairs if not equals), None):
            raise ShoalError(f"--against {wrong}: has the form key=value, as in train.lr=0.1")
        return {key: value for key, _, value in pairs}
    keys = list_varied(groups)
    pairs_of = [(key, value) for key in keys for g in groups if (value := g.columns.get(key)) is not None]
    matches = {key: value for key, value in pairs_of if text in (value, names.value(key, value))}
    if not matches:
        values = ", ".join(dict.fromkeys(value for _, value in pairs_of)) or "seeds alone"
        raise ShoalError(f"--against {text}: no finished runs have it; there are {values}")
    if len(matches) > 1:
        key, value = next(iter(matches.items()))
        raise ShoalError(f"--against {text}: {' and '.join(matches)} have this value; give {key}={value}")
    return matches


def _arrange(read: _Read, layout: Layout) -> tuple[list[str], str | None, int]:
    """Chooses the keys that name a row, and the key that has the columns as values, if any.

    Counts, too, the first of the keys whose equal values are to stand together.
    """
    groups = read.numbers.groups
    if layout.rows or layout.columns or (len(read.figures) > 1 and not read.pair):
        return list(layout.rows) or [key for key in list_varied(groups) if key != layout.columns], layout.columns, 0
    return _pivot(groups)


def _pivot(groups: Sequence[Group]) -> tuple[list[str], str | None, int]:
    """Makes methods the rows, and the key of settings with most values, up to `MOST_COLUMNS`, the columns.

    A key that follows from that of the columns, such as the clients of a dataset, names no row.
    """
    settings = shared_keys(groups)
    of_method = [key for key in list_varied(groups) if key not in settings]
    count = {key: len({group.columns.get(key) for group in groups}) for key in settings}
    can = [key for key in settings if of_method and count[key] <= MOST_COLUMNS]
    if not can:
        return [*settings, *of_method], None, len(settings)
    column = max(can, key=count.__getitem__)
    apart = [
        key for key in settings if len({(g.columns.get(column), g.columns.get(key)) for g in groups}) > count[column]
    ]
    return [*apart, *of_method], column, len(apart)


def _meant(figure: str, known: Mapping[str, float]) -> str:
    """Says what a wrong name may mean: the test score that it begins, else a name that is like it; and all names."""
    short = [name for name in known if is_short(name)]
    begun = [name for name in short if name.startswith(f"{figure}.") and name.endswith("test")]
    if begun:
        return f"{suggest(begun[:1])}no run has it"
    return f"{did_you_mean(figure, known)}no run has it; there are {', '.join(short or list(known)[:12])}"


@dataclass(frozen=True)
class _Numbers:
    """A formatter that turns a figure of a group into a cell."""

    statistic: Statistic
    against: Mapping[str, str]
    groups: Sequence[Group]
    mean: str
    ties: Ties
    not_worse: float | None

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    def spread(self, group: Group | None, figure: str) -> Spread | None:
        return None if group is None else spread_of(group.values(figure), self.statistic)

    def of_sample(self, group: Group, figure: str) -> bool:
        return is_share(figure) and any(is_of_sample(figure, row.figures) for row in group.rows)

    def cell(self, group: Group | None, figure: str) -> str:
        spread = self.spread(group, figure)
        if group is None or spread is None:
            return "-"
        sampled = SAMPLED if self.of_sample(group, figure) else ""
        if not self.against or not is_share(figure):
            return self._format(spread, figure) + sampled
        other = self.baseline(group, figure)
        if other is group:
            return self._format(spread, figure) + sampled
        apart = None if other is None else spread_of(differences(group, other, figure), self.statistic)
        if other is None or apart is None:
            return "-"
        p = paired_p(group, other, figure)
        text = "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"
        return f"{self._format(apart, figure, '+')}{sampled} (p {text})"

    def baseline(self, group: Group, figure: str) -> Group | None:
        """Returns the group with which a share is compared."""
        return baseline_of(group, self.groups, self.against) if self.against and is_share(figure) else None

    def _format(self, spread: Spread, figure: str, sign: str = "") -> str:
        text = _number(spread.middle, figure, sign)
        if spread.low is None or spread.high is None or "bytes" in figure:
            return text
        if self.statistic == "mean":
            return f"{text} ± {_number(spread.low, figure)}"
        return f"{text} [{_number(spread.low, figure, sign)}, {_number(spread.high, figure, sign)}]"


def _cells(
    groups: Sequence[Group], keys: Sequence[str], column: str | None, apart: int
) -> dict[tuple[str, ...], dict[str, Group]]:
    """Arranges groups by the values of the row's keys and the value of the column's key.

    Rows with the same values of the first `apart` keys stand together.
    """
    cells: dict[tuple[str, ...], dict[str, Group]] = {}
    for group in groups:
        row = tuple(group.columns.get(key, "-") for key in keys)
        value = "" if column is None else group.columns.get(column, "")
        of_row = cells.setdefault(row, {})
        if value in of_row:
            shared = ", ".join(key for key in group.columns if of_row[value].columns.get(key) != group.columns[key])
            raise ShoalError("--rows", f"combinations that differ in {shared} would share a cell; name it, too")
        of_row[value] = group
    places = [list(dict.fromkeys(values)) for values in zip(*cells)][:apart]
    order = sorted(cells, key=lambda row: [of_key.index(value) for of_key, value in zip(places, row)])
    return {row: cells[row] for row in order}


def _join(
    cells: Mapping[tuple[str, ...], Mapping[str, Group]],
    keys: Sequence[str],
    column: str | None,
    read: _Read,
    title: str,
) -> TextTable:
    numbers, figures, names = read.numbers, read.figures, read.names
    values = list(dict.fromkeys(value for row in cells.values() for value in row))
    wanted = [(figure, value) for figure in figures for value in values]
    shown = {figure: figure for figure in figures}
    if len(figures) == 1:
        title = title or names.figure(figures[0])
        shown = {figures[0]: "" if column else names.figure(figures[0], short=True)}
    elif read.pair:
        title = title or f"{names.figure(figures[0], short=True)} at best validation"
        shown = {figure: figure.partition(".")[0] for figure in figures}
    heads = [" ".join(t for t in (names.value(column, value) if column else "", shown[f]) if t) for f, value in wanted]
    runs = {group.finished for row in cells.values() for group in row.values()}
    counted = len(runs) > 1
    rows, placed = [], list[list[Group | None]]()
    for row, by_value in cells.items():
        groups = [by_value.get(value) for _, value in wanted]
        count = ["/".join(str(group.finished) for group in by_value.values())] if counted else []
        named = (names.value(key, value) for key, value in zip(keys, row))
        rows.append((*named, *count, *(numbers.cell(g, figure) for g, (figure, _) in zip(groups, wanted))))
        placed.append(groups)
    constants = _constants(cells, wanted, read)
    if constants:
        rows.append((CONSTANT, *[""] * (len(keys) - 1 + counted), *constants))
        placed.append([None] * len(wanted))
    notes = _notes(read, runs) + ([f"{CONSTANT}: always the most frequent class"] if constants else [])
    best, second = _marks(placed, [figure for figure, _ in wanted], numbers, len(keys) + counted)
    above = (*(names.key(key) for key in keys), *(["runs"] if counted else []))
    return TextTable(
        (*above, *heads), tuple(rows), len(keys), best, title, tuple(notes), second, _describe_marks(read),
        names.key(column) if column else "",
    )  # fmt: skip


def _constants(
    cells: Mapping[tuple[str, ...], Mapping[str, Group]], wanted: Sequence[tuple[str, str]], read: _Read
) -> list[str]:
    """Returns the scores of the best constant class by column, if it is above all that marks compare in one.

    Else it returns nothing.
    """
    numbers, texts, wins = read.numbers, [], False
    keys = shared_keys(numbers.groups)
    if numbers.against or numbers.statistic != "mean":
        return []
    for figure, value in wanted:
        groups = [group for row in cells.values() if (group := row.get(value)) and group.values(figure)]
        constant = constant_of(groups, figure.partition(".")[0], numbers.mean) if is_test(figure) else None
        best: dict[tuple[str | None, ...], float] = {}
        for group in groups:
            shared, spread = tuple(group.columns.get(key) for key in keys), numbers.spread(group, figure)
            best[shared] = max(best.get(shared, 0.0), spread.middle if spread else 0.0)
        wins |= constant is not None and constant > min(best.values(), default=1.0)
        texts.append("-" if constant is None else _number(constant, figure))
    return texts if wins else []


def _marks(
    placed: Sequence[Sequence[Group | None]], figures: Sequence[str], numbers: _Numbers, first: int
) -> tuple[frozenset[Place], frozenset[Place]]:
    """Returns the places of the best and the second best of every share, wherever in the table; none of costs."""
    keys = shared_keys(numbers.groups)
    cells: dict[tuple[str, tuple[str | None, ...]], dict[Place, Group]] = {}
    for row, groups in enumerate(placed):
        for column, (group, figure) in enumerate(zip(groups, figures)):
            if group is not None and is_share(figure) and comparable(figure, numbers.rows):
                shared = tuple(group.columns.get(key) for key in keys)
                cells.setdefault((figure, shared), {})[row, first + column] = group
    best, second = set[Place](), set[Place]()
    for (name, _), groups_of in cells.items():
        middles = {place: s.middle for place, group in groups_of.items() if (s := numbers.spread(group, name))}

        def equal(a: float, b: float, name: str = name) -> bool:
            return a == b or (numbers.ties == "shown" and _number(a, name) == _number(b, name))

        def not_worse(place: Place, top: Place, cells: Mapping[Place, Group] = groups_of, name: str = name) -> bool:
            p = paired_p(cells[place], cells[top], name) if numbers.not_worse is not None else None
            return p is not None and numbers.not_worse is not None and p >= numbers.not_worse

        bests, seconds = mark_best(middles, equal, not_worse)
        best.update(bests)
        second.update(seconds)
    return frozenset(best), frozenset(second)


def _describe_marks(read: _Read) -> str:
    """Returns the end of a legend, which says what marks compare."""
    keys = [read.names.key(key) for key in shared_keys(read.numbers.groups)]
    text = f" of equal {', '.join(keys)}" if keys else ""
    if read.numbers.not_worse is not None:
        level = f"{read.numbers.not_worse:g}"
        text += f"; with the best is what the paired t-test over seeds does not find worse at {level}"
    return text


def _notes(read: _Read, runs: set[int]) -> list[str]:
    numbers, figures = read.numbers, read.figures
    most = max(runs)
    spread = "mean ± sample standard deviation" if numbers.statistic == "mean" else "median [lower, upper quartile]"
    notes = [f"{spread} over {most} runs" if len(runs) == 1 else spread] if most > 1 else []
    if len(figures) > 1 and any(map(is_share, figures)) and not read.pair:
        notes.append("shares in %")
    if len(figures) > 1 and any(".best." in figure for figure in figures) and not read.pair:
        notes.append("best: at the best validation round of the scope")
    if any(numbers.of_sample(group, figure) for group in numbers.groups for figure in figures):
        notes.append(OF_SAMPLES)
    lines = ["; ".join(notes)] if notes else []
    lines += [OF_SOME] if read.pair else []
    if numbers.against:
        named = _join_pairs({read.names.key(key): read.names.value(key, v) for key, v in numbers.against.items()})
        lines.append(
            f"differences from {named} in points, paired by seeds; p: paired t-test, not corrected for several of them"
        )
    if any(map(is_short, figures)):
        several = several_clients(numbers.rows)
        counts = f"{', '.join(map(str, several[:-1]))} and {several[-1]}" if several else ""
        why = f"; runs have {counts} clients" if several else ""
        lines.append(f"scores: {MEANS[numbers.mean]}{why}")
    if unlike := [figure for figure in figures if is_share(figure) and not comparable(figure, numbers.rows)]:
        lines.append(f"not compared, for they depend on the number of clients: {', '.join(unlike)}")
    if read.left_out and LEFT_OUT not in figures:
        lines.append(f"some clients failed and were left out of rounds; count them by --figure {LEFT_OUT}")
    if few := note_untrained(numbers.rows):
        lines.append(few)
    return lines


def _join_pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _choose_figures(known: Mapping[str, float], wide: bool) -> tuple[str, ...]:
    """Chooses figures by default: the test score of deployed models, else of others; `wide` adds all, and costs."""
    if not wide:
        tests = [f"{scope}.best.test" for scope in ("deployed", *SCOPES)]
        return tuple(figure for figure in (*tests, "seconds.round_median") if figure in known)[:1]
    scores = [f"{scope}.best.{part}" for scope in SCOPES for part in ("val", "test")]
    costs = ("seconds.round_median", "bytes.up_per_client_round", "bytes.down_per_client_round")
    left_out = [LEFT_OUT] if known.get(LEFT_OUT) else []
    return tuple(figure for figure in (*scores, *left_out, *costs) if figure in known)


def _number(value: float, figure: str, sign: str = "") -> str:
    if is_share(figure):
        return f"{100 * value:{sign}.2f}"
    if "bytes" in figure:
        return size(round(value))
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"
