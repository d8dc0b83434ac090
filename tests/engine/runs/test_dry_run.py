"""A dry run says what the run would take, from its own sizes, and refuses what the run would; it writes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.user_graph import user_graph

from shoal.engine.config.config import Config, load_config
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.screen.tables import console
from shoal.storage.store.manifest import read_manifest


def plan(config: Config) -> dict[str, str]:
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


def test_sizes_by_hand(tiny: Path) -> None:
    config = load_config(tiny, ["participation.ratio=0.5", "engine.cell_size=2", "rounds=10", "run.keep=3"])
    rows = plan(config)
    assert rows["store"].replace(" ", "").endswith("store(tobeprepared)")
    assert rows["run folder"].replace(" ", "") == str(run_path(config))
    assert rows["cohort"] == "2 of 4 clients a round, 10 rounds"
    assert rows["cells"] == "1 of at most 2 clients, on 1 hosts (local)"
    # 8 features, 3 classes: 24 weights and 3 biases of 4 bytes.
    assert rows["model"] == "sgc, 27 parameters (108 B)"
    assert rows["bytes"] == "up to 216 B each way a round where parameters are sent"
    # Four clients with two moments of Adam each.
    assert rows["memory"].startswith(f"{4 * 3 * 108 / 1024:.1f} KiB or less of client state")
    # Features and one hop of float32, 1200 neighbours, and 16 bytes a node: 14,400 bytes.
    assert rows["disk"].startswith("14.1 KiB for the store, ")
    assert rows["disk"].endswith("a checkpoint, 3 kept")
    assert sorted(path.name for path in tiny.parent.iterdir()) == ["config.yaml"]


def test_sparse_features(tmp_path: Path, tiny: Path, status: Callable[..., int]) -> None:
    nodes = np.arange(120)
    edges = np.stack([nodes, np.roll(nodes, 1)])
    path = user_graph(tmp_path, 120, edge_index=edges, x=np.eye(120, 200))
    keys = ["data.dataset=files", f"data.path={path}", "data.options={}"]
    config = load_config(tiny, [*keys, f"data.store={tmp_path / 'store'}", f"data.root={tmp_path}"])
    # A value and its column of each row, and its start; a hop no larger than a dense one; 240 neighbours.
    x, hop, rest = 120 * 12, 120 * 200 * 4, 4 * 240 + 16 * 120
    assert plan(config)["disk"].startswith(f"{(x + hop + rest) / 1024:.1f} KiB for the store, ")
    assert status("prepare", tiny, *keys) == 0
    manifest = read_manifest(tmp_path / "store")
    rest = 4 * sum(client.entries for client in manifest.clients) + 16 * 120
    assert (manifest.layout, manifest.feature_values) == ("sparse", 120)
    hop = sum(file.bytes for file in manifest.hops["r0.5-k1-float32"])
    assert hop < 120 * 200 * 4
    assert plan(config)["disk"].startswith(f"{(x + hop + rest) / 1024:.1f} KiB for the store, ")


def test_a_store_that_is_there_gives_the_sizes(tiny: Path, status: Callable[..., int]) -> None:
    before = plan(load_config(tiny))
    assert status("prepare", tiny) == 0
    after = plan(load_config(tiny))
    assert after["store"].replace(" ", "").endswith("store(ready)")
    same = ("cohort", "cells", "model", "bytes")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    # Edges between clients are gone.
    entries = sum(client.entries for client in read_manifest(tiny.parent / "store").clients)
    assert entries < 1200
    assert after["disk"].startswith(f"{(2 * 120 * 8 * 4 + 4 * entries + 16 * 120) / 1024:.1f} KiB for the store")
    assert not (tiny.parent / "runs").exists()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"partition.clients": 181}, "partition.clients is 181, but dataset 'files' has 180 nodes"),
        ({"model.name": "gat", "engine.trainer": "batched"}, "decoupled model"),
        ({"partition.clients": 7}, "no node for 6 of the 7 clients"),
        ({"data.split": "file", "data.split_file": "/dev/zero"}, "/dev/zero: data.split_file cannot be read"),
        ({"model.name": "mlp", "model.layers": 3, "model.hidden": 2**24}, "parameters take 4096.0 TiB in training"),
        (
            {"model.name": "mlp", "model.hidden": 10**6, "engine.memory_limit": "10MB"},
            "take 45.8 MiB in training, engine.memory_limit is 9.5 MiB",
        ),
        ({"algorithm.name": "global", "engine.memory_limit": "10KB", "model.name": "sgc"}, "the whole graph takes"),
    ],
)
def test_dry_run_refuses_what_does_not_fit(
    configure: Callable[..., Config], tmp_path: Path, keys: dict[str, Any], says: str
) -> None:
    with refused(says=says):
        show_plan(configure({"data.store": str(tmp_path / "store"), **keys}))


def test_of_a_client_beyond_the_memory_a_part_is_measured(configure: Callable[..., Config]) -> None:
    rows = plan(configure({"engine.memory_limit": "32KiB", "model.name": "sgc", "model.layers": 1}))
    assert "measured just now" in rows["time"]
