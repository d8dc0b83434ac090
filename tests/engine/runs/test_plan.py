"""A plan is checked once, and every command takes it; a dry run shows its sizes, and writes nothing."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from support.errors import refused
from support.needs import needs
from support.small_runs import small_config
from support.user_graph import user_graph

import shoal
from shoal.engine.config.config import Config, load_config
from shoal.engine.config.sizes import machine_cores, size
from shoal.engine.messages import models
from shoal.engine.preparing import prepare as preparing
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs import plan as planning
from shoal.engine.runs.dry_run import expected, show_plan
from shoal.engine.runs.export import export
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console
from shoal.storage.store.manifest import read_manifest
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep

Configure = Callable[..., Config]
Keys = dict[str, Any]
CHECKS = ("describe", "load", "require_supported", "require_mixable", "load_callbacks", "require_known")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the checks of plans, and how often all models are built: as shapes on `meta`, and with values."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str, label: Callable[[], str]) -> None:
        plain = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[label()] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for name in CHECKS:
        count(planning, name, lambda name=name: name)  # type: ignore[misc]
    count(preparing, "require_known", lambda: "require_known")
    count(models, "build_models", lambda: "shapes" if torch.empty(0).is_meta else "models")
    return found


# Shapes: of one feature before data is read, then of the data. Values: of the server, and of the one host. `setup` is
# rehearsed on a made-up graph, and on another one only where it refuses the first.
REHEARSED = Counter(shapes=1, models=1)
OF_A_RUN = Counter(dict.fromkeys(CHECKS, 1) | {"shapes": 2, "models": 2}) + REHEARSED


def test_run_checks_everything_once(tiny: Path, calls: Counter[str]) -> None:
    folder = run(load_config(tiny))
    assert calls == OF_A_RUN
    calls.clear()
    export(folder)
    assert calls == OF_A_RUN - REHEARSED - Counter(load_callbacks=1, shapes=1, models=1)
    calls.clear()
    assert shoal.run(load_config(tiny)).path == folder
    assert calls == OF_A_RUN - Counter(shapes=1, models=2)


def test_sweep_checks_every_run_once(tiny: Path, calls: Counter[str]) -> None:
    sweep = Sweep(Study(str(tiny), ("seed=0,1",)))
    assert calls["shapes"] == 4
    assert sweep.go()
    # Before the first begins, the method was set up on the data of both.
    assert calls == OF_A_RUN + OF_A_RUN + Counter(shapes=1, models=1)


def test_dry_run_and_prepare_check_everything_once(tiny: Path, calls: Counter[str]) -> None:
    expected(RunPlan.of(load_config(tiny)))
    assert calls == OF_A_RUN - Counter(models=1)
    calls.clear()
    shoal.prepare(load_config(tiny))
    assert calls == OF_A_RUN - REHEARSED - Counter(load_callbacks=1, shapes=1, models=2)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ({"algorithm.name": "fedsgd"}, "algorithm.name", "'fedsgd' is unknown"),
        ({"algorithm.name": "missing.py:Mine"}, "algorithm.name", "missing.py"),
        ({"algorithm.mu": 1}, "algorithm.mu", "unknown"),
        ({"algorithm.weight": "rows"}, "algorithm.weight", "'rows'"),
        ({"task": "graph", "algorithm.name": "fedgta"}, "task", "fedgta is for node"),
        ({"model": [{"name": "gcn"}, {"name": "sgc"}]}, "", "fedavg needs the same model"),
        ({"model.name": "gnn"}, "model.name", "'gnn'"),
        ({"model.depth": 1}, "model.depth", ""),
        ({"model.name": "mlp", "model.hidden": "wide"}, "model.hidden", "'wide'"),
        ({"model.name": "gcn", "model.readout": "sum"}, "model.readout", "is for graph tasks (task: graph)"),
        ({"model.name": "gcn", "engine.precision": "bfloat16"}, "", "decoupled model"),
        ({"resources.gpus_per_host": 2}, "", "a host computes on one GPU, found 2"),
        ({"engine.precision": "tf32"}, "", "tf32 is of GPUs"),
        ({"data.dataset": "corra", "data.path": None}, "data.dataset", "'corra'"),
        ({"data.split": "file", "data.split_file": "/gone.npy"}, "", "/gone.npy: data.split_file"),
    ],
)
def test_of_refuses_impossible_runs(configure: Configure, keys: Keys, place: str, says: str, trains: bool) -> None:
    with refused(place, says=says) if place else refused(says=says):
        RunPlan.of(configure(keys), trains=trains)


@needs("availability")
@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"participation.trace": "/gone.npy"}, "participation.trace cannot be read"),
        ({"evaluation.clients": 999}, "evaluation.clients: 999 of"),
        ({"evaluation.last": "none", "evaluation.every": 4, "rounds": 3}, "evaluation.last: none, and no round"),
        ({"callbacks": [{"name": "tensorbord"}]}, "callbacks: did you mean 'tensorboard'? 'tensorbord' is unknown"),
        ({"train.schedule": {"name": "StepLR", "step_size": 1, "gamma": 1e-300}, "rounds": 9}, "train.schedule"),
    ],
)
def test_of_without_rounds_needs_nothing_of_rounds(configure: Configure, keys: Keys, says: str) -> None:
    with refused(says=says):
        RunPlan.of(configure(keys))
    assert RunPlan.of(configure(keys), trains=False).callbacks == {}


WIDE = {"model.name": "mlp", "model.hidden": 10**6}


def shown(config: Config) -> dict[str, str]:
    """The table's rows by name."""
    with console.capture() as captured:
        show_plan(config)
    rows: dict[str, str] = {}
    name = ""
    for line in captured.get().splitlines():
        cells = [cell.strip() for cell in line.split("│")]
        if len(cells) == 4:
            name = cells[1] or name
            rows[name] = f"{rows.get(name, '')} {cells[2]}".strip()
    return rows


