"""Spreads, tests and marks against NumPy and SciPy, and tables of any width that never cut a cell."""

import csv
import io
import os
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.errors import refused

from shoal.study.groups import Row, baseline_of, group_runs, list_varied, paired_p, spread_of
from shoal.tables.study_table import Layout, long_table_of, table_of
from shoal.tables.table_output import on_screen
from shoal.tables.text_table import TextTable

METHODS = {"fedavg": 0.7, "fedgta": 0.75, "local": 0.72}
TEST = "deployed.best.test"


def rows(seeds: int = 4, datasets: tuple[str, ...] = ("cora", "pubmed")) -> list[Row]:
    """Runs of three methods on some datasets; of the last combination the last seed failed."""
    rng = np.random.default_rng(0)
    found = []
    for dataset in datasets:
        for method, level in METHODS.items():
            for seed in range(seeds):
                value = level + 0.05 * rng.random() + (0.1 if dataset == "pubmed" else 0.0)
                options = {"algorithm.eps": "0.5"} if method == "fedgta" else {}
                columns = {"data.dataset": dataset, "algorithm": method, **options, "seed": str(seed)}
                scores = {TEST: value, "deployed.best.val": value + 0.01}
                costs = {"seconds.round_median": 0.5, "bytes.up_per_client_round": 2048.0, "rounds": 10.0}
                found.append(Row(columns, {**scores, **costs}, f"runs/{dataset}-{method}-{seed}"))
    found[-1] = Row(found[-1].columns, {}, found[-1].run, "failed", "no luck")
    return found


def values(of: list[Row], dataset: str, method: str) -> list[float]:
    own = {"data.dataset": dataset, "algorithm": method}
    return [row.figures[TEST] for row in of if row.figures and own.items() <= row.columns.items()]


def ranked(of: list[Row], dataset: str, middle: Any = np.mean) -> list[int]:
    """Numbers of the methods on a dataset, the best one last."""
    return np.argsort([middle(values(of, dataset, method)) for method in METHODS]).tolist()


def test_spreads_by_numpy() -> None:
    data = [0.3, 0.9, 0.4, 0.45, 0.2]
    mean, middle = spread_of(data, "mean"), spread_of(data, "median")
    assert mean is not None
    assert middle is not None
    assert (mean.middle, mean.low) == (pytest.approx(np.mean(data)), pytest.approx(np.std(data, ddof=1)))
    assert [middle.low, middle.middle, middle.high] == pytest.approx(np.quantile(data, [0.25, 0.5, 0.75]))
    for alone in (spread_of([0.3], "mean"), spread_of([0.3], "median")):
        assert alone is not None
        assert (alone.middle, alone.low, alone.high) == (0.3, None, None)
    assert spread_of([], "mean") is None


def test_numbers_of_samples_are_marked() -> None:
    read = [replace(row, figures={**row.figures, "deployed.best.evaluated": 2.0}) for row in rows() if row.figures]
    table = table_of(read, Layout((TEST, "seconds.round_median")))
    text = table.text()
    assert text.count("~") == 1 + len(table.rows)
    assert "best of samples" in text
    assert "~" not in table_of(rows(), Layout((TEST,))).text()


def test_groups_and_their_baselines() -> None:
    groups = group_runs(rows())
    assert [(group.columns["data.dataset"], group.columns["algorithm"], len(group.rows)) for group in groups] == [
        (dataset, method, 4) for dataset in ("cora", "pubmed") for method in METHODS
    ]
    assert list_varied(groups) == ["data.dataset", "algorithm", "algorithm.eps"]
    assert list_varied(groups[:1]) == []
    for group in groups:
        other = baseline_of(group, groups, {"algorithm": "fedavg"})
        assert other is not None
        assert other.columns == {"data.dataset": group.columns["data.dataset"], "algorithm": "fedavg"}
    assert baseline_of(groups[0], groups, {"algorithm": "fedprox"}) is None


def test_the_paired_test_by_scipy() -> None:
    of = rows()
    groups = {(group.columns["data.dataset"], group.columns["algorithm"]): group for group in group_runs(of)}
    p = paired_p(groups["cora", "fedgta"], groups["cora", "fedavg"], TEST)
    assert p == pytest.approx(stats.ttest_rel(values(of, "cora", "fedgta"), values(of, "cora", "fedavg")).pvalue)
    # Of the failed seed there is no pair.
    p = paired_p(groups["pubmed", "local"], groups["pubmed", "fedavg"], TEST)
    assert p == pytest.approx(stats.ttest_rel(values(of, "pubmed", "local"), values(of, "pubmed", "fedavg")[:3]).pvalue)
    assert paired_p(groups["cora", "local"], groups["cora", "local"], TEST) is None
    few = group_runs(rows(1, ("cora",)))
    assert paired_p(few[0], few[1], TEST) is None


