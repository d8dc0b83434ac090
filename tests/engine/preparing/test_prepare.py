"""A store is what its config says, made once, and mended where a part of it is gone."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.errors import refused
from support.forked import start
from support.shards import assert_holds, times
from support.store_contents import contents
from support.user_graph import user_graph

from shoal.engine.config.config import Config, config_from, parse_config
from shoal.engine.preparing.checks import read_graph, require_known
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.storage.graph.graph import Graph
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

Make = Callable[..., Config]
SPLIT, HOPS = "stratified-20-40-40-seed0", "r0.5-k2-float32"


@pytest.fixture
def make_ring(make_config: Make, tmp_path: Path) -> Make:
    """Gives a config of a user's own dataset: a ring of nodes with these labels."""

    def make(label: list[int], split: list[int] | None = None, clients: int = 1, **changes: Any) -> Config:
        nodes = np.arange(len(label))
        arrays = {"edge_index": np.stack([nodes, np.roll(nodes, 1)]), "x": np.eye(len(label)), "y": label}
        path = user_graph(tmp_path, len(label), **arrays, split=split)
        own = {"data__dataset": "files", "data__path": path, "data__options": {}}
        return make_config(**own, partition__method="random", partition__clients=clients, **changes)

    return make


def assert_clients_hold(graph: Graph, store: Store) -> None:
    """Every node lies at one client, with its features, its label and its edges to nodes of the same client."""
    nodes = [store.shard(client).node for client in range(store.clients)]
    for client, own in enumerate(nodes):
        assert_holds(store, client, own, graph)
    np.testing.assert_array_equal(np.sort(np.concatenate(nodes)), np.arange(graph.nodes))


def test_clients_hold_the_graph(make_config: Make) -> None:
    config = make_config()
    store, graph = prepare(config), read_graph(config)
    assert_clients_hold(graph, store)
    assert verify(store) == []
    manifest = store.manifest
    assert (manifest.nodes, manifest.features, manifest.classes, manifest.synthetic) == (400, 5, 4, True)
    assert [len(client.classes) for client in manifest.clients] == [4] * 5
    assert np.sum([client.classes for client in manifest.clients], axis=0).tolist() == np.bincount(graph.y).tolist()
    kept = sum(client.entries for client in manifest.clients)
    assert manifest.quality["cut_fraction"] == pytest.approx(1 - kept / graph.entries)


