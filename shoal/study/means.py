"""The numbers of runs beside each other: by short names, and by one mean over clients for all rows of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from shoal.engine.config.sections import DOMAINS, EVALUATED, SCOPES
from shoal.engine.records.metrics import numbers_of, read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.records.summary import NODES, POOLED, best_round, chosen, numbers_in, unit_of
from shoal.study.groups import Key, Row, group_runs, others_of
from shoal.study.main_score import MAIN, MainScore

MOMENTS = ("best", "final")
PARTS = ("val", "test")
Mean = Literal["nodes", "rows", "clients"]
MEANS: Mapping[str, str] = {
    NODES: "mean over clients weighted by all their items (nodes)",
    POOLED: "of all scored items, a mean over clients weighted by their scored items (rows)",
    "clients": "plain mean over clients (clients)",
}
# These numbers of a scope depend on how items are divided among clients, even with equal predictions of all items.
OF_CLIENTS = (NODES, "clients", "f1_clients", "min", "median", "max")


def figures_of(summary: Mapping[str, Any], mean: str = NODES) -> dict[str, float]:
    """Returns every number of a summary under its dotted name.

    The score of a part of a scope has a short name, too: `deployed.best.test` is the metric of the run at the best
    validation round, by a mean over clients, and `deployed.best.round` that round.
    """
    figures = {name: float(value) for name, value in numbers_of(summary).items()}
    for scope, numbers in summary["scopes"].items():
        for moment in MOMENTS:
            for part in PARTS:
                table = (numbers[moment] or {}).get(part)
                value = None if table is None else chosen(table, scope, mean)
                if value is not None:
                    figures[f"{scope}.{moment}.{part}"] = value
    return figures


def is_share(figure: str) -> bool:
    """Returns whether a figure is a share, shown in %: numbers of scopes are, but for rounds, clients and classes."""
    scope, _, rest = figure.partition(".")
    in_units = any(not unit_of(name) for name in rest.split("."))
    return scope in SCOPES and not in_units and not rest.endswith(("round", EVALUATED, "constant_class"))


def is_of_sample(figure: str, figures: Mapping[str, float]) -> bool:
    """Returns whether a figure is of a round in which not all clients were evaluated."""
    return f"{'.'.join(figure.split('.')[:2])}.{EVALUATED}" in figures


def is_short(figure: str) -> bool:
    """Returns whether a figure is the short name of a number; the table chooses its mean."""
    scope, _, rest = figure.partition(".")
    return scope in SCOPES and scope != DOMAINS and rest in [f"{m}.{part}" for m in MOMENTS for part in PARTS]


def is_test(figure: str) -> bool:
    """Returns whether a figure is the short name of a test score."""
    return is_short(figure) and figure.endswith(".test")


def several_clients(rows: Sequence[Row]) -> list[int]:
    """Returns the numbers of clients of the finished runs, ascending, if they differ: a run of `global` has 1."""
    counts = sorted({int(row.figures["clients"]) for row in rows if "clients" in row.figures})
    return counts if len(counts) > 1 else []


def comparable(figure: str, rows: Sequence[Row]) -> bool:
    """Returns whether equal predictions of all runs would have equal figures, however many clients hold the items."""
    if not several_clients(rows) or figure.startswith("domains."):
        return True
    parts = figure.split(".")
    if is_short(figure):
        # The means of accuracy stand beside it. Those of another metric are a part deeper, computed client by client.
        of_accuracy = [{row.figures.get(f"{figure}.{mean}") for mean in MEANS} for row in rows]
        return all(row.figures.get(figure) in means for row, means in zip(rows, of_accuracy))
    return parts[-1] not in OF_CLIENTS and (len(parts) != 5 or parts[3] == "domains")


def by_one_mean(rows: Sequence[Row], mean: str | None = None) -> tuple[list[Row], str]:
    """Returns rows, read with the figures of `nodes`, with those of one mean over clients, and the name of the mean.

    The mean is `mean` if given. If runs differ in numbers of clients, such as `global` and a federation, it is the one
    over all scored items, since no other one compares them. Else clients are weighted by items. The best round of a
    scope is the best by this mean. Raises ShoalError: the metrics of a run are damaged.
    """
    mean = mean or (POOLED if several_clients(rows) else NODES)
    if mean == NODES:
        return list(rows), mean
    return [replace(row, figures=figures_by(row.path, mean)) if row.figures else row for row in rows], mean


def figures_by(run: Path, mean: str) -> dict[str, float]:
    """Returns the figures of a finished run by a mean; raises as `by_one_mean`."""
    summary = read_summary(run)
    if mean != NODES:
        scored = [line for line in read_metrics(run) if "scopes" in line]
        for scope, numbers in summary["scopes"].items():
            best = best_round(scored, scope, mean)
            numbers["best"] = numbers_in(best, scope) if best else None
    return figures_of(summary, mean)


def validation_by(rows: Sequence[Row], key: str, scope: str) -> dict[Key, dict[str, float]]:
    """Returns mean validation of a scope at its best round by value of a key, for every combination of other keys.

    The scope `main` is that of `MainScore`, which may be another one for each combination.
    """
    means: dict[Key, dict[str, float]] = {}
    groups = group_runs(by_one_mean(rows)[0])
    main = MainScore(groups)
    for group in groups:
        figure = f"{main.scope(group) if scope == MAIN else scope}.best.val"
        if values := group.values(figure):
            means.setdefault(others_of(group.rows[0], key), {})[group.columns[key]] = fmean(values)
    return means
