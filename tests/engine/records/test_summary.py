"""What a run comes down to, from lines written by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.records.environment import environment
from engine.records.summary import best_round, summarize_run
from engine.rounds.server import Server
from storage.manifest import Manifest
from storage.store import Store

SECONDS = {"train": 1.0, "upload": 0.5, "evaluate": 0.25, "aggregate": 0.125, "transfer": 0.0625, "wait": 2.0}


def line(number: int, val: float | None = None, test: float = 0.5, **more: Any) -> dict[str, Any]:
    scored = {"test": {"nodes": test, "rows": 0.0}} | ({} if val is None else {"val": {"nodes": val, "rows": 1 - val}})
    return {
        "round": number,
        "cohort": [0, 1, 2],
        "bytes_up": 120,
        "bytes_down": 60,
        "seconds": {"round": float(number), **SECONDS},
        "retries": 0,
        "memory": {"driver": 100},
        **({"scopes": {"served": scored}} if test else {}),
        **more,
    }


@pytest.fixture
def manifest(start: Callable[..., Server]) -> Manifest:
    return Store(start().job.store_path).manifest


def test_the_best_round_is_the_first_of_the_best_validation() -> None:
    lines = [line(1, 0.2), line(2, 0.7, 0.1), line(3, 0.7, 0.9), line(4, 0.6)]
    assert best_round(lines, "served") is lines[1]
    assert best_round(lines, "served", "rows") is lines[0]
    assert best_round(lines, "global") is None
    assert best_round([line(1), line(2)], "served") is None
    assert best_round([], "served") is None


def test_last_and_best(manifest: Manifest) -> None:
    lines = [line(1, 0.2, 0.3), line(2, 0.7, 0.4), line(3, 0.6, 0.6), line(4, test=0.0)]
    found = summarize_run(lines, manifest, 999, "cpu")
    assert found["scopes"].keys() == {"served"}
    last, best = found["scopes"]["served"]["last"], found["scopes"]["served"]["best"]
    assert (last["round"], last["test"]["nodes"]) == (3, 0.6)
    assert (best["round"], best["test"]["nodes"]) == (2, 0.4)
    assert (found["rounds"], found["clients"], found["synthetic"]) == (4, 6, False)
    assert found["environment"] == environment("cpu")
    assert found["peak_memory_bytes"] == 999


def test_without_validation_rows_there_is_no_best(manifest: Manifest) -> None:
    scopes = summarize_run([line(1), line(2)], manifest, 0, "cpu")["scopes"]
    assert scopes["served"]["best"] is None
    assert scopes["served"]["last"]["round"] == 2
    assert summarize_run([line(1, test=0.0)], manifest, 0, "cpu")["scopes"] == {}


def test_sums_medians_and_what_a_client_sends(manifest: Manifest) -> None:
    lines = [line(1), line(2, cohort=[1], bytes_up=40, retries=2), line(9, cohort=[], bytes_up=0, bytes_down=0)]
    found = summarize_run(lines, manifest, 0, "cpu")
    # Four visits in all.
    assert found["bytes"] == {"up": 160, "down": 120, "up_per_client_round": 40, "down_per_client_round": 30}
    assert found["scalars"] == {"up_per_client_round": 10, "down_per_client_round": 7.5}
    seconds = found["seconds"]
    assert (seconds["round_median"], seconds["rounds"]) == (2.0, 12.0)
    assert {part: seconds[part] for part in SECONDS} == {part: 3 * spent for part, spent in SECONDS.items()}
    assert found["retries"] == 2
    empty = summarize_run([line(1, cohort=[], bytes_up=0, bytes_down=0)], manifest, 0, "cpu")
    assert empty["bytes"]["up_per_client_round"] == 0


def test_the_largest_resident_set_of_each_process(manifest: Manifest) -> None:
    lines = [
        line(1, memory={"driver": 10, "server": 5, "hosts": {"0": 7, "1": 30}}),
        line(2, memory={"driver": 12, "server": 3, "hosts": {"0": 8}}),
        line(3, memory={"driver": 11, "server": 4, "hosts": {}}),
    ]
    assert summarize_run(lines, manifest, 0, "cpu")["resident_bytes"] == {"driver": 12, "server": 5, "host": 30}
