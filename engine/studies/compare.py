"""Compares two runs: config, inputs, environment and results."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.engine.config.config import load_config
from shoal.engine.config.run_identity import changes_numbers, flatten
from shoal.engine.records.run_folder import finished, read_summary
from shoal.engine.studies.sweep_folder import figures_of, is_share
from shoal.engine.studies.text_table import TextTable

# Of the figures, those that a person asks for first.
SHOWN = ("best.val", "best.test", "last.test", "round", "round_median", "per_client_round", "peak_memory_bytes")


def compare(left: Path, right: Path) -> list[TextTable]:
    """Tables of what differs, one for keys, one for inputs and environment, one for figures; without what is equal."""
    names = (left.name, right.name)
    table = _differing("config", names, *(flatten(load_config(run).plain()) for run in (left, right)))
    rows = tuple((*row, "yes" if changes_numbers(row[0]) else "no") for row in table.rows)
    tables = [replace(table, heads=(*table.heads, "changes numbers"), rows=rows, keys=table.keys + 1)]
    if not (finished(left) and finished(right)):
        missing = ", ".join(run.name for run in (left, right) if not finished(run))
        return [*tables, TextTable(("results",), (), 1, notes=(f"not finished: {missing}",))]
    summaries = [read_summary(run) for run in (left, right)]
    for part in ("inputs", "environment"):
        tables.append(_differing(part, names, *(flatten(summary.get(part, {})) for summary in summaries)))
    return [*tables, _figures(names, *(figures_of(summary) for summary in summaries))]


Names = tuple[str, str]


def _differing(what: str, names: Names, left: Mapping[str, Any], right: Mapping[str, Any]) -> TextTable:
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key)]
    rows = tuple((key, str(left.get(key, "-")), str(right.get(key, "-"))) for key in keys)
    return TextTable((what, *names), rows, 3, notes=() if rows else (f"{what}: equal",))


def _figures(names: Names, left: Mapping[str, float], right: Mapping[str, float]) -> TextTable:
    rows = []
    for figure in (figure for figure in left if figure in right and figure.endswith(SHOWN)):
        factor = 100 if is_share(figure) else 1
        a, b = factor * left[figure], factor * right[figure]
        if a != b:
            rows.append((figure, f"{a:.4g}", f"{b:.4g}", f"{b - a:+.4g}"))
    notes = ("shares in %",) if rows else ("results: equal",)
    return TextTable(("results", *names, "difference"), tuple(rows), 1, notes=notes)