def test_another_split_or_kernel_leaves_the_rest_alone(make_ring: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = {"label": [0, 1] * 30, "clients": 3}
    first = prepare(make_ring(**ring))
    before = times(first.path)
    monkeypatch.setattr("shoal.engine.preparing.checks.load_all", lambda options: pytest.fail("read again"))
    assert prepare(make_ring(**ring)).manifest == first.manifest
    assert times(first.path) == before
    prepare(make_ring(**ring, data__split_seed=1))
    last = prepare(make_ring(**ring, data__split_seed=1, propagation__hops=1))
    after = times(last.path)
    writers_own = {NAME, "progress.jsonl", ".lock"}
    assert {path for path in before if after[path] != before[path]} <= writers_own
    made = {path.split("/")[1] for path in after.keys() - before.keys() if not path.startswith("tables")}
    assert made == {SPLIT.replace("seed0", "seed1"), "r0.5-k1-float32"}
    assert len(last.manifest.splits) == len(last.manifest.hops) == 2
    assert verify(last) == []


@pytest.mark.parametrize(
    ("model", "method", "hops"),
    [("gcn", "fedavg", 0), ("mlp", "fedavg", 0), ("sgc", "fedavg", 2), ("gcn", "class_means", 2), ("gcn", "fml", 2)],
)
def test_hops_are_computed_where_something_reads_them(make_ring: Make, model: str, method: str, hops: int) -> None:
    config = make_ring([0, 1] * 30, clients=3, model__name=model, algorithm__name=method, propagation__hops=2)
    assert config.kernel().hops == hops
    manifest = prepare(config).manifest
    assert list(manifest.hops) == ([HOPS] if hops else [])
    assert prepare(config, repair=False).manifest == manifest


IN_PAIRS = """
from shoal.cli.main import main
from shoal.storage.store import client_table
client_table.MOST_IN_A_PACK = 2
main()
"""


def kill_after(lines: int, log: Path, process: BaseProcess) -> None:
    """Kills a process when the log has so many lines."""
    while process.is_alive() and not (log.exists() and log.read_bytes().count(b"\n") >= lines):
        time.sleep(0.001)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_a_prepare_killed_often_ends_as_one_that_was_not(
    plain: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.storage.store.client_table.MOST_IN_A_PACK", 2)
    options = {"nodes": 900, "features": 16, "classes": 4, "degree": 6.0}
    killed, calm = tmp_path / "killed", tmp_path / "calm"
    values = plain(data__options=options, partition__clients=60, data__store=str(killed))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    left = []
    # One line says what is made, one the partition; then 30 packs of shards, 30 of splits, 30 of hops.
    for lines in (15, 45, 75):
        process = start(IN_PAIRS, "prepare", tmp_path / "config.yaml", printed=tmp_path / "printed")
        kill_after(lines, killed / "progress.jsonl", process)
        manifest = json.loads((killed / NAME).read_text()) if (killed / NAME).exists() else {}
        left.append((bool(manifest), bool(manifest.get("splits")), bool(manifest.get("hops"))))
    # The manifest came with the shards, and grew with the split.
    assert left == [(False, False, False), (True, False, False), (True, True, False)]
    prepare(parse_config(values, "test"))
    prepare(parse_config({**values, "data": {**values["data"], "store": str(calm)}}, "test"))
    assert contents(killed) == contents(calm)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_an_interruption_leaves_is_completed(make_config: Make, seed: int) -> None:
    config = make_config()
    store = prepare(config)
    expected = contents(store.path)
    rng = np.random.default_rng(seed)
    (store.path / NAME).unlink()
    log = store.path / "progress.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[: rng.integers(len(whole))])
    logged = {json.loads(line).get("path") for line in log.read_bytes().split(b"\n")[:-1]}
    for name in expected.keys() - logged - {NAME, ".lock", "progress.jsonl"}:
        path = store.path / name
        match rng.integers(3):
            case 0:
                path.unlink()
            case 1:
                path.rename(path.with_name(path.name + ".unfinished"))
            case 2:
                path.write_bytes(b"half")
    assert contents(prepare(config).path) == expected


@pytest.mark.parametrize("kind", ["clients", f"splits/{SPLIT}", f"hops/{HOPS}"])
def test_a_deleted_file_is_made_again(make_config: Make, kind: str) -> None:
    store = prepare(make_config())
    before = contents(store.path)
    (store.path / kind / "00000-00004.arrow").unlink()
    again = prepare(make_config())
    journal = {"progress.jsonl": None}
    assert {**contents(again.path), **journal} == {**before, **journal}
    assert verify(again) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"partition__clients": 6}, "partition.clients 5 (config: 6); delete it or set data.store"),
        ({"data__dataset": "digits", "data__options": {}}, "dataset.dataset sbm (config: digits), "),
        ({"data__dtype": "float16"}, "dataset.dtype float32 (config: float16); "),
    ],
)
def test_a_store_of_another_graph_is_refused(make_config: Make, tmp_path: Path, changes: Any, says: str) -> None:
    prepare(make_config())
    before = times(tmp_path / "store")
    with refused(tmp_path / "store", says=f"made from another dataset or partition: {says}"):
        prepare(make_config(**changes))
    assert times(tmp_path / "store") == before


@pytest.mark.parametrize(("name", "at"), [("notes.txt", ""), ("whole/a.csv", ""), ("manifest.json", "manifest.json")])
def test_a_folder_of_something_else_is_refused(make_config: Make, tmp_path: Path, name: str, at: str) -> None:
    store = tmp_path / "store"
    (store / name).parent.mkdir(parents=True)
    (store / name).write_text('{"name": "an app"}')
    (store / "photo.png").touch()
    with refused(store / at, says="set data.store to another folder"):
        prepare(make_config())
    assert {path.name for path in store.iterdir()} == {name.partition("/")[0], "photo.png"}


def test_without_a_folder_of_its_own_every_content_has_another(make_config: Make) -> None:
    others = ({}, {"partition__seed": 1}, {"data__dtype": "float16"}, {"data__options": {"nodes": 500}})
    paths = {store_path(make_config(data__store=None, **changes)) for changes in others}
    assert len(paths) == 4
    assert store_path(make_config(data__store=None, data__split_seed=3, propagation__hops=1)) in paths


def test_splits_by_hand(make_ring: Make) -> None:
    # 10 nodes of class 0 give 2, 4, 4; 4 nodes of class 1 give 0, 1, 3; 2 nodes have no label.
    store = prepare(make_ring([0] * 10 + [1] * 4 + [-1] * 2))
    (split,) = store.manifest.splits.values()
    assert (split.counts.tolist(), split.without_training, split.unreachable) == ([[2, 5, 7]], [], 3)
    assert (store.manifest.clients[0].labelled, store.manifest.clients[0].classes) == (14, [10, 4])


