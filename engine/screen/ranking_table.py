"""The table of the metric of a run, where that is not accuracy."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from shoal.engine.records.summary import chosen, metric_of
from shoal.engine.rounds.scoring import RANKINGS

# Columns, by the names of weightings.
LAST = {"tests": "rows", "clients": "clients", "min": "min", "median": "median", "max": "max"}
CAPTION = (
    "in %, of the test items of each client among themselves, and over the clients whose test\n"
    "items are of both classes (ranked): last round and the round of the best on validation,\n"
    "weighted by all items of a client, domains by their plain mean; last round weighted by\n"
    "test items, plain mean over clients; minimum, median, maximum"
)


def ranking_of(scopes: Mapping[str, Any]) -> str | None:
    """The metric of a summary's scopes if that is not accuracy, else None."""
    found = {metric_of(part) for scope in scopes.values() for part in scope["last"].values() if isinstance(part, dict)}
    return next((metric for metric in RANKINGS if metric in found), None)


def ranking_table(scopes: Mapping[str, Any], metric: str) -> Table:
    """A row a scope.

    Args:
        scopes: Those of a summary.
        metric: The metric of the run.
    """
    table = Table(
        title=f"test {RANKINGS[metric]}", title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False
    )
    table.add_column("scope")
    for name in ("last", "best val", *LAST, "ranked"):
        table.add_column(name, justify="right", no_wrap=True)
    for scope, numbers in scopes.items():
        last, best = numbers["last"].get("test"), (numbers["best"] or {}).get("test")
        if last is None:
            continue
        at_best = _percent(chosen(best, scope)) + f" @{numbers['best']['round']}" if best else "-"
        rest = [_percent(last[metric][weighting]) for weighting in LAST.values()]
        table.add_row(scope, _percent(chosen(last, scope)), at_best, *rest, str(last[metric]["ranked"]))
    return table


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