def test_dry_run_sizes_by_hand(tiny: Path) -> None:
    config = load_config(tiny, ["participation.ratio=0.5", "engine.cell_size=2", "rounds=10", "run.keep=3"])
    rows = shown(config)
    assert rows["store"].replace(" ", "").endswith("store(tobeprepared)")
    assert rows["run folder"].replace(" ", "") == str(run_path(config))
    assert rows["cohort"] == "2 of 4 clients a round, 10 rounds"
    assert rows["cells"] == "1 of at most 2 clients"
    cores = f"{machine_cores()} core{'s' if machine_cores() > 1 else ''} at work"
    assert rows["hosts"] == f"this process, 1 of {cores}"
    more = load_config(tiny, ["engine.cell_size=2", "engine.backend=ray", "engine.hosts=3"])
    busy = min(3, machine_cores())
    assert shown(more)["hosts"] == f"3 on Ray, {busy} of {cores}, 1 without work: lower engine.cell_size"
    auto = load_config(tiny, ["engine.cell_size=3", "engine.backend=ray"])
    assert shown(auto)["hosts"].startswith(f"{min(2, machine_cores())} on Ray, {min(2, machine_cores())} of {cores}")
    # 8 features, 3 classes: 24 weights and 3 biases of 4 bytes.
    assert rows["model"] == "sgc, 27 parameters (108 B)"
    assert rows["bytes"] == "up to 216 B each way a round where parameters are sent"
    # Four clients with two moments of Adam each.
    assert rows["memory"].startswith("864 B of client state in the end, 1.3 KiB in a round ")
    # Two of four train: they have new moments beside the old ones; mixing adds inboxes, and uploads, whose place mixed
    # models take, but on Ray; there a host has what the one client of a cell makes, too.
    of_methods = ("fedavg", "local", 2, 2), ("fedgta", "local", 3, 3), ("local", "local", 3, 3), ("fedgta", "ray", 3, 6)
    for method, backend, kept, more in of_methods:
        keys = ["participation.ratio=0.5", f"algorithm.name={method}", f"engine.backend={backend}", "engine.hosts=1"]
        found = shown(load_config(tiny, keys))["memory"]
        in_a_round = f"{4 * (kept + more / 2) * 108 / 1024:.1f} KiB in a round "
        assert (size(4 * kept * 108) in found, in_a_round in found) == (True, True), found
    # Features and one hop of float32, 1200 neighbours, and 16 bytes a node.
    assert rows["disk"].startswith("14.1 KiB for the store (10.3 KiB of shards, 3.8 KiB of hops), ")
    assert rows["disk"].endswith("a checkpoint, 3 kept")
    keys = ["propagation.keep=none", "partition.method=semi-external", "engine.memory_limit=1GiB"]
    computed = shown(load_config(tiny, keys))
    # Both ends of an entry, and the cluster of a node.
    scratch = f"{(8 * 1200 + 4 * 120) / 1024:.1f} KiB"
    assert f"10.3 KiB of shards, 0 B of hops), {scratch} or less before it while" in computed["disk"]
    assert computed["hops"].endswith("visits that read them: 960 B of a mean client, 512.0 MiB of a host's cache")
    assert "precision" not in rows
    # Of 30 nodes of a client six train.
    rounded = shown(load_config(tiny, ["engine.precision=bfloat16"]))["precision"]
    assert rounded.endswith(f"a layer has {6 * 24} multiplications a step, fewer than {2**24:,}")
    assert sorted(path.name for path in tiny.parent.iterdir()) == ["config.yaml"]