@pytest.mark.parametrize("protocol", ["public", "file"])
def test_splits_that_are_given(make_ring: Make, tmp_path: Path, protocol: str) -> None:
    code = np.random.default_rng(0).integers(0, 4, 40)
    np.save(tmp_path / "split.npy", code)
    given = {"data__split": protocol}
    if protocol == "file":
        given["data__split_file"] = str(tmp_path / "split.npy")
    store = prepare(make_ring([0, 1] * 20, split=code.tolist(), clients=4, **given))
    (name,) = store.manifest.splits
    for client in range(4):
        node, split = store.shard(client).node, store.split(name, client)
        for part, rows in ((1, split.train), (2, split.val), (3, split.test)):
            assert sorted(node[rows]) == np.flatnonzero((code == part) & np.isin(np.arange(40), node)).tolist()


@pytest.mark.parametrize(
    ("codes", "in_file", "says"),
    [
        ([1, 2, 3], True, "3 entries for 4 nodes of files; give one each"),
        ([1, 2, 3, 7], False, "found 7 at node 3"),
        ([1, 2, 3, 3], False, "data.split file: client 0 has an unlabelled node in its split"),
        (None, False, "data.split public: files has no split of its own"),
        ([1, 2, 0, 0], True, "the split has codes 0, 1, 2 and so no test item"),
    ],
)
def test_given_splits_that_do_not_fit(make_ring: Make, tmp_path: Path, codes: Any, in_file: bool, says: str) -> None:
    file, given = tmp_path / "split.npy", {"data__split": "public"}
    if codes is not None:
        np.save(file, np.array(codes))
        given = {"data__split": "file", "data__split_file": str(file)}
    with refused(*([str(file)] if in_file else []), says=says):
        prepare(make_ring([0, 1, 0, -1], **given))


def test_a_split_without_test_items_is_refused(make_ring: Make, make_config: Make) -> None:
    with refused("data.split public", says="has codes 0, 1, 2 and so no test item"):
        prepare(make_ring([0, 1] * 4, split=[0, 1, 2, 0, 1, 2, 0, 1], data__split="public"))
    for fractions in ([0.5, 0.5, 0.0], [0.0, 0.5, 0.5]):
        with refused("data.fractions", says="give both a share above 0"):
            prepare(make_config(data__fractions=fractions))


@pytest.mark.parametrize(
    ("dataset", "options", "says"),
    [
        ("digits", {"neighbors": 5, "nodes": 50}, "nodes: has no effect with data.dataset digits, its options are nei"),
        ("cora", {"scale": 0.5}, "scale: has no effect with data.dataset cora, which has no options"),
        ("sbm-graphs", {"blocks": 20}, "blocks: has no effect"),
        ("nci1", {"degree_cap": 3}, "degree_cap: has no effect"),
        ("imdb-binary", {"degree_cap": 3, "nodes": 10000}, None),
        ("induced-node", {"base": "sbm", "samples": 9, "nodes": 900}, None),
        ("induced-node", {"base": "sbm", "graphs": 9}, "graphs: has no effect"),
        (["digits", "cora"], {"neighbors": 5}, None),
    ],
)
def test_an_option_of_another_dataset_is_refused(dataset: Any, options: dict[str, Any], says: str | None) -> None:
    task = "graph" if dataset in ("sbm-graphs", "nci1", "imdb-binary", "induced-node") else "node"
    partition = {"clients": [2, 2] if isinstance(dataset, list) else 2, "method": "random"}
    data = {"dataset": dataset, "options": options}
    config = config_from({"name": "x", "task": task, "data": data, "partition": partition, "algorithm": "fedavg"})
    with refused(*([f"data.options.{says.partition(':')[0]}"] if says else []), says=says) if says else nullcontext():
        require_known(config)


def test_every_node_a_client(make_ring: Make, tmp_path: Path) -> None:
    ring = {"label": [0, 1, 0, 1, 0, 1, 0, 1], "clients": 8}
    with refused(says="data.split stratified: no client has a training node"):
        prepare(make_ring(**ring))
    np.save(tmp_path / "split.npy", np.array([1, 1, 3, 3, 2, 2, 0, 0]))
    store = prepare(make_ring(**ring, data__split="file", data__split_file=str(tmp_path / "split.npy")))
    assert [client.entries for client in store.manifest.clients] == [0] * 8
    (split,) = store.manifest.splits.values()
    owner = {int(store.shard(client).node[0]): client for client in range(8)}
    assert split.without_training == sorted(owner[node] for node in range(2, 8))
    assert split.unreachable == 2
    np.testing.assert_array_equal(store.hops(HOPS, 0)[1].toarray(), store.shard(0).x.toarray())


