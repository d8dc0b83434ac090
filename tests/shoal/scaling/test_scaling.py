"""Scaling studies against numbers computed by hand, and from the files of the runs."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.small_runs import small_config

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import METRICS, Metrics, read_metrics
from shoal.engine.records.run_folder import SUMMARY
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.pages.looks import Looks
from shoal.pages.scaling_figures import scaling_sections
from shoal.scaling.scaling import PARTS, scaling_groups, scaling_headline, scaling_sweep, scaling_table, scores_differ
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.study.groups import Row
from shoal.study.plain_names import PlainNames
from shoal.study.sweep_folder import read_rows


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_config(tmp_path_factory.mktemp("scaling"), name="grown")


def test_a_study_of_clients_by_the_files_of_its_runs(
    config: str, status: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["scale", config, "--clients", "2,4", "--graph", "120", "--weak", "--repeat", "2"]
    assert status(*asked) == 0
    lines = capsys.readouterr().out.splitlines()
    (folder,) = (Path(config).parent / "runs" / "sweeps").iterdir()
    assert folder.name.startswith("grown-scaling-")
    rows = read_rows(folder)
    assert [row.label for row in rows[1:3]] == [
        f"partition.clients {n}, data.options.nodes {nodes}, repeat {k}, warmup 1, link 10Gbit"
        for n, nodes, k in ((2, 60, 2), (4, 120, 1))
    ]
    assert lines[0].split()[:3] == ["clients", "nodes", "hosts"]
    for number, (clients, nodes) in enumerate(((2, 60), (4, 120))):
        files = [(row.path / METRICS).read_text().splitlines()[1:] for row in rows[2 * number : 2 * number + 2]]
        seconds = [np.mean([json.loads(line)["seconds"]["round"] for line in of_run]) for of_run in files]
        cells = lines[1 + number].split()
        assert cells[:3] == [str(clients), str(nodes), "1"]
        assert cells[4] == "±"
        decimals = len(cells[3].partition(".")[2])
        assert decimals >= 3
        half = 0.6 * 10.0**-decimals
        assert float(cells[3]) == pytest.approx(np.mean(seconds), abs=half)
        assert float(cells[5]) == pytest.approx(np.std(seconds, ddof=1), abs=half)
        assert float(cells[6]) == pytest.approx(1e3 * np.mean(seconds) / clients, rel=0.01)
        # One process has no Ray, and no speed-up; the five parts of the round are its mean.
        assert sum(map(float, cells[7:12])) == pytest.approx(np.mean(seconds), abs=6 * half)
    assert lines[0].split()[-7:] == ["train", "upload", "evaluate", "server", "waiting", "memory", "bytes"]
    assert "mean of the rounds from 2 on, ± sample standard deviation over 2 repeats" in lines[3]
    page = Path(lines[-1].removeprefix("page: "))
    assert "Scaling of config: 2 and 4 clients" in page.read_text()
    assert "Seconds of a round by clients" in page.read_text()
    headline = r"<strong>[\d.]+ s</strong> a round of 4 clients, [\d.]+ times that of 2 clients<"
    assert re.search(headline, page.read_text())
    assert lines[3].split(";")[0] in page.read_text()
    assert 'role="alert"' not in page.read_text()
    # A repeat that has another score.
    summary = rows[1].path / SUMMARY
    plain = unsealed(summary.read_bytes())
    plain["scopes"]["global"]["best"]["test"]["nodes"] += 1e-9
    summary.write_text(sealed(plain))
    assert status(*asked) == 2
    assert "WRONG: global.best.test" in capsys.readouterr().err
    assert "WRONG: global.best.test" in page.read_text().partition('role="alert">')[2]


LINE = {
    "evaluate": 0.2, "upload": 0.1, "train": 1.5, "aggregate": 0.03, "scoring": 0.02, "transfer": 0.01, "wait": 0.9,
    "kernels": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(config: str) -> dict[str, Path]:
    """Runs with cells of two clients, and of as many as hosts need."""
    return {size: run(RunPlan.of(load_config(config, [f"engine.cell_size={size}"]))) for size in ("2", "auto")}


def on_hosts(template: Path, folder: Path, hosts: int, link: str = "10Gbit", **changes: Any) -> Row:
    """A run on hosts: a slow first round, and rounds of 2 seconds over the number of hosts."""
    shutil.copytree(template, folder)
    lines = read_metrics(folder)
    (folder / METRICS).unlink()
    metrics = Metrics(folder)
    for line, seconds in zip(lines, (9.0, 2.0 / hosts, 2.0 / hosts)):
        busy = {str(host): 0.9 - 0.1 * host for host in range(hosts)}
        cells = {"train": changes.get("cells", 5), "": 6 - changes.get("cells", 5)}
        of_parts = LINE | {key: value for key, value in changes.items() if key in LINE}
        costs = {"bytes_up": 7_000_000, "bytes_down": 500_000, "seconds": {"round": seconds, **of_parts}}
        metrics.append({**line, **costs, "hosts": {"busy": busy, "cells": cells}})
    columns = {"partition.clients": "4", "engine.hosts": str(hosts), "repeat": "1", "warmup": "1", "link": link}
    return Row(columns, {"clients": 4.0, "peak_memory_bytes": 2048.0}, str(folder))


def test_speed_up_and_parts_by_hand(runs: dict[str, Path], tmp_path: Path) -> None:
    rows = [on_hosts(runs["2"], tmp_path / str(hosts), hosts) for hosts in (2, 1)]
    table = scaling_table(rows)
    assert table.heads[:5] == ("clients", "hosts", "s a round", "ms a client", "speed-up (efficiency)")
    assert [row[1:5] for row in table.rows] == [
        ("1", "2.000", "500", "1.00 (100 %)"),
        ("2", "1.000", "250", "2.00 (100 %)"),
    ]
    # Two hosts share 1.8 s of work; the busiest works for 0.9 s and the server for 0.05 s of a second.
    assert table.heads[5:] == (*PARTS, "Ray", "memory", "bytes")
    assert table.rows[1][5:] == ("0.750", "0.050", "0.100", "0.050", "0.050", "0.050", "2.0 KiB", "7.2 MiB")
    assert not [note for note in table.notes if "WRONG" in note]
    rows[1] = replace(rows[1], figures=rows[1].figures | {"global.best.test": 0.5})
    rows[0] = replace(rows[0], figures=rows[0].figures | {"global.best.test": 0.25})
    assert "global.best.test is 0.5 in" in scores_differ(rows)
    assert scores_differ(rows) in scaling_table(rows).notes


def test_table_and_bars_have_one_time_of_a_round_whose_parts_sum_to_it(runs: dict[str, Path], tmp_path: Path) -> None:
    """Rounds of 9, 2 and 2 seconds, whose median is not their mean."""
    row = on_hosts(runs["2"], tmp_path / "run", 1)
    row.columns["warmup"] = "0"
    (cells,) = scaling_table([row]).rows
    # 13 s in three rounds, each with 1.8 s of a host and 0.05 s of the server; the host is busy for nine tenths.
    assert cells[2:4] == ("4.333", "1,083")
    assert cells[4:10] == ("1.500", "0.100", "0.200", "0.050", "2.483", "0.383")
    (group,) = scaling_groups([row])
    first, _ = scaling_sections([row], Looks([group], PlainNames([group], (), ()), "FedGTA"))
    bars = [drawing for drawing in first.drawings if drawing.name == "parts"]
    assert bars[0].text.endswith("FedGTA: train 1.5, upload 0.1, evaluate 0.2, server 0.05, waiting 2.48")
    assert "4.33" in bars[0].svg
    assert "mean of the rounds from 1 on" in first.note


def test_headline_is_the_speed_up_of_most_hosts_or_a_round_of_most_clients(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    rows = [on_hosts(runs["2"], tmp_path / str(hosts), hosts) for hosts in (1, 2)]
    lines = [scaling_headline(scaling_groups(some)) for some in (rows, rows[:1], [])]
    assert lines == [
        ("2.00 times", "as fast on 2 hosts as on 1 host with 4 clients, 100 % of the ideal"),
        ("2.00 s", "a round of 4 clients"),
        ("", ""),
    ]
    # One host with 4 clients and two seconds, and eight clients on one host that take one.
    rows[1] = replace(rows[1], figures=rows[1].figures | {"clients": 8.0})
    for row, clients in zip(rows, ("4", "8")):
        row.columns["partition.clients"], row.columns["engine.hosts"] = clients, "1"
    assert scaling_headline(scaling_groups(rows)) == ("1.00 s", "a round of 8 clients, 0.50 times that of 4 clients")


def test_server_beside_hosts_is_no_part_of_the_round(runs: dict[str, Path], tmp_path: Path) -> None:
    row = on_hosts(runs["2"], tmp_path / "run", 1, aggregate=0.4)
    (cells,) = scaling_table([row]).rows
    # 1.8 s on the host, and the server's 0.42 s in a round of 2 s.
    assert cells[2] == "2.000"
    assert cells[4:10] == ("1.500", "0.100", "0.200", "0.200", "0.000", "0.000")


def test_hosts_that_are_no_axis_are_those_of_the_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    row = on_hosts(runs["2"], tmp_path / "run", 2)
    del row.columns["engine.hosts"]
    (cells,) = scaling_table([row]).rows
    assert cells[:3] == ("4", "2", "1.000")
    assert cells[4] == "0.750"


@pytest.mark.parametrize(
    ("size", "changes", "hosts", "says"),
    [
        # Six cells of 0.3 s: 0.01 s of the server each, and 1.25 MB, a millisecond at 10 Gbit/s.
        ("2", {}, "5 hosts", "5 cells a round; scheduling would allow 30.0 (300.0 ms of a host and 10.0 ms of the"),
        ("2", {"link": "50Mbit"}, "1 host", "a link of 50Mbit/s 2 (1.2 MiB a cell)"),
        ("2", {"aggregate": 0.57}, "3 hosts", "scheduling would allow 3.0"),
        ("2", {"cells": 2}, "2 hosts", "2 cells a round"),
        ("auto", {"cells": 2}, "4 hosts", "4 clients a round, one a cell"),
    ],
)
def test_useful_hosts_by_hand(
    size: str, changes: dict[str, Any], hosts: str, says: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    note = scaling_table([on_hosts(runs[size], tmp_path / "run", 2, **changes)]).notes[-1]
    assert note.startswith(f"4 clients: up to {hosts} of use: ")
    assert says in note


def test_weak_scaling_by_hand(runs: dict[str, Path], tmp_path: Path) -> None:
    rows = [on_hosts(runs["2"], tmp_path / str(hosts), hosts) for hosts in (1, 2)]
    for number, row in enumerate(rows, 1):
        row.figures["clients"] = 4.0 * number
    assert not [note for note in scaling_table(rows).notes if "weak" in note]
    for number, row in enumerate(rows, 1):
        row.columns["data.options.nodes"] = str(100 * number)
    assert (
        "weak scaling: 200 % with 8 clients on 2 hosts, of 100 % with 4 clients on 1 host" in scaling_table(rows).notes
    )


def test_hosts_are_in_no_label_and_more_than_cores_are_warned_of(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = scaling_sweep(config, ["engine.backend=ray"], "", "1,999", False)
    assert [row.columns["engine.hosts"] for row in sweep.rows] == ["1", "999"]
    assert "name" not in sweep.rows[0].columns
    assert [plan.config.name for plan in sweep.plans] == ["grown-1-host", "grown-999-hosts"]
    assert "warning: 999 hosts share" in capsys.readouterr().err


def test_scale_refuses_wrong_options(config: str, refused: Callable[..., str]) -> None:
    fixed = ["data.dataset=digits", "--clients", "2,4", "--weak"]
    for arguments, line in (
        ([], "--clients, --hosts, --graph: name what grows"),
        (["--clients", "2,x"], "--clients: must be whole numbers above 0 with commas between them, found 'x'"),
        (["--hosts", "0"], "--hosts: must be whole numbers above 0"),
        (["--hosts", "1,2"], "--hosts: engine.backend local has no hosts; set it to ray, or leave --hosts out"),
        (fixed, "--weak: digits has the size"),
        (["--graph", "0.5"], "--graph: must be nodes above 0 with commas between them, found '0.5'"),
        (["--clients", "2", "--warmup", "3"], "--warmup: leaves none of 3 rounds"),
        (["--clients", "2", "--link", "10"], "--link: must be a speed as 10Gbit"),
        (["--clients", "2", "--repeat", "1001"], "a study has at most 1,000 runs"),
    ):
        assert line in refused("scale", config, *arguments)
