"""A run without a client is the run that never had it, and influence counts what differs, by exported predictions."""

import csv
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.errors import refused
from support.small_runs import run_small

from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.influence.influence import influence
from shoal.influence.influence_page import influence_sections
from shoal.influence.influences import read_influences
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.storage.errors import ShoalError


def made(folder: Path, **changes: Any) -> Path:
    plain = {"participation": {"ratio": 0.5}, "rounds": 5, "algorithm": {"name": "fedgta"}}
    return run_small(folder, **{**plain, **changes})


def cohorts(path: Path) -> list[list[int]]:
    return [line["cohort"] for line in read_metrics(path)]


def first_of(path: Path) -> dict[int, int]:
    """The first round of each client, by the log."""
    found: dict[int, int] = {}
    for number, cohort in enumerate(cohorts(path), 1):
        for client in cohort:
            found.setdefault(client, number)
    return found


def predictions(path: Path) -> list[dict[str, Any]]:
    with pa.memory_map(str(export(path) / "predictions.arrow")) as file:
        rows: list[dict[str, Any]] = pa.ipc.open_file(file).read_all().to_pylist()
    return [row for row in rows if row["part"] == "test"]


def accuracy(rows: list[dict[str, Any]], scope: str, client: int, of_client: bool) -> float:
    right = [row[scope] == row["label"] for row in rows if (row["client"] == client) == of_client]
    return 100 * sum(right) / len(right) if right else nan


@pytest.mark.parametrize(
    ("method", "scope"),
    [
        ("fedgta", "deployed"),
        pytest.param("scaffold", "global", marks=pytest.mark.slow),
        pytest.param("fedavg", "global", marks=pytest.mark.slow),
    ],
)
def test_each_removal_is_the_run_that_never_had_the_client_and_the_table_counts_its_predictions(
    method: str, scope: str, tmp_path: Path
) -> None:
    whole = made(tmp_path, algorithm={"name": method})
    found, first = influence(whole), first_of(whole)
    assert found.scope == scope
    assert set(first) == {0, 1, 2, 3}
    assert max(first.values()) > 1
    assert [(each.client, each.first) for each in found.found] == sorted(first.items(), key=lambda item: item[::-1])
    before = predictions(whole)
    for each in found.found:
        half = {"ratio": 0.5, "without": [each.client]}
        scratch = made(tmp_path, algorithm={"name": method}, name="s", participation=half)
        assert read_metrics(each.run)[0]["loss"] is not None
        for name in ("models.safetensors", "predictions.arrow"):
            assert (export(each.run) / name).read_bytes() == (export(scratch) / name).read_bytes()
        assert cohorts(each.run) == [[i for i in cohort if i != each.client] for cohort in cohorts(whole)]
        assert each.trained == 5 - (each.first - 1)
        after = predictions(each.run)
        for points, of_client in ((each.on_others, False), (each.on_itself, True)):
            with_it, without = (accuracy(rows, scope, each.client, of_client) for rows in (before, after))
            assert points == pytest.approx(with_it - without, abs=1e-9)
        for c, points in enumerate(each.on_classes):
            of_class = ([row for row in rows if row["label"] == c] for rows in (before, after))
            with_it, without = (accuracy(rows, scope, each.client, False) for rows in of_class)
            assert points == pytest.approx(with_it - without, abs=1e-9, nan_ok=True)
    assert any(each.on_others for each in found.found)
    assert f"{sum(each.trained for each in found.found)} rounds trained, 20 from scratch" in found.table().text()