def test_the_whole_graph_is_split_as_its_clients_are(make_config: Make) -> None:
    config = make_config()
    whole, graph = prepare(config, centralized=True), read_graph(config)
    clients = Store(whole.path.parent)
    assert whole.clients == 1
    assert whole.manifest.clients[0].entries == graph.entries > sum(c.entries for c in clients.manifest.clients)
    assert_clients_hold(graph, whole)
    shard, split = whole.shard(0), whole.split(SPLIT, 0)
    for part in ("train", "val", "test"):
        parts = [clients.shard(c).node[getattr(clients.split(SPLIT, c), part)] for c in range(5)]
        np.testing.assert_array_equal(np.sort(shard.node[getattr(split, part)]), np.sort(np.concatenate(parts)))
    before = times(clients.path)
    assert prepare(config, centralized=True).manifest == whole.manifest
    assert times(clients.path) == before
    assert verify(whole) == verify(clients) == []


def test_a_whole_graph_above_the_memory_limit(make_config: Make) -> None:
    config = make_config(engine__memory_limit="24KiB")
    # 400 rows of 5 features and of two hops, and 2400 neighbours, at 4 bytes each.
    with refused(says="the whole graph takes 32.8 KiB, engine.memory_limit is 24.0 KiB"):
        prepare(config, centralized=True)
    prepare(config)


@pytest.mark.usefixtures("unpacked")
def test_disk_space_counts_only_what_is_left_to_write(make_config: Make, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system of 3 MiB needs the rights of an administrator")
    try:
        # 1.2 MiB of shards and as much of hops: they fit once.
        options = {"nodes": 2400, "features": 128, "classes": 4}
        config = make_config(data__store=str(disk / "store"), data__options=options, propagation__hops=1)
        filler = disk / "filler"
        filler.write_bytes(bytes(2**21))
        with refused(says=f"{disk}/store: the shards need 0.00 GiB, "):
            prepare(config)
        filler.unlink()
        store = prepare(config)
        (store.path / NAME).unlink()
        path = store.path
        # The maps of its tables.
        del store
        shutil.rmtree(path / "splits")
        (path / "clients" / "00004.arrow").unlink()
        assert shutil.disk_usage(disk).free < 1.2 * 2**20
        assert verify(prepare(config)) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("options", "key", "says"),
    [
        ({"nodez": 3}, "data.options.nodez", "unknown; known here: "),
        ({"nodes": "many"}, "data.options.nodes", "found 'many'"),
        ({"nodes": 10**12}, "data.options.nodes", "less than 2147483648"),
        ({"nodes": 2 * 10**9}, "data.nodes", "2000000000 of 32 features: it needs "),
        ({"features": 2 * 10**9}, "data.nodes", "10000 of 2000000000 features: it needs"),
        ({"blocks": 10**12}, "data.options.blocks", ""),
        ({"degree": float("nan")}, "data.options.degree", "found nan"),
        ({"degree": "3"}, "data.options.degree", "found '3'"),
        ({"nodes": True}, "data.options.nodes", "found True"),
        ({"nodes": "120"}, "data.options.nodes", "found '120'"),
        ({"seed": 2**64}, "data.options.seed", ""),
        ({"seed": -1}, "data.seed", ""),
        ({"signal": 1e300}, "data.signal", ""),
        ({"scratch": "a\0b"}, "data.options.scratch", "has a character that no path can have"),
        ({"scratch": "a\udcff"}, "data.options.scratch", "bytes that are no UTF-8"),
    ],
)
def test_wrong_options_of_a_dataset_are_refused(make_config: Make, options: Any, key: str, says: str) -> None:
    with refused(key, says=says):
        prepare(make_config(data__options=options))


@pytest.mark.parametrize(
    ("dataset", "options", "nodes"),
    [("sbm", {"nodes": 100}, 100), ("digits", {}, 1797), ("arxiv-like", {"scale": 0.01}, 1693)],
)
def test_more_clients_than_nodes(make_config: Make, tmp_path: Path, dataset: str, options: Any, nodes: int) -> None:
    with refused(says=f"partition.clients is {nodes + 1}, but dataset '{dataset}' has {nodes} "):
        prepare(make_config(data__dataset=dataset, data__options=options, partition__clients=nodes + 1))
    assert list(tmp_path.iterdir()) == []
