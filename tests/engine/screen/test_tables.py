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
    parts = ("train", "evaluate", "upload", "aggregate", "transfer", "wait")
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
    assert lines[0].startswith("fedavg on cora (synthetic): 3 clients, 9 rounds, sgc")
    (row,) = [line.split() for line in lines if line.startswith("deployed ")]
    assert row == ["deployed", "50.00", "55.00", "@4", "61.00", "42.00", "33.00", "10.00", "45.00", "90.00"]
    text = "\n".join(lines)
    assert "sent by a client and round: 1.0 KiB up (256 scalars) and 2.0 KiB down (512 scalars)" in text
    for part in (
        "weighted by all nodes of",
        "in all 2.0 KiB up, 4.0 KiB down",
        "0.250 s a round (median), 2.5 s in all rounds",
        "hosts: 0.0 s training, 1.0 s evaluating, 2.0 s preparing uploads",
        "server: 3.0 s aggregating, 4.0 s sending and receiving, 5.0 s waiting",
        "peak memory 3.0 GiB, all processes, each page",
        "too: driver 1.0 MiB); 2 times a cell was lost",
    ):
        assert part in text
    assert lines[-1] == f"run folder: {run}"


def test_scopes_without_test_rows_and_without_a_best_round(tmp_path: Path) -> None:
    last = {"round": 9, "evaluated": 2, "test": TEST}
    scopes = {"deployed": {"final": last, "best": None}, "global": {"final": {}, "best": None}}
    lines = printed(show_run, written(tmp_path, summary(**scopes), [{"name": "gcn"}, {"name": "mlp"}], task="graph"))
    assert lines[0].endswith("gcn, mlp")
    assert "weighted by all graphs of" in "\n".join(lines)
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


NEXT = "algorithm.name=local,global,fedavg,fedgta seed=0,1,2"


@pytest.mark.parametrize(
    ("more", "overrides", "lines"),
    [
        ({}, [], [f"shoal sweep my.yaml {NEXT}", "shoal run my.yaml participation.ratio=0.5 model.name=sgc"]),
        (
            {"task": "graph", "run": {"root": "my runs", "tensorboard": False}},
            ["seed=3", "data.path=a b", "rounds=2"],
            ["shoal sweep my.yaml 'data.path=a b' rounds=2 algorithm.name=local,global,fedavg,fedprox seed=0,1,2",
             "shoal export 'my runs/a-1', shoal inspect 'my runs/a-1'"],
        ),
        (
            {"run": {"root": "kept"}}, ["algorithm.mu=0.1", "model.name=gcn", "participation.count=2", "seed=1"],
            [f"shoal sweep my.yaml model.name=gcn participation.count=2 {NEXT}",
             "shoal run my.yaml algorithm.mu=0.1 model.name=gcn seed=1 participation.ratio=0.5",
             "shoal export kept/a-1, shoal inspect kept/a-1, tensorboard --logdir kept"],
        ),
        ({"algorithm": {"name": "fedprox", "mu": 0.1}}, [], ["shoal sweep my.yaml algorithm=local,global,fedavg,"]),
        ({}, ["data.path=a,b"], [f"shoal sweep runs/a-1 {NEXT}", "shoal run my.yaml data.path=a,b participation"]),
        (
            {"model": [{"name": "sgc"}, {"name": "sign"}]}, ["heterogeneity.rule=random", "rounds=2"],
            ["shoal sweep my.yaml rounds=2 heterogeneity.rule=round-robin,blocks seed=0,1,2"],
        ),
    ],
)  # fmt: skip
def test_show_next_repeats_the_overrides(more: dict[str, Any], overrides: list[str], lines: list[str]) -> None:
    plain = {"name": "a", "data": {"dataset": "cora"}, "algorithm": "fedavg", "model": {"name": "sgc"}, **more}
    root = more.get("run", {}).get("root", "runs")
    config = Config.model_validate({**plain, "run": {"root": root, **more.get("run", {})}})
    found = printed(show_next, "my.yaml", overrides, config, Path(root) / "a-1")
    root_of = config.run.root
    for line in lines:
        wanted = f"  {line}".replace("--logdir kept", f"--logdir {root_of}")
        assert any(each.startswith(wanted) for each in found), found
    assert ("tensorboard" in found[-1]) == config.run.tensorboard


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
    assert lines[start + 1].split() == ["rounds", "domain", "accuracy", "F1", "balanced", "AUC", "majority"]
    labels = ("best val @4, test", "last @9, test", "mean of 5 to @9, both")
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
    assert not [line for line in lines if line.startswith(("best val", "mean of"))]
    assert [line for line in lines if line.startswith("last @2, test")]