def test_a_wide_table_with_differences() -> None:
    of = rows()
    table = table_of(of, Layout(against="FedAvg", wide=True, labels=(("fedgta", "Ours"), ("cora", "Cora"))))
    keys, costs = ("dataset", "method", "eps"), ("seconds.round_median", "bytes.up_per_client_round")
    assert table.heads == (*keys, "runs", "deployed.best.val", TEST, *costs)
    apart = np.subtract(values(of, "cora", "fedgta"), values(of, "cora", "fedavg"))
    p = stats.ttest_1samp(apart, 0).pvalue
    shown = "<0.001" if p < 0.001 else f"{p:.3f}"
    assert table.rows[1][:4] == ("Cora", "Ours", "0.5", "4")
    assert table.rows[1][5] == f"{100 * apart.mean():+.2f} ± {100 * apart.std(ddof=1):.2f} (p {shown})"
    cora = values(of, "cora", "fedavg")
    assert table.rows[0][:6:5] == ("Cora", f"{100 * np.mean(cora):.2f} ± {100 * np.std(cora, ddof=1):.2f}")
    assert (table.rows[0][2], *table.rows[0][6:]) == ("-", "0.500 ± 0.000", "2.0 KiB")
    assert [row[3] for row in table.rows] == ["4"] * 5 + ["3"]
    # The best and second best method on each dataset; costs have none.
    order = {dataset: ranked(of, dataset) for dataset in ("cora", "pubmed")}
    for place, marks in ((-1, table.best), (-2, table.second)):
        assert marks == {(order["cora"][place], c) for c in (4, 5)} | {(3 + order["pubmed"][place], c) for c in (4, 5)}
    assert (
        "differences from method FedAvg in points, paired by seeds; p: paired t-test, not corrected" in table.notes[1]
    )
    assert table.notes[2] == "scores: mean over clients weighted by all their items (nodes)"
    assert table.text().splitlines()[-1] == "*: best, †: second best of equal dataset"
    # Of a method without runs in a setting there is no difference.
    lone = table_of(
        [r for r in of if r.columns["data.dataset"] == "cora" or "fedavg" not in r.run], Layout(against="fedavg")
    )
    assert [row[-1] for row in lone.rows] == ["-"] * 3


def test_values_of_a_key_as_columns() -> None:
    of = rows()
    table = table_of(of, Layout((TEST,), ("algorithm",), "data.dataset", "median"))
    assert table.heads == ("method", "runs", "cora", "pubmed")
    assert [row[:2] for row in table.rows] == [("FedAvg", "4/4"), ("FedGTA", "4/4"), ("Local", "4/3")]
    low, middle, high = 100 * np.quantile(values(of, "pubmed", "local"), [0.25, 0.5, 0.75])
    assert table.rows[2][3] == f"{middle:.2f} [{low:.2f}, {high:.2f}]"
    for place, marks in ((-1, table.best), (-2, table.second)):
        assert marks == {(ranked(of, "cora", np.median)[place], 2), (ranked(of, "pubmed", np.median)[place], 3)}
    assert table_of(of, Layout((TEST,), ("data.dataset",), "algorithm", "median")).best == {
        (column - 2, 2 + row) for row, column in table.best
    }