def test_a_mean_client_trains_on_labelled_nodes_alone(tmp_path: Path) -> None:
    """Before and after the graph is prepared; the row of the precision says how many there are."""
    y = np.where(np.arange(200) < 40, np.arange(200) % 3, -1)
    path = user_graph(tmp_path, 200, y=y)
    data = {"dataset": "files", "path": path, "options": {}, "store": str(tmp_path / "store")}
    config = small_config(tmp_path, data=data, partition={"clients": 2, "method": "random"})
    for masked, train in ((0.0, 4), (0.5, 2)):
        asked = load_config(config, [f"data.sparsity.labels={masked}", "engine.precision=bfloat16"])
        # A layer of four features and three classes.
        assert f"a layer has {train * 12} multiplications a step" in shown(asked)["precision"]
        store = RunPlan.of(asked, trains=False).prepare()
        drawn = sum(len(store.split(asked.data.split_name, client).train) for client in range(2))
        assert 0 < drawn <= 2 * train
        assert f"a layer has {drawn // 2 * 12} multiplications a step" in shown(asked)["precision"]


@needs("selection")
@needs("compression")
def test_compression_of_nothing_is_said(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the dry run and the run; a selection among all is refused by both."""
    config = load_config(tiny, ["communication.upload=topk", "rounds=1"])
    says = "communication.upload: topk: nothing of a model is compressed, for tensors of fewer than 256 numbers are"
    assert says in shown(config)["not compressed"]
    run(config)
    assert says in capsys.readouterr().err
    large = load_config(tiny, ["communication.upload=topk", "rounds=1", "model={name: mlp, hidden: 64}"])
    assert "not compressed" not in shown(large)
    run(large)
    assert "nothing of a model" not in capsys.readouterr().err
    with refused("participation.selection", says="oort chooses 4 of 4 clients"):
        show_plan(load_config(tiny, ["participation.selection=oort"]))


def test_dry_run_counts_no_hops_that_nothing_reads(tiny: Path) -> None:
    """Before the store is prepared and after; where hops are not kept, no cache has to hold them."""
    for keys in (["model.name=gcn"], ["model.name=gcn", "propagation.keep=none"]):
        for _ in range(2):
            plan = RunPlan.of(load_config(tiny, keys))
            rows = expected(plan).rows
            assert " of shards, 0 B of hops)" in rows["disk"]
            assert "hops" not in rows
            plan.prepare()


def test_dry_run_of_sparse_features(tmp_path: Path, tiny: Path, status: Callable[..., int]) -> None:
    nodes = np.arange(120)
    edges = np.stack([nodes, np.roll(nodes, 1)])
    path = user_graph(tmp_path, 120, edge_index=edges, x=np.eye(120, 200))
    plain = yaml.safe_load(tiny.read_text())
    plain["data"] = {"dataset": "files", "path": path, "store": str(tmp_path / "store"), "root": str(tmp_path)}
    tiny.write_text(yaml.safe_dump(plain))
    config = load_config(tiny)
    # A value and its column of each row, and its start; a hop no larger than a dense one; 240 neighbours.
    rounded = shown(load_config(tiny, ["engine.precision=bfloat16"]))["precision"]
    assert rounded.endswith("; sparse rows are multiplied in float32")
    x, hop, rest = 120 * 12, 120 * 200 * 4, 4 * 240 + 16 * 120
    parts = f"{(x + rest) / 1024:.1f} KiB of shards, {hop / 1024:.1f} KiB of hops"
    assert shown(config)["disk"].startswith(f"{(x + hop + rest) / 1024:.1f} KiB for the store ({parts}), ")
    assert status("prepare", tiny) == 0
    manifest = read_manifest(tmp_path / "store")
    assert (manifest.layout, manifest.feature_values) == ("sparse", 120)
    assert shown(config)["disk"].startswith(on_disk(tmp_path / "store"))
    assert manifest.hops["r0.5-k1-float32"].total < hop


def on_disk(store: Path) -> str:
    """How the dry run begins to say what the files of a store take."""
    found = [
        sum(file.stat().st_size for file in (store / kind).rglob("*.arrow")) for kind in ("clients", "splits", "hops")
    ]
    return f"{size(sum(found))} for the store ({size(sum(found[:2]))} of shards, {size(found[2])} of hops), "


def test_a_store_that_is_there_gives_the_sizes(tiny: Path, shoal: Callable[..., None]) -> None:
    before = shown(load_config(tiny))
    shoal("prepare", tiny)
    after = shown(load_config(tiny))
    assert after["store"].replace(" ", "").endswith("store(ready)")
    same = ("cohort", "cells", "model", "bytes")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert after["disk"].startswith(on_disk(tiny.parent / "store"))
    assert not (tiny.parent / "runs").exists()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"partition.clients": 181}, "partition.clients is 181, but dataset 'files' has 180 nodes"),
        ({"model.name": "gat", "engine.trainer": "batched"}, "decoupled model"),
        ({"partition.clients": 7}, "no node for 6 of the 7 clients"),
        ({"data.split": "file", "data.split_file": "/dev/zero"}, "/dev/zero: data.split_file cannot be read"),
        ({"model.name": "mlp", "model.layers": 3, "model.hidden": 2**24}, "parameters take 4096.0 TiB in training"),
        ({**WIDE, "engine.memory_limit": "10MB"}, "take 45.8 MiB in training, engine.memory_limit is 9.5 MiB"),
        ({"algorithm.name": "global", "engine.memory_limit": "10KB", "model.name": "sgc"}, "the whole graph takes"),
    ],
)
def test_dry_run_refuses_what_does_not_fit(
    configure: Configure, tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    with refused(says=says):
        show_plan(configure({"data.store": str(tmp_path / "store"), **keys}))


def test_of_a_client_beyond_the_memory_a_part_is_measured(configure: Configure) -> None:
    rows = shown(configure({"engine.memory_limit": "32KiB", "model.name": "sgc", "model.layers": 1}))
    assert "measured just now" in rows["time"]


def test_several_threads_are_refused_but_runs_that_had_them_are_read(tiny: Path) -> None:
    config = load_config(tiny, ["engine.threads=2"])
    with refused("engine.threads", says="2 threads make rounds slower"):
        RunPlan.of(config)
    assert RunPlan.of(config, trains=False).config.engine.threads == 2
