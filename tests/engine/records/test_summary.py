"""What a run comes down to, from lines written by hand."""

from typing import Any

import pytest
from support.fixtures import Start

from shoal.engine.messages.environment import environment
from shoal.engine.records.summary import best_round, summarize_run
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import Store

SECONDS = {
    "train": 1.0, "upload": 0.5, "evaluate": 0.25, "aggregate": 0.125, "scoring": 0.03125, "transfer": 0.0625,
    "wait": 2.0,
}  # fmt: skip


def line(number: int, val: float | None = None, test: float = 0.5, **more: Any) -> dict[str, Any]:
    scored = {"test": {"nodes": test, "rows": 0.0}} | ({} if val is None else {"val": {"nodes": val, "rows": 1 - val}})
    return {
        "round": number,
        "cohort": [0, 1, 2],
        "bytes_up": 120,
        "bytes_down": 60,
        "seconds": {"round": float(number), **SECONDS},
        "retries": 0,
        "hosts": {"alive": 1, "of": 1},
        "memory": {"driver": 100},
        **({"scopes": {"deployed": scored}} if test else {}),
        **more,
    }


@pytest.fixture
def manifest(start: Start) -> Manifest:
    return Store(start().job.store_path).manifest


def test_the_best_round_is_the_first_of_the_best_validation() -> None:
    lines = [line(1, 0.2), line(2, 0.7, 0.1), line(3, 0.7, 0.9), line(4, 0.6)]
    assert best_round(lines, "deployed") is lines[1]
    assert best_round(lines, "global") is None
    assert best_round([line(1), line(2)], "deployed") is None
    assert best_round([], "deployed") is None


def test_last_and_best(manifest: Manifest) -> None:
    lines = [line(1, 0.2, 0.3), line(2, 0.7, 0.4), line(3, 0.6, 0.6), line(4, test=0.0)]
    found = summarize_run(lines, manifest, 999, "cpu")
    assert found["scopes"].keys() == {"deployed"}
    last, best = found["scopes"]["deployed"]["final"], found["scopes"]["deployed"]["best"]
    assert (last["round"], last["test"]["nodes"]) == (3, 0.6)
    assert (best["round"], best["test"]["nodes"]) == (2, 0.4)
    assert (found["rounds"], found["clients"], found["synthetic"]) == (4, 6, False)
    assert found["environment"] == environment("cpu")
    assert found["peak_memory_bytes"] == 999
    # Without validation rows there is no best round.
    scopes = summarize_run([line(1), line(2)], manifest, 0, "cpu")["scopes"]
    assert (scopes["deployed"]["best"], scopes["deployed"]["final"]["round"]) == (None, 2)
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
    # Lines of earlier versions have scoring in what the server aggregates.
    del lines[0]["seconds"]["scoring"]
    assert summarize_run(lines, manifest, 0, "cpu")["seconds"]["scoring"] == 2 * SECONDS["scoring"]
    assert found["retries"] == 2
    assert found["busy_seconds"] == {}
    busy = [
        line(number, hosts={"of": 2, "busy": shares})
        for number, shares in ((2, {"0": 0.5}), (4, {"0": 0.25, "1": 1.0}))
    ]
    busy[1]["seconds"] |= {"checkpoint": 0.5}
    found = summarize_run(busy, manifest, 0, "cpu")
    assert found["hosts"] == 2
    assert (found["busy_seconds"], found["seconds"]["checkpoint"]) == ({"0": 2.0, "1": 4.0}, 0.5)
    empty = summarize_run([line(1, cohort=[], bytes_up=0, bytes_down=0)], manifest, 0, "cpu")
    assert empty["bytes"]["up_per_client_round"] == 0


def test_the_largest_resident_set_of_each_process(manifest: Manifest) -> None:
    lines = [
        line(1, memory={"driver": 10, "server": 5, "hosts": {"0": 7, "1": 30}}),
        line(2, memory={"driver": 12, "server": 3, "hosts": {"0": 8}}),
        line(3, memory={"driver": 11, "server": 4, "hosts": {}}),
    ]
    assert summarize_run(lines, manifest, 0, "cpu")["resident_bytes"] == {"driver": 12, "server": 5, "host": 30}


def domains(number: int, val: float | None, test: float, auc: float | None) -> dict[str, Any]:
    def table(accuracy: float) -> dict[str, Any]:
        rates = {"accuracy": accuracy, "auc": auc}
        means = {"nodes": 1 - accuracy, "clients": accuracy, "auc": auc, "constant": 0.6, "constant_class": number}
        return {**means, "domains": {"de": rates, "pt": {**rates, "accuracy": accuracy / 2}}}

    parts = {"test": table(test), "both": table(test / 4)} | ({} if val is None else {"val": table(val)})
    return line(number, scopes={"domains": parts})


def test_domains_are_chosen_by_their_mean_and_the_last_five_are_averaged(manifest: Manifest) -> None:
    lines = [
        domains(1, 0.9, 0.4, 0.3), domains(2, 0.2, 0.8, None), line(3, test=0.0), domains(4, 0.3, 0.4, 0.5),
        domains(5, 0.4, 0.4, 0.7), domains(6, 0.5, 0.4, None), domains(9, 0.6, 0.8, 0.9),
    ]  # fmt: skip
    found = summarize_run(lines, manifest, 0, "cpu")["scopes"]["domains"]
    # The mean over domains, not weighted by nodes, which would take round 2.
    assert (found["best"]["round"], found["final"]["round"]) == (1, 9)
    assert best_round(lines, "domains") is lines[0]
    five = found["last_five"]
    assert five["rounds"] == [2, 4, 5, 6, 9]
    assert five["clients"] == pytest.approx((0.2 + 0.1 + 0.1 + 0.1 + 0.2) / 5)
    assert five["nodes"] == pytest.approx(1 - five["clients"])
    # Where a number is not defined it is in no mean.
    assert five["auc"] == five["domains"]["pt"]["auc"] == pytest.approx((0.5 + 0.7 + 0.9) / 3)
    assert five["domains"]["de"]["accuracy"] == pytest.approx(five["clients"])
    assert five["domains"]["pt"]["accuracy"] == pytest.approx(five["clients"] / 2)
    assert (five["constant"], five["constant_class"]) == (pytest.approx(0.6), 9)