@pytest.mark.parametrize(
    ("keys", "values", "heads"),
    [
        (("algorithm", "seed"), [("local",), ("fedavg",)], ["method", "test accuracy (%)"]),
        (("participation.ratio",), [("0.1",), ("0.5",)], ["participation rate", "test accuracy (%)"]),
        (("algorithm.name", "participation.ratio"), [("mine.py:A", "1"), ("a", "1"), ("a", "0.5")],
            ["method", "1", "0.5"]),
        # The clients of a dataset follow from it; five values are rows; two classes of one name keep their files.
        (
            ("algorithm", "data.dataset", "partition.clients"), [("x.py:A", "cora", "5"), ("y.py:A", "cs", "9")],
            ["method", "cora", "cs"],
        ),
        (("algorithm", "train.lr"), [(a, str(r)) for a in "ab" for r in range(5)],
            ["learning rate", "method", "test accuracy (%)"]),
    ],
)  # fmt: skip
def test_methods_are_rows_and_settings_columns(keys: Any, values: Any, heads: list[str]) -> None:
    table = table_of(runs_of({of: [0.5, 0.6] for of in values}, *keys[: len(values[0])]), Layout())
    assert list(table.heads) == heads
    assert table.title == "test accuracy (%) of deployed models at best validation"
    if "x.py:A" in values[0]:
        assert [row[0] for row in table.rows] == ["x.py:A", "y.py:A"]
    if "mine.py:A" in values[0]:
        assert [row[0] for row in table.rows] == ["A", "a"]
        assert "columns: participation rate" in table.text()
        latex = " ".join(table.latex(r"A $\alpha$", "tab:x").split())
        assert r"\caption{A $\alpha$} \label{tab:x} \begin{tabular}{lrr}" in latex
        assert r"\toprule & \multicolumn{2}{c}{participation rate} \\ \cmidrule(lr){2-3} method &" in latex


def test_the_long_table_has_all_digits() -> None:
    of = rows()
    table = long_table_of(of, Layout((TEST, "rounds"), against="algorithm=fedavg"))
    assert len(table.rows) == 12
    found = dict(zip(table.heads, table.rows[2]))
    mine, other = (values(of, "cora", method) for method in ("fedgta", "fedavg"))
    assert [found[key] for key in ("data.dataset", "algorithm", "figure", "averaged", "runs")] == [
        "cora", "fedgta", TEST, "nodes", "4",
    ]  # fmt: skip
    assert [float(found[key]) for key in ("mean", "sd", "difference", "difference_sd", "p")] == pytest.approx([
        np.mean(mine), np.std(mine, ddof=1), np.mean(mine) - np.mean(other), np.subtract(mine, other).std(ddof=1),
        stats.ttest_rel(mine, other).pvalue,
    ])  # fmt: skip
    assert found["mark"] == {-1: "best", -2: "second"}.get(ranked(of, "cora").index(1) - 3, "")
    assert [row[-2:] for row in table.rows[1::2]] == [("", "")] * 6


def runs_of(scores: dict[tuple[str, ...], list[float]], *keys: str, **figures: float) -> list[Row]:
    """Runs by the values of keys, one for each seed."""
    return [
        Row({**dict(zip(keys, of)), "seed": str(seed)}, {TEST: value, **figures}, f"{of}{seed}")
        for of, several in scores.items()
        for seed, value in enumerate(several)
    ]


@pytest.mark.parametrize(
    ("keys", "scores", "layout", "best", "second"),
    [
        # Rates that validation chose belong to the method; without, methods are compared at the same rate.
        (["algorithm", "train.lr"], {("a", "1"): [0.5], ("b", "2"): [0.6], ("c", "1"): [0.4]}, {}, [1], [0]),
        (["algorithm", "train.lr"], {("a", "1"): [0.5], ("a", "2"): [0.6], ("b", "1"): [0.4]}, {}, [0], [2]),
        (["algorithm.name", "partition.clients"], {("a", "3"): [0.5], ("b", "6"): [0.6]}, {}, [], []),
        (["algorithm", "model.name"], {("a", "gcn"): [0.5], ("b", "gcn"): [0.6], ("a", "gat"): [0.9]}, {}, [1], [0]),
        # Without several methods, models are compared, and data never.
        (["model", "data.dataset"], {("x", "d"): [0.5], ("y", "d"): [0.6], ("x", "e"): [0.9]}, {}, [1], [0]),
        (["algorithm"], {("a",): [0.50001], ("b",): [0.50002], ("c",): [0.4]}, {}, [0, 1], [2]),
        (["algorithm"], {("a",): [0.50001], ("b",): [0.50002], ("c",): [0.4]}, {"ties": "exact"}, [1], [0]),
        (
            ["algorithm"], {("a",): [0.5, 0.6], ("b",): [0.55, 0.56], ("c",): [0.45, 0.51]},
            {"not_worse": 0.3}, [0, 1], [2],
        ),
    ],
)  # fmt: skip
def test_best_and_second_best_of_what_may_be_compared(
    keys: list[str], scores: dict[tuple[str, ...], list[float]], layout: Any, best: list[int], second: list[int]
) -> None:
    table = table_of(runs_of(scores, *keys), Layout((TEST,), tuple(keys), **layout))
    places = [sorted({row for row, _ in marks}) for marks in (table.best, table.second)]
    assert places == [best, second]


