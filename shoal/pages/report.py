"""The page of runs and sweeps: a head, the three figures that say most, tables, and the rest folded."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np

from shoal.algorithms.methods.registry.names import display_name
from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import MOST_BYTES
from shoal.engine.config.sections import EVALUATED, SCOPES, SCORING
from shoal.engine.config.sizes import size
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.outputs import PAGE, REPORT, USUAL_KINDS, page_folder
from shoal.engine.records.run_folder import CONFIG, read_summary
from shoal.engine.records.summary import scopes_apart
from shoal.engine.screen.progress import say
from shoal.engine.sections.section import load
from shoal.features.features import FEATURES
from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.head import head_of
from shoal.pages.headline import Headline, find_reference, make_headline
from shoal.pages.looks import MOST_LINES, Look, Looks, Panels
from shoal.pages.page import Section, is_alone, require_place, write_page
from shoal.pages.scaling_figures import is_scaling, scaling_sections
from shoal.scaling.scaling import scaling_groups, scaling_headline
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import read_text
from shoal.study.constant_class import constant_of
from shoal.study.figure_data import (
    ClientNumbers,
    Curve,
    Line,
    client_numbers,
    confusion,
    curve_of,
    loss_in,
    manifest_of,
    recorded_mixing,
    recorded_prototypes,
    score_in,
)
from shoal.study.grids import make_grid, numbers_in
from shoal.study.groups import Group, Row, group_runs, spread_of
from shoal.study.main_score import MainScore
from shoal.study.means import MEANS, by_one_mean
from shoal.study.plain_names import METHOD, MODELS, MOMENTS, PlainNames
from shoal.study.sweep_folder import FORECAST, rows_of
from shoal.study.untrained import note_untrained
from shoal.sweeps.forecast import forecast_table
from shoal.tables.study_table import Layout, read_against, table_of
from shoal.tables.table_output import chosen_by
from shoal.tables.text_table import TextTable

COMPARISON = "comparison"
CONSTANT = "always the most frequent class"
MIB = 1 << 20
# With so many clients a histogram says more than single ones. At most so many panels show single clients.
MANY_CLIENTS, MOST_SCATTERED = 100, 6
# A table shows what methods need to reach this share of the highest score.
TARGET = 0.9
# Display names of the parts of a host's and the server's work.
OF_HOSTS = {"train": "training", "upload": "preparing uploads", "evaluate": "evaluating"}
OF_SERVER = {"aggregate": "aggregating", SCORING: "scoring", "transfer": "sending and receiving"}


def report(
    paths: Sequence[Path],
    out: Path | None,
    labels: Sequence[tuple[str, str]] = (),
    kinds: Sequence[str] = USUAL_KINDS,
    against: str = "",
) -> Path:
    """Writes the page of runs and sweeps to a folder, by default `report` in the first of them; returns its path.

    Args:
        out: The folder; or an `.html` file, for the page alone.
        labels: Display names of values, keys and figures, which come before the usual ones.
        kinds: Files of each figure beside the page.
        against: The reference of the headline, as `Layout` has it; empty: FedAvg, else Local.
    """
    require_place(out)
    read = [row for row in rows_of(paths) if row.state != "not chosen"]
    rows, mean = by_one_mean(read)
    groups = [group for group in group_runs(rows) if any(row.figures for row in group.rows)]
    if not groups:
        raise ShoalError("no run is finished; continue them with shoal run or shoal sweep")
    folder = out or page_folder(paths[0])
    if len(kinds) > 1 and not is_alone(folder):
        say("writing the page: drawing its figures")
    alone = display_name(load_config(_runs_of(groups[0])[0]).algorithm.name)
    main = MainScore(groups)
    looks = Looks(groups, PlainNames(groups, main.figures, labels), alone)
    scaling = is_scaling(rows)
    reference = read_against(against, groups, looks.names)
    if scaling:
        headline = Headline(*scaling_headline(scaling_groups(read)))
    else:
        headline = make_headline(looks, main, reference, mean)
    head = head_of(paths[0], rows, looks, scaling, headline)
    if scaling:
        sections = [*scaling_sections(read, looks), _costs(looks)]
    else:
        sections = _Accuracies(looks, main, mean, chosen_by(paths), reference).sections(read)
    if few := note_untrained(rows):
        sections.insert(0, Section("", alarm=few))
    for feature in FEATURES:
        sections += load(feature.page)(paths[0]) if feature.page else []
    if (paths[0] / FORECAST).exists():
        sections.append(Section("Forecast", tables=[forecast_table(paths[0], read)], folded=True))
    runs = _runs(rows, folder, looks)
    return write_page(folder, head, [*sections, runs, _how(looks)], kinds)


def _runs_of(group: Group) -> list[Path]:
    return [row.path for row in group.rows if row.figures]


class _Accuracies:
    """The parts of a page on scores: figures of three sections and tables, from metrics that are read once."""

    def __init__(
        self, looks: Looks, main: MainScore, mean: str, notes: tuple[str, ...], against: Mapping[str, str]
    ) -> None:
        self.notes, self.against = notes, against
        self.looks, self.main, self.mean, self.groups = looks, main, mean, looks.groups
        # The scope of most combinations names figures.
        self.scope = main.figures[0].partition(".")[0]
        self.score = looks.names.figure(main.figures[0], short=True)
        self.lines: list[list[list[Line]]] = [[read_metrics(run) for run in _runs_of(group)] for group in self.groups]

    def sections(self, read: Sequence[Row]) -> list[Section]:
        """Makes all sections; the first has no heading and the three figures that say most."""
        # Keys of settings come before options of methods, which only some runs have.
        numeric = sorted(self._numeric(), key=lambda key: key.startswith(METHOD[0]))
        first: list[Drawing] = []
        for key in numeric:
            self._over_key(first, key)
        if len(self.groups) > 1:
            self._points(first)
        of_settings = bool(numeric) and not numeric[0].startswith(METHOD[0])
        first.sort(key=lambda drawing: (drawing.name == COMPARISON) == of_settings)
        self._grid(first, numeric)
        first, rest = first[:1], first[1:]
        self._curves(first, "round")
        self._loss(first)
        if len(self.groups) == 1:
            self._of_clients(first)
        self._curves(rest, "bytes")
        self._curves(rest, "seconds")
        for scope in self._scopes():
            if scope != self.scope and len(self.groups) > 1:
                self._curves(rest, "round", scope)
        waiting = sum(not row.figures for row in read)
        missing = f"{waiting} of {len(read)} runs are not finished and not shown" if waiting else ""
        results = table_of(read, Layout(notes=self.notes)) if len(self.groups) > 1 else self._of_scopes()
        results = replace(results, notes=(*results.notes, *self._apart()))
        return [
            Section("", first),
            Section("Results", tables=[results, *self._targets()], note=missing),
            Section("Accuracy and traffic", rest, note=self._note() if rest else "", folded=True),
            Section("Clients", self._clients(), note=self._of_each_method(), folded=True),
            Section("Classes", self._classes(), note=self._of_each_method(), folded=True),
            Section("Who learns from whom", self._records(), folded=True),
            _costs(self.looks),
        ]

    def _note(self) -> str:
        notes = [f"scores: {MEANS[self.mean]}"]
        if any(name.endswith(f".{EVALUATED}") for g in self.groups for row in g.rows for name in row.figures):
            notes.append("of samples of clients (evaluation.clients), but for a last round of all (evaluation.last)")
        return "; ".join(notes)

    def _apart(self) -> list[str]:
        """Returns a line for every reason why `deployed` and `global` differ, by the first run of each combination."""
        by_reason: dict[str, list[str]] = {}
        for group in self.groups:
            first = _runs_of(group)[0]
            points, why = scopes_apart(read_summary(first), load_config(first))
            if why:
                label = self.looks.label(group)
                by_reason.setdefault(why, []).append(f"{points:.1f} points" + (f" in {label}" if label else ""))
        return [f"deployed and global are apart, {', '.join(these)}: {why}" for why, these in by_reason.items()]

    def _scopes(self) -> list[str]:
        scopes = {name.partition(".")[0] for group in self.groups for row in group.rows for name in row.figures}
        return [scope for scope in SCOPES if scope in scopes]

    def _numeric(self) -> list[str]:
        """Returns the keys with numbers as values that differ."""
        keys = []
        for key in self.looks.keys:
            values = [group.columns[key] for group in self.groups if key in group.columns]
            if len(numbers_in(values)) > 1:
                keys.append(key)
        return keys

    def _over_key(self, figures: list[Drawing], key: str) -> None:
        """Draws the score over the values of a numeric key."""
        points: dict[str, tuple[Group, list[drawings.Point]]] = {}
        others = [other for other in self.looks.keys if other != key]
        for group in sorted((g for g in self.groups if key in g.columns), key=lambda g: float(g.columns[key])):
            if spread := self.main.spread(group):
                line = points.setdefault(self.looks.label(group, others), (group, []))[1]
                line.append((float(group.columns[key]), spread.middle, spread.low or 0.0))
        if any(len(line) > 1 for _, line in points.values()):
            name, panels = self.looks.names.key(key), self.looks.panels(list(points.values()), key)
            file = f"{self.main.figures[0]}-by-{key}".replace(".", "-")
            title = f"{self._title()}, by {name}"
            drawings.over_key(figures, file, title, panels, name, self.score, constant=self._constant)

    def _grid(self, figures: list[Drawing], numeric: Sequence[str]) -> None:
        """Draws differences to a reference, or scores, on a grid of two keys; it comes before all other figures."""
        groups = [group for group in self.groups if self.main.values(group)]
        reference = find_reference(groups, self.looks, self.against)
        grid = make_grid(groups, self.main, numeric, reference, self.looks.label)
        if grid is None:
            return
        heads = self.looks.names.key(grid.rows.key), self.looks.names.key(grid.columns.key)
        than = self.looks.label_of(grid.reference)
        title = f"{self._title()}, points above {than}" if than else self._title()
        of_constant = "" if than or self._constant is None else f" ({CONSTANT}: {100 * self._constant:.1f} %)"
        drawn: list[Drawing] = []
        unit = "points" if than else self.score
        drawings.grid(drawn, "grid", f"{title}, by {heads[0]} and {heads[1]}{of_constant}", grid, heads, unit)
        figures[:0] = drawn

    def _points(self, figures: list[Drawing]) -> None:
        spreads = [(group, self.main.spread(group)) for group in self.groups]
        shown = [(group, (spread.middle, spread.low)) for group, spread in spreads if spread is not None]
        drawings.points(figures, COMPARISON, self._title(), self.looks.each(shown), self.score, constant=self._constant)

    def _title(self) -> str:
        """Names the score of all combinations."""
        return _capital(f"{self.score.replace(' (%)', '')} {self._models()} {MOMENTS[self.main.moment]}")

    def _models(self) -> str:
        """Says of which models the score is, and of which methods if these differ in it."""
        methods: dict[str, list[str]] = {}
        for group in self.groups:
            name = self.looks.label(group, [key for key in METHOD if key in self.looks.keys]) or self.looks.alone
            methods.setdefault(MODELS[self.main.scope(group)], []).append(name)
        if len(methods) == 1:
            return next(iter(methods))
        return ", ".join(f"{models} ({', '.join(dict.fromkeys(several))})" for models, several in methods.items())

    @cached_property
    def _constant(self) -> float | None:
        """Computes the share of the best constant class, if all combinations are scored on the same items."""
        return constant_of(self.groups, self.main.scope(self.groups[0]), self.mean)

    def _curves(self, figures: list[Drawing], x: str, scope: str = "") -> None:
        """Draws scores over rounds, bytes or seconds; for a single combination all scopes in one figure."""
        by = {"round": "round", "bytes": "total traffic", "seconds": "elapsed seconds"}[x]
        of_main = not scope
        scope = scope or self.scope
        test = self.score if scope == self.scope else self.looks.names.figure(f"{scope}.best.test", short=True)
        panels: Panels[Curve]
        if len(self.groups) == 1:
            curves = [(name, curve_of(self.lines[0], score_in(name, "test", self.mean))) for name in self._scopes()]
            looks = [Look(f"{_words(name)}", 0, dash, curve) for dash, (name, curve) in enumerate(curves) if curve]
            panels, title = {"": looks} if looks else {}, f"{_capital(test.replace(' (%)', ''))} by {by}"
        else:
            scopes = [self.main.scope(group) if of_main else scope for group in self.groups]
            several = [curve_of(lines, score_in(name, "test", self.mean)) for name, lines in zip(scopes, self.lines)]
            panels = self.looks.panels([(group, curve) for group, curve in zip(self.groups, several) if curve])
            models = self._models() if of_main else MODELS[scope]
            title = f"{_capital(test.replace(' (%)', ''))} {models} by {by}"
        of_all = [look.shown.x[x] for looks in panels.values() for look in looks]
        # One evaluated round is no curve; a method that sends nothing has no traffic.
        points = x != "round" and len(self.groups) > 1
        if any(at[-1] > 0 and (len(at) > 1 or points) for at in of_all):
            drawings.curves(figures, f"{scope}-test-by-{x}", title, panels, x, test, constant=self._constant)

    def _loss(self, figures: list[Drawing]) -> None:
        several = [(group, curve_of(lines, loss_in)) for group, lines in zip(self.groups, self.lines)]
        if panels := self.looks.panels([(group, curve) for group, curve in several if curve]):
            drawings.curves(figures, "loss-by-round", "Training loss by round", panels, "round", "training loss")

    def _of_scopes(self) -> TextTable:
        """Makes the table of scores of a single combination: a row for each model that is scored."""
        (group,) = self.groups
        columns = {
            "final round": "final.test", "at best validation": "best.test", "macro-F1": "final.test.f1",
            "lowest client": "final.test.min", "median client": "final.test.median", "highest client": "final.test.max",
        }  # fmt: skip
        rows = []
        for scope in self._scopes():
            spreads = [spread_of(group.values(f"{scope}.{figure}"), "mean") for figure in columns.values()]
            cells = ["-" if s is None else f"{100 * s.middle:.2f}" + _deviation(s.low) for s in spreads]
            rows.append((_capital(_words(scope)), *cells))
        notes = [f"scores: {MEANS[self.mean]}; macro-F1 and single clients: final round"]
        notes += [f"mean ± sample standard deviation over {group.finished} runs"] if group.finished > 1 else []
        return TextTable(("models", *columns), tuple(rows), 1, title=self.score, notes=tuple(notes))

    def _targets(self) -> list[TextTable]:
        """Makes a table of rounds, traffic and seconds until a share of the highest score, if combinations differ."""
        scopes = map(self.main.scope, self.groups)
        curves = [curve_of(lines, score_in(scope, "test", self.mean)) for scope, lines in zip(scopes, self.lines)]
        evaluated = [(group, curve) for group, curve in zip(self.groups, curves) if curve]
        if len(evaluated) < 2:
            return []
        target = TARGET * max(float(curve.middle.max()) for _, curve in evaluated)
        rows = []
        for group, curve in evaluated:
            values = (self.looks.names.value(key, group.columns.get(key, "-")) for key in self.looks.keys)
            at = curve.first_reaching(target)
            costs = ("-",) * 3 if at is None else (f"{at['round']:.0f}", size(at["bytes"]), f"{at['seconds']:.2f}")
            rows.append((*values, *costs))
        heads = (*map(self.looks.names.key, self.looks.keys), "rounds", "total traffic", "seconds")
        score = self.score.replace(" (%)", "")
        title = f"To reach {100 * target:.1f} % {score} {self._models()}"
        notes = [f"{100 * TARGET:.0f} % of the highest; the first evaluated round whose mean over runs reaches it"]
        notes += ["-: not reached"] if any(row[-1] == "-" for row in rows) else []
        return [TextTable(heads, tuple(rows), len(self.looks.keys), title=title, notes=tuple(notes))]

    def _representatives(self) -> list[Group]:
        """Returns the best combination of each method, or of each value of the key that has colours."""
        main = self.looks.main()
        by_value: dict[str | None, list[Group]] = {}
        for group in self.groups:
            by_value.setdefault(group.columns.get(main), []).append(group)
        return [self.main.best(several) for several in by_value.values()][:MOST_LINES]

    def _of_each_method(self) -> str:
        shown = self._representatives()
        if len(shown) == len(self.groups):
            return ""
        return f"of the combination of each method with the best validation: {'; '.join(map(self.looks.label, shown))}"

    def _numbers(self) -> Iterator[tuple[Group, ClientNumbers]]:
        for group in self._representatives():
            if (numbers := client_numbers(_runs_of(group)[0], self.main.scope(group))) is not None:
                yield group, numbers

    def _of_clients(self, figures: list[Drawing]) -> None:
        panels = self.looks.panels([(group, numbers.accuracy) for group, numbers in self._numbers()])
        if panels:
            drawings.sorted_clients(figures, "clients", panels, "test accuracy")

    def _clients(self) -> list[Drawing]:
        figures: list[Drawing] = []
        numbers = list(self._numbers())
        if len(self.groups) > 1:
            self._of_clients(figures)
        if numbers and max(len(scores.client) for _, scores in numbers) >= MANY_CLIENTS:
            panels = self.looks.panels([(group, scores.accuracy) for group, scores in numbers])
            drawings.histogram(figures, "clients-histogram", panels, "test accuracy")
        sized = []
        for group, scores in numbers[:MOST_SCATTERED]:
            manifest = manifest_of(_runs_of(group)[0])
            if manifest is not None and len(manifest.clients) > scores.client.max():
                sized.append((group, (manifest.clients.columns["nodes"][scores.client], scores.accuracy)))
        if sized:
            drawings.size_against(figures, "clients-by-size", self.looks.panels(sized), "test accuracy", "nodes")
        manifest = manifest_of(_runs_of(self.groups[0])[0])
        if manifest is not None:
            drawings.label_counts(figures, manifest.clients.columns["classes"])
        return figures

    def _classes(self) -> list[Drawing]:
        figures: list[Drawing] = []
        numbers = list(self._numbers())
        if numbers:
            manifest = manifest_of(_runs_of(numbers[0][0])[0])
            classes = numbers[0][1].counts.shape[1]
            names = (manifest.label_names if manifest is not None else None) or [str(c) for c in range(classes)]
            same = [(group, scores) for group, scores in numbers if scores.counts.shape[1] == classes]
            drawings.of_classes(figures, self.looks.panels(same), names)
        for group, _ in numbers:
            if (exported := confusion(_runs_of(group)[0], self.main.scope(group))) is not None:
                counts_CC, names = exported
                share_CC = 100 * counts_CC / np.maximum(counts_CC.sum(1, keepdims=True), 1)
                label = self.looks.label(group)
                title = "Confusion of classes" + (f", {label}" if label else "")
                text = (
                    f"{100 * np.trace(counts_CC) / max(counts_CC.sum(), 1):.1f} % of the test items are on the diagonal"
                )
                heads = ("label", "predicted")
                drawings.matrix(
                    figures, f"confusion-{label}".rstrip("-"), title, {"": share_CC}, heads, text, names, (0, 100, " %")
                )
        return figures

    def _records(self) -> list[Drawing]:
        """Draws mixing weights and prototypes of the best combination of each method that kept records."""
        figures: list[Drawing] = []
        for group in self._representatives():
            run, label = _runs_of(group)[0], self.looks.name(group)
            if mixing := recorded_mixing(run):
                most = max(float(weight_BB.max()) for weight_BB in mixing.values())
                text = "; ".join(
                    f"round {number}: a client's own weight is {np.diagonal(w)[w.any(1)].mean():.2f} in the mean"
                    for number, w in mixing.items()
                )
                panels = {f"round {number}": weight_BB for number, weight_BB in mixing.items()}
                title = f"Aggregation weights, {label}"
                heads = ("receiver", "sender")
                drawings.matrix(figures, f"mixing-{label}", title, panels, heads, text, scale=(0, most, ""))
            if (last := recorded_prototypes(run)) is not None:
                title = f"Prototypes after round {last[0]}, {label}"
                drawings.prototypes(figures, f"prototypes-{label}", title, *last[1:])
        return figures


def _deviation(share: float | None) -> str:
    return "" if share is None else f" ± {100 * share:.2f}"


def _words(scope: str) -> str:
    """Returns the name of a scope in words, as `deployed models`."""
    return MODELS[scope].removeprefix("of ").removeprefix("the ")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _costs(looks: Looks) -> Section:
    """Makes the section of costs: seconds by part, hosts at work, memory; means over runs, summed over hosts."""
    figures: list[Drawing] = []

    def parts(names: Mapping[str, str]) -> dict[str, dict[str, float]]:
        return {
            looks.name(group): {name: fmean(group.values(f"seconds.{part}") or [0.0]) for part, name in names.items()}
            for group in looks.groups
        }

    drawings.bars(figures, "seconds-of-hosts", "Client-side time, all rounds and hosts", "seconds", parts(OF_HOSTS))
    drawings.bars(figures, "seconds-of-server", "Server time, all rounds", "seconds", parts(OF_SERVER))
    # Hosts of repetitions differ, so that the first run of each combination is shown.
    at_work = {}
    for group in looks.groups:
        summary = read_summary(_runs_of(group)[0])
        for host, busy in summary.get("busy_seconds", {}).items():
            name = ", ".join(filter(None, (looks.label(group), f"host {host}")))
            at_work[name] = {"busy": busy, "idle": max(summary["seconds"]["rounds"] - busy, 0.0)}
    if at_work:
        least_first = dict(sorted(at_work.items(), key=lambda host: host[1]["busy"]))
        drawings.bars(figures, "busy-hosts", "Busy and idle hosts, the least busy first", "seconds", least_first)
    for name, figure, title in (
        ("memory", "peak_memory_bytes", "Peak memory of all processes"),
        ("memory-of-host", "resident_bytes.host", "Peak memory of the largest host, with shared pages"),
    ):
        measured = [group for group in looks.groups if group.values(figure)]
        if measured:
            held = {looks.name(group): {"memory": fmean(group.values(figure)) / MIB} for group in measured}
            drawings.bars(figures, name, title, "MiB", held)
    return Section("Time and memory", figures, folded=True)


def _runs(rows: Sequence[Row], folder: Path, looks: Looks) -> Section:
    """Makes the section of runs, each with its state, and from a folder with a link to its page, or to its folder."""
    keys = list(dict.fromkeys(key for row in rows for key in row.columns))
    keys = [key for key in keys if len({row.columns.get(key) for row in rows}) > 1]
    cells, links = [], {}
    for row in rows:
        place = row.path / REPORT / PAGE if (row.path / REPORT / PAGE).exists() else row.path
        if not is_alone(folder):
            links[row.path.name] = os.path.relpath(place.absolute(), folder.absolute())
        cells.append((*(looks.names.value(key, row.columns.get(key, "-")) for key in keys), row.state, row.path.name))
    heads = (*map(looks.names.key, keys), "state", "page or folder" if links else "run")
    failed = tuple(f"{row.state}: {row.label}: {row.error}" for row in rows if row.error)
    table = TextTable(heads, tuple(cells), len(heads), notes=failed)
    return Section(f"Runs ({len(rows)})", tables=[table], links=links, folded=not failed)


def _how(looks: Looks) -> Section:
    """Makes the section with environment and resolved config of the first run."""
    first = _runs_of(looks.groups[0])[0]
    summary = read_summary(first)
    traffic = summary["bytes"]
    facts = TextTable(
        ("", first.name),
        (
            ("visits left out", str(summary.get("left_out", {}).get("visits", 0))),
            ("sent", f"{size(traffic['up'])} up, {size(traffic['down'])} down"),
            *((key, str(value)) for key, value in summary["environment"].items()),
        ),
        2,
    )
    texts = [(f"all keys of {first.name}", read_text(first / CONFIG, MOST_BYTES))]
    return Section("How it was run", tables=[facts], texts=texts, folded=True)
