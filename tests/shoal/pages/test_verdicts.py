"""Verdicts on a paper's figures: against SciPy's Welch test, and against its intervals."""

from pathlib import Path
from statistics import fmean, stdev

import pytest
import yaml
from scipy.stats import ttest_1samp, ttest_ind_from_stats
from support.small_runs import small_run

from shoal.pages.table_runs import Asked, TableRuns
from shoal.pages.verdicts import OUTSIDE, WITHIN, Agreement, half_width, items_and_weights, verdict
from shoal.tables.papers import Printed, read_paper


def test_agreement_counts_what_is_near_and_what_noise_explains() -> None:
    one = Agreement((0.5, -1.004, 3.0, 2.0), (WITHIN, "-", OUTSIDE, verdict([70.0, 90.0], Printed(78.0, None), 1)), 1)
    assert one.number == "2 of 4"
    assert one.number_is == (
        "figures within 1 point of the paper's; 1 of 2 within noise; 1 with too few seeds to tell; "
        "in the mean 1.1 points higher; 1 figure has no runs"
    )
    both = one + Agreement((-5.0,), ("-",), 1)
    assert both.number == "2 of 5"
    assert both.number_is.endswith("in the mean 0.1 points lower; 2 figures have no runs")
    assert (Agreement() + Agreement(without=3)).line == ""


@pytest.mark.parametrize(
    ("values", "printed", "runs"),
    [
        ([80.0, 80.1, 80.3], Printed(80.5, 0.4), 10),
        ([80.0, 80.1, 80.2], Printed(80.3, 0.2), 5),
        ([80.0, 80.1, 80.2], Printed(82.0, 0.4), 10),
        ([80.0, 80.5, 82.0], Printed(83.9, 2.0), 3),
        ([60.0, 80.5], Printed(83.9, 2.0), 3),
        ([80.0, 81.0, 82.0], Printed(80.5, 0.4), 10),
    ],
)
def test_a_verdict_is_welchs_test_where_its_interval_is_narrow(
    values: list[float], printed: Printed, runs: int
) -> None:
    assert printed.deviation is not None
    test = ttest_ind_from_stats(
        fmean(values), stdev(values), len(values), printed.value, printed.deviation, runs, equal_var=False
    )
    # At the edge of its interval a gap has p = 0.05.
    half = half_width(values, printed, runs)
    edge = ttest_ind_from_stats(half, stdev(values), len(values), 0.0, printed.deviation, runs, equal_var=False)
    assert edge.pvalue == pytest.approx(0.05)
    judged = verdict(values, printed, runs)
    if test.pvalue < 0.05:
        assert judged == "outside"
    else:
        gap = fmean(values) - printed.value
        digits = 0 if half >= 10 else 1
        assert judged == ("within 1.0" if half < 1 else f"too few seeds to tell: {gap:+.1f} ± {half:.{digits}f}")


def test_two_seeds_far_apart_tell_nothing() -> None:
    low, high = (ttest_1samp([60.0, 79.0], 0).confidence_interval()[at] for at in (0, 1))
    assert high - low == pytest.approx(2 * 120.7, abs=0.1)
    assert verdict([60.0, 79.0], Printed(86.4, None), None) == "too few seeds to tell: -16.9 ± 121"


def test_verdicts_without_deviations() -> None:
    assert verdict([80.0, 80.1], Printed(80.4, None), None) == "within 1.0"
    assert verdict([80.0, 80.1], Printed(90.0, None), None) == "outside"
    assert verdict([80.0, 80.0], Printed(80.0, None), None) == "within 1.0"
    assert verdict([80.0], Printed(80.0, 1.0), 3) == "-"
    assert verdict([80.0, 81.0], None, 3) == "-"


def test_the_width_of_what_is_no_share_is_relative() -> None:
    """Bytes whose interval is 0.3 MB to each side."""
    seeds, paper = [100.0, 100.05, 100.1], Printed(100.0, None)
    assert 0.1 < half_width(seeds, paper, None) < 1
    assert verdict(seeds, paper, None, share=False) == "within 1.0"
    small = [value / 100 for value in seeds]
    assert verdict([value + 1 for value in small], Printed(2.0, None), None, share=False) == "within 1.0"
    assert verdict([1.0, 1.4, 1.2], Printed(1.2, None), None, share=False).startswith("too few")
    assert verdict([1.0, 1.4, 1.2], Printed(1.2, None), None) == "within 1.0"


def test_scores_of_other_items_or_weights_are_apart() -> None:
    of = items_and_weights
    assert of("trained.best.test.clients", "nodes", 10) != of("domains.last_five.clients", "nodes", 10)
    assert of("domains.best.test.clients", "nodes", 10) != of("domains.last_five.clients", "nodes", 10)
    assert of("domains.best.both.majority", "nodes", 10) == of("domains.last_five.clients", "nodes", 1)
    assert of("domains.last_five.balanced", "nodes", 10) != of("domains.last_five.clients", "nodes", 10)
    assert of("deployed.best.test", "nodes", 10) == of("global.best.test", "nodes", 10)
    assert of("deployed.best.test", "nodes", 10) == of("deployed.final.test.nodes", "rows", 10)
    assert of("deployed.best.test", "clients", 10) != of("deployed.best.test", "nodes", 10)
    # One client with all nodes weighs none of them, so only the mean over all items compares it.
    assert of("deployed.best.test", "nodes", 1) != of("deployed.best.test", "nodes", 10)
    assert of("deployed.best.test", "rows", 1) == of("deployed.best.test", "rows", 10)


def test_marks_and_local_join_scores_of_the_same_items_alone(tmp_path: Path) -> None:
    """Local and Global, which has one client, beside FedAvg: by weights of clients, and by all items."""
    config = small_run(tmp_path, rounds=1)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    rows = {"FedAvg": {"set": {"algorithm": "fedavg"}}, "Global": {"set": {"algorithm": "global"}}}
    table = {"title": "Accuracy", "seeds": 1, "rows": rows}
    tables = {"weighted": table, "pooled": {**table, "mean": "rows"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"title": "Mine", "config": "small.yaml", "tables": tables}))
    shown = {}
    for name in tables:
        runs = TableRuns(read_paper(str(tmp_path / "mine.yaml")), name, Asked())
        runs.go(1)
        shown[name] = runs.table()
    over = {name: [dict(zip(table.heads, row))["over Local"] for row in table.rows] for name, table in shown.items()}
    assert [text == "-" for text in over["weighted"]] == [True, False, True]
    assert [text == "-" for text in over["pooled"]] == [True, False, False]
    marked = {name: {row for row, _ in table.best | table.second} for name, table in shown.items()}
    assert marked["weighted"] <= {0, 1}
    assert any("same items" in note for note in shown["weighted"].notes)
    assert not any("same items" in note for note in shown["pooled"].notes)
    scores = [float(row[shown["pooled"].heads.index("ours")]) for row in shown["pooled"].rows]
    assert scores.index(max(scores)) in {row for row, _ in shown["pooled"].best}
