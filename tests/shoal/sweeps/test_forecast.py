"""A forecast of a sweep: from the first rounds of each combination, which the sweep then goes on from."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest
from support.errors import refused
from support.small_runs import small_config
from support.toy_method import NAME as TOY

from shoal.engine.records.metrics import read_metrics
from shoal.pages.report import report
from shoal.study.study import Study
from shoal.study.sweep_folder import FORECAST
from shoal.sweeps.forecast import forecast, forecast_table
from shoal.sweeps.sweep import Sweep


def test_forecast_is_that_of_a_period_and_stands_beside_what_all_took(tmp_path: Path) -> None:
    config = small_config(tmp_path, rounds=8, evaluation={"every": 2})
    study = Study(config, ("participation.ratio=0.5,1.0", "seed=0,1"))
    sweep = Sweep(study)
    shown = forecast(sweep, price=3600.0)
    logged = [read_metrics(row.path) for row in sweep.rows]
    assert [len(lines) for lines in logged] == [3, 0, 3, 0]
    plain = json.loads((sweep.folder / FORECAST).read_text())
    seconds = [[line["seconds"]["round"] for line in lines] for lines in logged if lines]
    times = [[16 * f(of) for of in seconds] for f in (lambda s: min(s[1:]), lambda s: fmean(s[1:]), max)]
    assert plain["time"] == pytest.approx([sum(of) for of in times])
    assert plain["money"] == pytest.approx(plain["time"])
    moved = [[line["bytes_up"] + line["bytes_down"] for line in lines[1:]] for lines in logged if lines]
    assert plain["traffic"][1] == pytest.approx(16 * sum(map(fmean, moved)))
    assert [row[4:] for row in shown.rows] == [("-", "-")] * 4
    assert sweep.go()
    after = [read_metrics(row.path) for row in sweep.rows]
    assert [lines[:3] for lines in after[::2]] == logged[::2]
    took = sum(line["bytes_up"] + line["bytes_down"] for lines in after for line in lines)
    error = 100 * (plain["traffic"][1] / took - 1)
    table = {row[0]: row for row in forecast_table(sweep.folder, sweep.rows).rows}
    assert table["traffic"][5] == f"{error:+.0f} %"
    assert "-" not in {row[4] for row in table.values()}
    page = report([sweep.folder], None, kinds=("svg",)).read_text()
    section = page[page.index("<summary>Forecast</summary>") :]
    cells = [cell.strip() for cell in re.findall(r"<td[^>]*>([^<]*)</td>", section)][: 6 * len(table)]
    assert [tuple(cells[at : at + 6]) for at in range(0, len(cells), 6)] == list(table.values())
    assert list(table) == ["time", "traffic", "memory", "money"]


def test_forecast_of_a_run_that_fails_says_so(tmp_path: Path) -> None:
    sweep = Sweep(Study(small_config(tmp_path, algorithm={"name": TOY}), ("seed=0,1",)))
    with refused(sweep.rows[0].label):
        forecast(sweep, price=0.0)
