"""Headlines against differences and intervals of NumPy and SciPy; test scores choose nothing."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from support.errors import refused

from shoal.engine.records.summary import ALL, SOME
from shoal.pages.headline import Headline, make_headline
from shoal.pages.looks import Looks
from shoal.study.groups import Row, group_runs
from shoal.study.main_score import MainScore
from shoal.study.plain_names import PlainNames

SEEDS = 4


def rows_of(key: str, levels: dict[str, float], val: dict[str, float] | None = None, **columns: str) -> list[Row]:
    """Runs of values of a key, with seeds of their own; `val` are levels of validation, where it prefers another."""
    rng = np.random.default_rng(0)
    rows = []
    for value, level in levels.items():
        for seed in range(SEEDS):
            test = level + 0.05 * rng.random()
            figures = {"deployed.best.test": test, "deployed.best.val": (val or levels)[value]}
            rows.append(Row({**columns, key: value, "seed": str(seed)}, figures))
    return rows


def headline(rows: list[Row], against: dict[str, str] | None = None) -> Headline:
    groups = group_runs(rows)
    main = MainScore(groups)
    looks = Looks(groups, PlainNames(groups, main.figures, ()), "FedAvg")
    return make_headline(looks, main, against or {}, "nodes")


def scores_in(rows: list[Row], **columns: str) -> np.ndarray:
    return np.array([row.figures["deployed.best.test"] for row in rows if columns.items() <= row.columns.items()])


def test_methods_are_compared_with_fedavg_by_seeds() -> None:
    levels = {"fedavg": 0.7, "fedgta": 0.75, "local": 0.72, "moon": 0.9}
    # The highest test score is of another method than the best validation.
    rows = rows_of("algorithm", levels, {"fedavg": 0.7, "fedgta": 0.9, "local": 0.8, "moon": 0.6})
    apart = 100 * (scores_in(rows, algorithm="fedgta") - scores_in(rows, algorithm="fedavg"))
    found = headline(rows)
    low, high = stats.t.interval(0.95, SEEDS - 1, apart.mean(), stats.sem(apart))
    assert found.number == f"{apart.mean():+.1f} points"
    assert found.number_is == (
        f"FedGTA over FedAvg, test accuracy of deployed models at best validation; 95 % interval {low:+.1f} to "
        f"{high:+.1f} over 4 seeds; of the 3 beside FedAvg the best by validation"
    )
    assert "MOON over Local" in headline([*rows[-SEEDS:], *rows[2 * SEEDS : 3 * SEEDS]]).number_is
    assert "FedGTA over MOON" in headline(rows, {"algorithm": "moon"}).number_is


def test_methods_of_other_settings_are_not_compared() -> None:
    """Each then stands with its own method; a reference that is asked for is refused."""
    rows = rows_of("algorithm", {"fedavg": 0.7, "fedgta": 0.75})
    other = {"fedavg": "cora", "fedgta": "pubmed"}
    rows = [replace(row, columns={**row.columns, "data.dataset": other[row.columns["algorithm"]]}) for row in rows]
    assert headline(rows).number_is.endswith("at FedAvg, cora and FedGTA, pubmed")
    with refused("--against", says="no runs with the same seeds and settings differ from algorithm=fedavg in it alone"):
        headline(rows, {"algorithm": "fedavg"})


def test_differences_of_several_settings_are_averaged_by_seed() -> None:
    rows = [
        *rows_of("algorithm", {"fedavg": 0.7, "fedgta": 0.8}, attack="none"),
        *rows_of("algorithm", {"fedavg": 0.3, "fedgta": 0.2}, attack="scaled"),
    ]
    apart = [
        100 * (scores_in(rows, algorithm="fedgta", attack=kind) - scores_in(rows, algorithm="fedavg", attack=kind))
        for kind in ("none", "scaled")
    ]
    found = headline(rows)
    assert found.number == f"{np.mean(apart):+.1f} points"
    assert "mean over 2 settings; 95 % interval" in found.number_is


def test_one_seed_has_no_interval_and_no_spread() -> None:
    rows = [row for row in rows_of("algorithm", {"fedavg": 0.7, "local": 0.8}) if row.columns["seed"] == "0"]
    assert headline(rows).number_is.endswith("; one seed, so without an interval")
    assert headline(rows[:1]).number == f"{100 * rows[0].figures['deployed.best.test']:.1f} %"


def test_settings_are_shown_from_first_to_last_not_by_the_highest() -> None:
    rows = rows_of("participation.ratio", {"1.0": 0.9, "0.1": 0.5, "0.5": 0.95})
    ends = [100 * scores_in(rows, **{"participation.ratio": rate}).mean() for rate in ("0.1", "1.0")]
    found = headline(rows)
    assert found.number == f"{ends[0]:.1f} → {ends[1]:.1f} %"
    assert found.number_is.endswith("at participation rate 0.1 and participation rate 1.0")


def test_validation_chooses_among_options() -> None:
    rows = rows_of("train.lr", {"0.1": 0.9, "0.01": 0.6}, {"0.1": 0.5, "0.01": 0.7})
    found = headline(rows)
    values = 100 * scores_in(rows, **{"train.lr": "0.01"})
    assert found.number == f"{values.mean():.1f} ± {values.std(ddof=1):.1f} %"
    assert found.number_is.endswith("of 2 combinations the one with the best validation: learning rate 0.01")


@pytest.mark.parametrize("taking_part", [SOME, ALL])
def test_the_model_of_the_server_stands_where_some_clients_miss_rounds(taking_part: str) -> None:
    """With all of them it is deployed, too; Local has no such model, and stands by what its clients have."""
    rates, kind = ("0.1", "1.0"), {"0.1": taking_part, "1.0": ALL}
    rows = [
        Row(
            {"algorithm": "fedavg", "participation.ratio": rate, "seed": "0"},
            {"deployed.best.test": 0.9, "global.best.test": 0.8},
            one_model=kind[rate],
        )
        for rate in rates
    ]
    rows += [
        Row({"algorithm": "local", "participation.ratio": rate, "seed": "0"}, {"deployed.best.test": 0.7})
        for rate in rates
    ]
    groups = group_runs(rows)
    main = MainScore(groups)
    of_fedavg = "global" if taking_part == SOME else "deployed"
    assert [main.scope(group) for group in groups] == [of_fedavg, of_fedavg, "deployed", "deployed"]
    assert MainScore(groups, "deployed").figures == ["deployed.best.test"]


def test_defences_of_a_method_are_compared_with_the_mean_under_each_attack() -> None:
    """Never one defence under one attack with another under another; settings alone are shown where none is usual."""
    levels = {"none": (0.8, 0.78, 0.4), "sign_flip": (0.1, 0.6, 0.3)}
    rows = [
        row
        for attack, scores in levels.items()
        for row in rows_of("aggregation", dict(zip(("mean", "median", "krum"), scores)), attack=attack)
    ]
    apart = [
        100 * (scores_in(rows, aggregation="median", attack=kind) - scores_in(rows, aggregation="mean", attack=kind))
        for kind in levels
    ]
    found = headline(rows)
    assert found.number == f"{np.mean(apart):+.1f} points"
    assert found.number_is.startswith("aggregation median over aggregation mean, test accuracy of deployed models")
    assert "mean over 2 settings; 95 % interval" in found.number_is
    without = headline([row for row in rows if row.columns["aggregation"] != "mean"])
    assert without.number_is.endswith("at attack none, aggregation median and attack sign_flip, aggregation median")