def test_influences_by_class_are_on_the_page_of_the_run(tmp_path: Path, printed: Callable[..., str]) -> None:
    whole, out = made(tmp_path), tmp_path / "influence.csv"
    assert influence_sections(whole) == []
    said = printed("influence", whole, "--clients", "0,2", "--out", out)
    kept = read_influences(whole)
    assert kept is not None
    row, other = csv.DictReader(out.open())
    first = kept.ordered[0]
    assert [row["client"], other["client"]] == [str(each.client) for each in kept.ordered]
    assert [row[f"on class {name}"] for name in kept.classes] == [f"{points:+.2f}" for points in first.on_classes]
    by_class = kept.of_classes()
    for c, (name, items, mean, lowest, highest) in enumerate(by_class.rows):
        of_class = {each.on_classes[c]: each.client for each in reversed(kept.found)}
        assert name == kept.classes[c]
        assert int(items) == sum(row["label"] == c for row in predictions(whole))
        # A class has fewer than 100 test items here, so that one item is a point or more.
        assert int(items) < 100
        assert float(mean) == pytest.approx(np.mean([each.on_classes[c] for each in kept.found]), abs=0.51)
        assert float(lowest.split()[0]) == pytest.approx(min(of_class), abs=0.51)
        assert float(highest.split()[0]) == pytest.approx(max(of_class), abs=0.51)
        assert by_class.title in said
    page = report([whole], None, kinds=("svg",)).read_text()
    assert "Influence of clients on classes" in page
    assert all(each.run.name in page for each in kept.found)
    (whole / "influence.json").write_text("{}")
    with refused(whole / "influence.json", says="shoal influence writes it again"):
        report([whole], None)


def test_interrupted_it_goes_on_where_it_was_and_trains_no_round_before_first_visits_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, trained, before = made(tmp_path), list[int](), LocalBackend.round
    first = first_of(whole)

    def counted(self: LocalBackend, watch: Any) -> dict[str, Any]:
        if len(trained) == stop:
            raise ShoalError("killed")
        line = before(self, watch)
        trained.append(line["round"])
        return line

    monkeypatch.setattr(LocalBackend, "round", counted)
    stop = 7
    with pytest.raises(ShoalError, match="killed"):
        influence(whole)
    stop = 1000
    found = influence(whole)
    # Rounds of the removals, those that come before a first visit once a call, and one that was not kept.
    expected = sum(6 - number for number in first.values()) + 2 * (max(first.values()) - 1)
    assert len(trained) <= expected
    trained.clear()
    again = influence(whole)
    assert trained == []
    assert again == found


def test_a_client_without_visits_changes_nothing_and_needs_no_run(tmp_path: Path) -> None:
    whole = made(tmp_path, participation={"count": 1}, rounds=2)
    absent = min({0, 1, 2, 3} - set(first_of(whole)))
    (each,) = influence(whole, [absent]).found
    assert (each.first, each.trained, each.run, each.on_others, each.on_itself) == (0, 0, whole, 0.0, 0.0)


def test_a_fork_goes_on_without_clients(tmp_path: Path) -> None:
    whole = made(tmp_path, participation={"ratio": 1.0}, run={"checkpoint_every": 1, "keep": 9})
    forked = fork(whole, 3, ["participation.without=[1,2]"])
    assert cohorts(forked) == [[0, 1, 2, 3]] * 3 + [[0, 3]] * 2
    assert read_summary(forked)["scopes"]["deployed"]["final"]["test"]["clients"] is not None
    with refused("participation.without"):
        fork(whole, 3, ["participation.without=[4]", "name=none"])
    with refused("participation.without"):
        fork(whole, 3, ["participation.without=[0,1,2,3]", "name=none"])
    with refused(forked, says="is a fork"):
        influence(forked)


def test_what_has_no_influence_is_refused(tmp_path: Path) -> None:
    whole = made(tmp_path, rounds=1)
    with refused(whole, "--clients"):
        influence(whole, [4])
    with refused(whole, "--scope"):
        influence(whole, [0], "global")
    summed = made(tmp_path, rounds=1, algorithm={"name": "fedavg"}, data={"cross_edges": "hops"})
    with refused(summed, "data.cross_edges"):
        influence(summed, [0])
    (whole / "summary.json").unlink()
    with refused(whole, says="not finished"):
        influence(whole)
