"""Forecasts the costs of a sweep from first rounds of one run a combination, and compares them with its real costs."""

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from shoal.engine.config.sizes import size
from shoal.engine.records.metrics import read_metrics
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.study.groups import Row, others_of
from shoal.study.study import Selected
from shoal.study.sweep_folder import FORECAST
from shoal.sweeps.sweep_view import FAILED, span
from shoal.tables.text_table import TextTable

if TYPE_CHECKING:
    from shoal.sweeps.sweep import Sweep

SHOWN = {"time": span, "traffic": size, "memory": size, "money": lambda value: f"{value:.2f}"}


def forecast(sweep: "Sweep", price: float) -> TextTable:
    """Trains a round of a run of each combination, and then as many as hold one evaluation; writes the forecast.

    Rounds of all runs take the mean of those after the first, between the shortest of these and the longest of all. The
    sweep goes on from them. `price` is of an hour. Raises ShoalError: one of the runs failed.
    """
    # The page of a sweep reads forecasts, too, and must not load what trains.
    from shoal.sweeps.sweep import Hosts, Sweep

    runs: dict[int, int] = {}
    keys = [others_of(row) for row in sweep.rows]
    for key in keys:
        runs[keys.index(key)] = runs.get(keys.index(key), 0) + 1
    study, every = sweep.study, max(plan.config.evaluation.every for plan in sweep.plans)
    chosen = tuple(study.choices[place] for place in runs)
    first = Sweep(Selected(study.config, study.axes, selections=chosen, place=sweep.folder), until=1 + every)
    with closing(Hosts()) as hosts:
        first.train(hosts)
    if failed := next((row for row in first.rows if row.state == FAILED), None):
        raise ShoalError(failed.label, failed.error)
    time, traffic, memory = (np.zeros(3) for _ in range(3))
    for row, plan, count in zip(first.rows, first.plans, runs.values()):
        lines = read_metrics(row.path)[: 1 + every]
        rounds = count * plan.config.rounds * study.runs / len(sweep.rows)
        time += rounds * _range([line["seconds"]["round"] for line in lines])
        traffic += rounds * _range([line["bytes_up"] + line["bytes_down"] for line in lines])
        memory = np.maximum(memory, _range([sum(line["memory"].values()) for line in lines]))
    costs = {"time": time, "traffic": traffic, "memory": memory, "money": time / 3600 * price}
    plain = {"price": price, **{name: values.tolist() for name, values in costs.items()}}
    with replacing(sweep.folder / FORECAST) as unfinished:
        unfinished.write_text(json.dumps(plain) + "\n")
    return forecast_table(sweep.folder, sweep.rows)


def _range(values: Sequence[float]) -> np.ndarray:
    later = values[1:] or values
    return np.array([min(later), fmean(later), max(values)])


def forecast_table(folder: Path, rows: Sequence[Row]) -> TextTable:
    """Reads the forecast in a folder; if all runs of the sweep are finished, adds their real costs and the error."""
    plain = json.loads((folder / FORECAST).read_text())
    whole = all(row.figures for row in rows)
    runs = [row.figures for row in rows]
    time = sum(figures.get("seconds.rounds", 0) for figures in runs)
    took = {
        "time": time, "money": time / 3600 * plain["price"],
        "traffic": sum(figures.get("bytes.up", 0) + figures.get("bytes.down", 0) for figures in runs),
        "memory": max(sum(v for name, v in figures.items() if name.startswith("resident_bytes.")) for figures in runs),
    }  # fmt: skip
    cells = []
    for name, text in SHOWN.items():
        low, middle, high = plain[name]
        error = f"{100 * (middle / took[name] - 1):+.0f} %" if whole and took[name] else "-"
        cells.append((name, text(middle), text(low), text(high), text(took[name]) if whole else "-", error))
    note = "of rounds, one run at a time; preparing and starting are not in it"
    return TextTable(("", "forecast", "from", "to", "took", "error"), tuple(cells), 1, title="Forecast", notes=(note,))