@pytest.mark.parametrize(("constant", "shown"), [(0.1, False), (0.35, True), (0.75, True)])
def test_constant_class_stands_below_where_it_beats_all_of_one_setting(constant: float, shown: bool) -> None:
    """Under the attack the mean of both methods is at 0.3, while the median of the same column is at 0.6."""
    level = {("none", "mean"): 0.8, ("none", "median"): 0.7, ("sign_flip", "mean"): 0.3, ("sign_flip", "median"): 0.6}
    read = [
        Row(
            {"algorithm": method, "attack.kind": attack, "aggregation.kind": kind},
            {TEST: value + more, "constant.deployed.nodes": constant},
            f"runs/{method}-{attack}-{kind}",
        )
        for method, more in (("fedavg", 0.0), ("fedprox", 0.01))
        for (attack, kind), value in level.items()
    ]
    table = table_of(read, Layout())
    constants = f"{100 * constant:.2f}"
    below = [("constant class", "", constants, constants)] if shown else []
    # What marks compare, methods under one attack and with one reduction, stands together.
    assert [row[:2] for row in table.rows[:4]] == [
        (kind, method) for kind in ("mean", "median") for method in ("FedAvg", "FedProx")
    ]
    assert list(table.rows[4:]) == below
    assert table.best == {(1, 2), (1, 3), (3, 2), (3, 3)}
    assert table.second == {(0, 2), (0, 3), (2, 2), (2, 3)}


def test_numbers_that_depend_on_the_number_of_clients_are_not_compared() -> None:
    name = f"{TEST}.nodes"
    one, six = (runs_of({(a,): [0.5]}, "algorithm", clients=c, **{name: 0.5}) for a, c in (("global", 1), ("b", 6)))
    table = table_of([*one, *six], Layout((name,), mean="nodes"))
    assert (table.best, table.second) == (frozenset(), frozenset())
    assert table.notes[-1] == f"not compared, for they depend on the number of clients: {name}"
    assert table_of(six, Layout((name,))).notes[-1:] != table.notes[-1:]


def test_any_number_of_a_summary() -> None:
    table = table_of(rows(2, ("cora",)), Layout(("rounds", "bytes.up_per_client_round")))
    assert [row[-2:] for row in table.rows] == [("10.000 ± 0.000", "2.0 KiB")] * 2 + [("10.000", "2.0 KiB")]
    assert "no run is finished" in table_of([Row({"a": "1"}, state="failed")], Layout()).text()


@pytest.mark.parametrize(
    ("layout", "places", "says"),
    [
        (Layout(("deployed.best.tets",)), ["--figure deployed.best.tets"], "did you mean 'deployed.best.test'?"),
        (Layout(("deployed",)), ["--figure deployed"], "did you mean 'deployed.best.test'?"),
        (Layout(rows=("train.lr",)), ["train.lr"], "they do in data.dataset, algorithm"),
        (Layout(columns="x"), ["x"], ""),
        (Layout(against="algorithm=fedprox"), ["--against"], "no finished runs have algorithm fedprox"),
        (Layout(against="x=1,y"), [], "--against y: has the form key=value"),
        (Layout(against="fedprox"), [], "--against fedprox: no finished runs have it; there are cora, pubmed, fedavg"),
        (Layout(("rounds",), against="x"), [], "--against x: no finished"),
        (Layout(labels=(("fedgtaa", "X"),)), [], "did you mean 'fedgta'?"),
        (Layout(rows=("algorithm",)), ["--rows"], "combinations that differ in data.dataset would share a cell"),
    ],
)
def test_table_unknown_figure_or_key_is_refused(layout: Layout, places: list[str], says: str) -> None:
    with refused(*places, says=says):
        table_of(rows(), layout)


WIDE = TextTable(
    ("algorithm", "dataset", "deployed.best.val", "deployed.best.test", "seconds"),
    (
        ("fedavg", "cora", "81.23 ± 0.40", "80.11 ± 0.30", "0.512"),
        ("fedgta & co_1", "cora", "82.00 ± 1.40", "-", "1.250"),
    ),
    2, frozenset({(1, 2), (0, 3)}), "a title", ("a note",), frozenset({(0, 2)}), " of equal x",
)  # fmt: skip


