"""Tables: the numbers that stand in them are those of the files, in the columns that name them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.engine.config.config import Config
from shoal.engine.config.config_text import with_seal
from shoal.engine.preparing.prepare import prepare
from shoal.engine.screen.tables import console, show_next, show_rounds, show_run, show_store
from shoal.storage.files.checksummed_json import sealed

TEST = {"nodes": 0.5, "rows": 0.61, "clients": 0.42, "f1": 0.33, "min": 0.1, "median": 0.45, "max": 0.9}


def summary(seconds: float = 0.25, best: dict[str, Any] | None = None, **scopes: Any) -> dict[str, Any]:
    last = {"round": 9, "test": TEST}
    parts = ("train", "evaluate", "upload", "aggregate", "transfer", "wait", "scoring")
    return {
        "dataset": "cora",
        "synthetic": True,
        "clients": 3,
        "rounds": 9,
        "scopes": scopes or {"deployed": {"final": last, "best": best}},
        "bytes": {"up": 2048, "down": 4096, "up_per_client_round": 1024, "down_per_client_round": 2048},
        "scalars": {"up_per_client_round": 256, "down_per_client_round": 512.0},
        "seconds": {"round_median": seconds, "rounds": 2.5, **{part: float(i) for i, part in enumerate(parts)}},
        "retries": 2,
        "peak_memory_bytes": 3 * 2**30,
        "resident_bytes": {"driver": 2**20},
    }


def written(folder: Path, found: dict[str, Any], model: Any = None, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "summary.json").write_text(sealed(found))
    rounds = range(1, found["rounds"] + 1)
    (folder / "metrics.jsonl").write_text("".join(sealed({"round": number}) + "\n" for number in rounds))
    config = {"name": "a", "data": {"dataset": "cora"}, "algorithm": "fedavg", "model": model or {"name": "sgc"}}
    config |= more
    (folder / "config.yaml").write_text(with_seal(yaml.safe_dump(config)))
    return folder


def printed(show: Callable[..., None], *arguments: Any) -> list[str]:
    with console.capture() as captured:
        show(*arguments)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_finished_run(tmp_path: Path) -> None:
    run = written(tmp_path, summary(best={"round": 4, "test": {"nodes": 0.55}}))
    lines = printed(show_run, run)
    assert lines[0] == "fedavg on cora (synthetic): 3 clients, 9 rounds, sgc; test accuracy (%)"
    assert lines[1].split("  ")[-1].strip() == "per client"
    (row,) = [line.split() for line in lines if line.startswith("deployed ")]
    assert row == ["deployed", "50.00", "55.00", "@4", "61.00", "42.00"]
    assert lines[3:] == [
        "0.25 s per round (median), 2.5 s in total",
        "per client and round: 1.0 KiB up, 2.0 KiB down",
        "peak memory 3.0 GiB (driver 1.0 MiB with shared pages)",
        f"folder: {run}",
    ]
    assert max(map(len, lines[:-1])) <= 80
    lines = printed(show_run, run, True)
    (row,) = [line.split() for line in lines if line.startswith("deployed ")]
    assert row == ["deployed", "50.00", "55.00", "@4", "61.00", "42.00", "33.00", "10.00", "45.00", "90.00"]
    text = "\n".join(lines)
    for part in (
        "numbers per client and round: 256 up, 512 down; in total 2.0 KiB up, 4.0 KiB down",
        "hosts: 0 s training, 1 s evaluating, 2 s preparing uploads",
        "server: 3 s aggregating, 6 s scoring, 4 s sending and receiving, 5 s waiting",
        "2 times a cell was lost",
    ):
        assert part in text
    older = summary(best={"round": 4, "test": {"nodes": 0.55}})
    del older["seconds"]["scoring"]
    text = "\n".join(printed(show_run, written(tmp_path, older), True))
    assert "server: 3 s aggregating and scoring, 4 s sending" in text


def test_scopes_without_test_rows_and_without_a_best_round(tmp_path: Path) -> None:
    last = {"round": 9, "evaluated": 2, "test": TEST}
    scopes = {"deployed": {"final": last, "best": None}, "global": {"final": {}, "best": None}}
    lines = printed(show_run, written(tmp_path, summary(**scopes), [{"name": "gcn"}, {"name": "mlp"}], task="graph"))
    assert lines[0].endswith("gcn, mlp; test accuracy (%)")
    assert "per test graph" in lines[1]
    (row,) = [line.split() for line in lines if line.startswith("deployed ")]
    assert row[2] == "-"
    # It ended early.
    assert row[1].endswith("~")
    assert any("of a sample of clients" in line for line in lines)
    assert not [line for line in lines if line.startswith("global")]


def test_the_newest_rounds(tmp_path: Path) -> None:
    def line(number: int) -> dict[str, Any]:
        scopes = {"trained": {"val": {"nodes": 0.125}}, "deployed": {"test": {"nodes": 1.0}}}
        return {
            "round": number, "cohort": [1, 2], "loss": None if number == 12 else 0.5, "seconds": {"round": 0.25},
            "bytes_up": 1024, "bytes_down": 0, **({"scopes": scopes, "evaluated": 2} if number == 11 else {}),
        }  # fmt: skip

    (tmp_path / "metrics.jsonl").write_text("".join(sealed(line(number)) + "\n" for number in range(1, 13)))
    lines = printed(show_rounds, tmp_path)
    assert "12 rounds logged" in " ".join(" ".join(lines).split())
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and "KiB" in line]
    assert [row[0] for row in rows] == [str(number) for number in range(3, 13)]
    assert rows[-3] == ["10", "2", "0.5000", "-", "-", "0.250", "1.0", "KiB", "0", "B"]
    assert rows[-2][3:5] == ["12.50~", "-"]
    assert "best of samples" in lines[-1]
    assert rows[-1][2] == "-"


def test_a_store(configure: Callable[..., Config]) -> None:
    store = prepare(configure({}))
    rows = {
        name: line.partition(name)[2]
        for line in printed(show_store, store.path, store.manifest)
        for name in ("dataset", "partition", "clients", "edges kept", "labels", "splits", "hops")
        if line.strip("│ ").startswith(name + " ")
    }
    assert "180 nodes, 5 features (float32, dense), 4 classes" in rows["dataset"]
    assert "method file" in rows["partition"]
    assert "6, of 30 to 30 nodes (largest over mean 1.000)" in rows["clients"]
    entries = sum(len(store.shard(i).indices) for i in range(6))
    assert f"{entries // 2} undirected" in rows["edges kept"]
    # Client 5 has no training node and client 4 no test node: those are validation nodes of client 4.
    assert "public (50 / 70 / 50)" in rows["splits"]
    assert "r0.5-k2-float32" in rows["hops"]


PAGE = "page: a-1/report/index.html"
SWEEP = "      shoal sweep a-1 algorithm=local,fedavg"


@pytest.mark.parametrize(
    ("more", "page", "lines"),
    [
        ({}, False, ["next: shoal report a-1", f"{SWEEP} seeds=3"]),
        ({"algorithm": "fedgta"}, False, ["next: shoal report a-1", f"{SWEEP},fedgta seeds=3"]),
        ({"algorithm": {"name": "fedprox", "mu": 1}}, True, [PAGE, f"next:{SWEEP[5:]} seeds=3"]),
        ({"model": [{"name": "sgc"}, {"name": "sign"}]}, False, ["next: shoal report a-1"]),
    ],
)  # fmt: skip
def test_show_next_fits_what_ran(
    more: dict[str, Any], page: bool, lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a-1" / "report"
    folder.mkdir(parents=True)
    (folder / "index.html").touch() if page else None
    plain = {"name": "a", "data": {"dataset": "cora"}, "algorithm": "fedavg", "model": {"name": "sgc"}, **more}
    assert printed(show_next, Config.model_validate(plain), tmp_path / "a-1") == lines


def of_domains(add: float, auc: float | None = 0.5) -> dict[str, Any]:
    def rates(accuracy: float) -> dict[str, Any]:
        return {"accuracy": accuracy + add, "f1": 0.21, "balanced": 0.32, "auc": auc, "majority": 0.43}

    means = {"nodes": 0.99, "clients": 0.15 + add, "f1_clients": 0.22, "balanced": 0.33, "auc": auc, "majority": 0.44}
    domains = {"twitch-de": rates(0.1), "twitch-pt": rates(0.2)}
    return {**means, "constant": 0.6, "constant_class": 1, "domains": domains}


def test_a_row_a_domain(tmp_path: Path) -> None:
    scope = {
        "best": {"round": 4, "test": of_domains(0.0)},
        "final": {"round": 9, "test": of_domains(0.3, None), "both": of_domains(0.0)},
        "last_five": {"rounds": [5, 6, 7, 8, 9], **of_domains(0.5)},
    }
    deployed = {"final": {"round": 9, "test": TEST}, "best": None}
    lines = printed(show_run, written(tmp_path, summary(deployed=deployed, domains=scope)))
    start = next(place for place, line in enumerate(lines) if line.startswith("the server's model on the whole graph"))
    assert lines[start + 1].split() == ["test", "domain", "accuracy", "F1", "balanced", "AUC", "majority"]
    labels = ("at best @4", "final @9", "both, mean of 5")
    numbers = (["10.00", "20.00", "15.00"], ["40.00", "50.00", "45.00"], ["60.00", "70.00", "65.00"])
    for block, (label, accuracies) in enumerate(zip(labels, numbers)):
        auc = "-" if block == 1 else "50.00"
        rows = lines[start + 2 + 4 * block : start + 6 + 4 * block]
        assert rows[0].startswith(label)
        assert rows[0].removeprefix(label).split() == ["twitch-de", accuracies[0], "21.00", "32.00", auc, "43.00"]
        assert rows[1].split() == ["twitch-pt", accuracies[1], "21.00", "32.00", auc, "43.00"]
        assert rows[2].split() == ["mean", accuracies[2], "22.00", "33.00", auc, "44.00"]
        assert rows[3].split() == ["constant", "1", "60.00"]
    # They stand in no other table.
    assert not [line for line in lines if line.startswith("domains ")]

    # Without validation.
    scope = {"best": None, "final": {"round": 2, "test": of_domains(0.0)}, "last_five": {"rounds": []}}
    lines = printed(show_run, written(tmp_path / "a", summary(domains=scope)))
    assert not [line for line in lines if line.startswith(("at best @", "both, mean"))]
    assert [line for line in lines if line.startswith("final @2")]
