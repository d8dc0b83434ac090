"""Clients that share nodes: who holds what, by sets and sparse algebra; one split for all; what runs say; refusals."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.fixtures import Configure
from support.shards import assert_holds, times
from support.small_runs import run_small, small_run
from support.user_graph import sparse_features, user_graph

from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.identity import identity, store_or_overlay
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.screen.tables import console, show_run, show_store
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.partition.quality import quality
from shoal.storage.graph.gather import memory_of
from shoal.storage.shards.split import PARTS
from shoal.storage.store.store import ASSIGNMENT, Store
from shoal.storage.store.verify import verify

SIX = {"partition__clients": 6, "partition__overlap": 3, "partition__drawn": 0.5}


@pytest.fixture
def make(make_config: Configure) -> Configure:
    """A config on a block model of 400 nodes, two parts of which three clients each draw half of the nodes."""
    return lambda **changes: make_config(**{**SIX, "engine__backend": "local", **changes})


def held_by(config: Config) -> list[np.ndarray]:
    """The nodes of every client, from the assignment of a store that is prepared."""
    rows_LN = np.load(store_or_overlay(config) / ASSIGNMENT)
    return [np.flatnonzero((rows_LN == client).any(0)) for client in range(config.partition.clients)]


def parts_of(store: Store, config: Config) -> dict[str, list[np.ndarray]]:
    """Global ids of the nodes of each part of the split, client by client."""
    splits = [(store.shard(c).node, store.split(config.data.split_name, c)) for c in range(store.clients)]
    return {part: [node[getattr(split, part)] for node, split in splits] for part in PARTS}


def test_clients_draw_from_the_parts_of_the_method(make: Configure) -> None:
    config = make()
    graph, options = read_graph(config), config.partition
    rows_LN = partition(graph, options)
    assert (rows_LN.shape, rows_LN.dtype) == ((3, 400), np.int32)
    part_N = partition(graph, PartitionOptions("metis", 2))
    held = [set(np.flatnonzero((rows_LN == client).any(0)).tolist()) for client in range(6)]
    for client, nodes in enumerate(held):
        part = set(np.flatnonzero(part_N == client % 2).tolist())
        assert nodes < part
        assert len(nodes) == len(part) // 2
    # Two halves drawn by chance share a quarter of a part of 200 nodes, with a deviation of 3.5 nodes.
    for a, b in combinations(range(6), 2):
        shared = len(held[a] & held[b])
        assert shared == 0 if (a - b) % 2 else 30 < shared < 70
    assert (partition(graph, options) == rows_LN).all()
    assert (partition(graph, PartitionOptions("metis", 6, seed=1, overlap=3)) != rows_LN).any()
    # All of a part: its clients are the same.
    all_LN = partition(graph, PartitionOptions("metis", 6, overlap=3, drawn=1.0))
    assert (all_LN == part_N + 2 * np.arange(3)[:, None]).all()


def test_quality_counts_an_edge_once_and_a_node_at_each_client(make: Configure) -> None:
    graph, clients = read_graph(make()), 6
    rows_LN = partition(graph, PartitionOptions("metis", clients, overlap=3))
    measured = quality(graph, rows_LN, clients)
    held = [set(np.flatnonzero((rows_LN == client).any(0)).tolist()) for client in range(clients)]
    source = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr)).tolist()
    edges = list(zip(source, graph.indices.tolist()))
    inside = [sum(u in nodes and v in nodes for u, v in edges) for nodes in held]
    assert measured.entries == tuple(inside)
    assert measured.nodes == tuple(map(len, held))
    kept = sum(any(u in nodes and v in nodes for nodes in held) for u, v in edges)
    assert measured.cut_fraction == pytest.approx(1 - kept / len(edges))
    holders = [sum(node in nodes for nodes in held) for node in range(graph.nodes)]
    several, none = sum(count > 1 for count in holders), holders.count(0)
    assert measured.shared == {"by several": several, "by none": none}
    assert several > 100
    assert none > 10


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_shards_are_the_graphs_that_the_drawn_nodes_induce(
    make: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    path = user_graph(tmp_path, 240, x=sparse_features(240, 9, 0.2))
    own = {"data__dataset": "files", "data__path": path, "data__options": {}, "data__layout": layout}
    config = make(**own, partition__method="random")
    # Files of four clients each, so that one has clients of two rows of the assignment.
    monkeypatch.setattr("shoal.engine.preparing.store_builder.clients_a_pack", lambda clients, size: 4)
    store, graph = prepare(config), read_graph(config)
    assert store.manifest.pack == 4
    held = held_by(config)
    assert sum(map(len, held)) == store.manifest.clients.count("nodes").sum() == 6 * 60
    for client, nodes in enumerate(held):
        assert_holds(store, client, nodes, graph)
    assert verify(store) == []


def test_memory_that_holds_one_client_alone_makes_the_same_store(make: Configure, tmp_path: Path) -> None:
    config = make()
    graph = read_graph(config)
    rows_LN = partition(graph, config.partition)
    rows_LN = np.where(rows_LN < 0, 6, rows_LN)
    memory = memory_of(graph, rows_LN, np.zeros_like(rows_LN), "float32", "dense")
    of_each = [memory_of(graph, row, np.zeros_like(row), "float32", "dense") for row in rows_LN]
    assert memory.nodes[:6].tolist() == sum(one.nodes[:6] for one in (m for m in of_each)).tolist()
    stores = [
        prepare(make(data__store=str(tmp_path / name), engine__memory_limit=limit))
        for name, limit in (("roomy", "1GiB"), ("tight", "40KiB"))
    ]
    assert stores[0].manifest.clients == stores[1].manifest.clients


def test_a_node_is_in_the_same_part_at_every_client(make: Configure, tmp_path: Path) -> None:
    """No validation or test node of a client trains at another, whoever draws the split."""
    np.save(tmp_path / "split.npy", np.arange(400) % 4)
    splits: list[dict[str, Any]] = [{}, {"data__split": "per_client"}]
    splits += [{"data__split": "file", "data__split_file": str(tmp_path / "split.npy")}]
    for changes in splits:
        config = make(**changes)
        store = prepare(config)
        of_parts = {part: [set(nodes.tolist()) for nodes in ids] for part, ids in parts_of(store, config).items()}
        different = {part: set().union(*several) for part, several in of_parts.items()}
        for part, other in combinations(PARTS, 2):
            assert not different[part] & different[other], (changes, part, other)
        record = store.manifest.splits[config.data.split_name]
        assert record.distinct == [len(different[part]) for part in PARTS]
        counted = [sum(map(len, of_parts[part])) for part in PARTS]
        assert record.counts.sum(0).tolist() == counted
        assert all(some < of_all for some, of_all in zip(record.distinct, counted))
        assert Store(store.path).manifest.splits[config.data.split_name].distinct == record.distinct


def test_shares_are_those_of_the_nodes_of_a_part_by_class(make: Configure) -> None:
    config = make()
    store, graph, held = prepare(config), read_graph(config), held_by(config)
    trained = set(np.concatenate(parts_of(store, config)["train"]).tolist())
    for part in range(2):
        nodes = np.unique(np.concatenate(held[part::2]))
        for label in range(4):
            of_class = nodes[graph.y[nodes] == label]
            assert len(trained.intersection(of_class.tolist())) == int(0.2 * len(of_class) + 1e-9)


def test_centralised_training_has_each_training_node_once(make: Configure) -> None:
    config = make()
    store, whole = prepare(config), prepare(config, centralized=True)
    (everywhere,) = parts_of(whole, config)["train"]
    assert sorted(everywhere) == sorted(set(np.concatenate(parts_of(store, config)["train"])))
    assert whole.manifest.splits[config.data.split_name].distinct is None


def test_files_that_were_lost_are_made_again_as_they_were(make: Configure) -> None:
    config = make()
    store = prepare(config)
    before, manifest = times(store.path), store.manifest
    for lost in ("clients", "splits"):
        next(iter(sorted((store.path / lost).rglob("*.arrow")))).unlink()
    (store.path / ASSIGNMENT).unlink()
    again = prepare(config)
    assert again.manifest.clients == manifest.clients
    assert again.manifest.splits == manifest.splits
    assert times(store.path).keys() == before.keys()


def test_an_overlay_keeps_how_many_nodes_are_different(make: Configure, tmp_path: Path) -> None:
    prepare(make())
    config = make(data__split_seed=1, data__overlay=str(tmp_path / "overlays"))
    store = prepare(config)
    assert store.path.is_relative_to(tmp_path / "overlays")
    assert store.manifest.splits[config.data.split_name].distinct is not None


def test_a_run_says_how_many_nodes_count_more_than_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_small(tmp_path, partition={"clients": 4, "overlap": 2}, data={"inductive": True})
    config = load_config(run)
    store = Store(store_or_overlay(config))
    record = store.manifest.splits[config.data.split_name]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["distinct"] == {"counted": record.counts.sum(0).tolist(), "different": record.distinct}
    said = f"{record.counts.sum(0)[2]} test nodes are {record.distinct[2]} different ones"
    with console.capture() as shown:
        show_run(run)
    assert said in " ".join(shown.get().split())
    with console.capture() as shown:
        show_store(store.path, store.manifest)
    assert "overlap 2" in shown.get()
    assert f"{record.distinct[2]})" in shown.get()
    # Scores are of all items of all clients, as in Fed-PUB's code.
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    right = lines[-1]["scopes"]["deployed"]["test"]["rows"] * int(record.counts.sum(0)[2])
    assert right == pytest.approx(round(right), abs=1e-9)


def test_a_dry_run_counts_nodes_at_each_client(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"partition": {"clients": 4, "overlap": 4, "drawn": 1.0}}
    config = parse_config(small_run(tmp_path, **changes), "x")
    texts = []
    for _ in range(2):
        with console.capture() as shown:
            show_plan(config)
        texts.append(shown.get())
        prepare(config)
    for text in texts:
        assert "4 of 4 clients a round" in text


def test_one_client_a_node_is_what_it_was(make: Configure, make_config: Configure) -> None:
    apart = make_config(partition__clients=6)
    assert "overlap" not in identity(apart)["partition"]
    assert identity(apart) == identity(make(partition__overlap=1))
    one = partition(read_graph(apart), PartitionOptions("metis", 1, overlap=1))
    assert (one == 0).all()


def test_what_does_not_go_with_shared_nodes_is_refused(make: Configure, make_config: Configure) -> None:
    for clients, overlap in ((6, 4), (2, 3)):
        with refused("test", "partition", says=f"overlap {overlap} does not divide clients {clients}"):
            make(partition__clients=clients, partition__overlap=overlap)
    with refused("test", "partition.drawn"):
        make_config(partition__drawn=0.4)