@pytest.mark.parametrize(("width", "blocks"), [(None, 1), (200, 1), (80, 1), (60, 2), (20, 0)])
def test_no_cell_is_cut_at_any_width(width: int | None, blocks: int) -> None:
    lines = WIDE.text(width).splitlines()
    assert lines[0] == "a title"
    assert " ".join(" ".join(lines).split()).endswith("a note *: best, †: second best of equal x")
    if width is not None and width > 20:
        assert max(map(len, lines)) <= width
    text = " ".join(lines)
    cells = [cell for row in (WIDE.heads, *WIDE.rows) for cell in row if cell != "-"]
    assert not [cell for cell in (*cells, "82.00 ± 1.40*", "80.11 ± 0.30*", "81.23 ± 0.40†") if cell not in text]
    assert sum(line.startswith("algorithm  ") for line in lines) == blocks


LONG = "fedgta on cora, 10 clients, seed 0: 81.23 % deployed, as long as a line of it is"
LISTED = TextTable(
    ("kind", "name", "age", "what"),
    (("run", "papers-01234567", "3 h", LONG), ("store", "cora-89abcdef", "12 min", "cora")),
    4,
)


@pytest.mark.parametrize(("width", "count"), [(None, 3), (200, 3), (80, 4), (60, 5), (25, 9)])
def test_text_last_text_is_wrapped_to_the_width(width: int | None, count: int) -> None:
    lines = LISTED.text(width).splitlines()
    assert len(lines) == count
    if width is not None and width > 25:
        assert max(map(len, lines)) <= width
    assert not [word for row in LISTED.rows for word in " ".join(row).split() if word not in " ".join(lines)]
    if width == 80:
        assert lines[1].endswith("3 h     fedgta on cora, 10 clients, seed 0: 81.23 %")
        assert lines[2].split() == ["deployed,", "as", "long", "as", "a", "line", "of", "it", "is"]
    if width == 25:
        assert lines[:3] == ["kind: run", "name: papers-01234567", "age: 3 h"]


def test_markdown_latex_html_and_csv_mark_the_best() -> None:
    markdown = [" ".join(line.split()) for line in WIDE.markdown().splitlines()]
    assert markdown[2] == "| algorithm | dataset | deployed.best.val | deployed.best.test | seconds |"
    assert [part[0] + part[-1] for part in markdown[3].strip("|").split("|")] == [":-", ":-", "-:", "-:", "-:"]
    assert markdown[4] == "| fedavg | cora | *81.23 ± 0.40* | **80.11 ± 0.30** | 0.512 |"
    assert markdown[-1] == "bold: best, italics: second best of equal x"
    assert markdown[5] == "| fedgta & co_1 | cora | **82.00 ± 1.40** | - | 1.250 |"
    assert r"a\|b" in TextTable(("x", "y"), (("a|b", "1"),), 1).markdown()
    latex = " ".join(WIDE.latex().split())
    assert r"\begin{tabular}{llrrr}" in latex
    assert r"fedgta \& co\_1 & cora & \textbf{82.00 $\pm$ 1.40} & - & 1.250 \\" in latex
    assert r"\underline{81.23 $\pm$ 0.40}" in latex
    assert WIDE.latex().startswith("% a title\n% a note\n% bold: best, underlined: second best of equal x\n")
    assert "<u>81.23 ± 0.40</u>" in WIDE.html()
    # LaTeX would take a bracket or a star for an option of the line break, two hyphens for a dash.
    rows = TextTable(("k", "v"), (("[3, 3]", "a--b"), ("*", "a\n\nb")), 1, title="two\nlines").latex()
    assert "% two lines\n" in rows
    assert [line.split() for line in rows.splitlines()[5:7]] == [
        ["{}[3,", "3]", "&", "a-{}-b", r"\\"],
        ["{}*", "&", "a", "b", r"\\"],
    ]
    assert "fedgta &amp; co_1" in WIDE.html()
    assert WIDE.html().count("<strong>") == WIDE.html().count("</strong>") == 2
    marks = ["deployed.best.val mark", "deployed.best.test mark"], ["second", "best"], ["best", ""]
    plain = [list(row) + more for row, more in zip((WIDE.heads, *WIDE.rows), marks)]
    assert list(csv.reader(io.StringIO(WIDE.csv()))) == plain


def test_as_wide_as_the_terminal_or_as_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_screen(WIDE) == WIDE.text()
    ours, theirs = os.openpty()
    monkeypatch.setenv("COLUMNS", "60")
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        assert on_screen(WIDE) == WIDE.text(60) != WIDE.text()
