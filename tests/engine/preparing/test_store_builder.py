"""Nothing is made from a file that is not what was written, or twice in two ways; so is the store of training nodes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from support.errors import refused
from support.shards import adjacency, dense_hops, flip

from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.host import Host
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.storage.graph.graph import Graph
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, hops_path, shard_path, split_path, stores_below
from shoal.storage.store.verify import unnamed_files, verify

Make = Callable[..., Config]
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("unpacked")

SPLIT, KERNEL = "stratified-20-40-40-seed0", "r0.5-k2-float32"
RAY = {"engine__backend": "ray", "engine__hosts": 1}


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work is done by tasks of a real Ray cluster."""
    monkeypatch.setattr("shoal.engine.preparing.prepare.TO_START", 0)


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on the partition is another, such as a partitioner gives after an update."""

    def in_turn(graph: Graph, options: PartitionOptions, workspace: Workspace) -> np.ndarray:
        return (np.arange(graph.nodes) % options.clients).astype(np.int32)

    return lambda: monkeypatch.setattr("shoal.engine.preparing.store_builder.partition", in_turn)


@pytest.mark.parametrize(
    "change", [{"data__split_seed": 1}, {"propagation__hops": 1}, {"propagation__rows": "labelled"}]
)
def test_splits_and_hops_are_made_from_sound_shards_only(make_config: Make, change: dict[str, Any]) -> None:
    path = prepare(make_config()).path / shard_path(3)
    before = flip(path)
    with refused(path, says="checksum does not match the manifest"):
        prepare(make_config(**change))
    path.write_bytes(before)
    assert verify(prepare(make_config(**change))) == []


@pytest.mark.usefixtures("on_cluster")
def test_what_a_cluster_makes_is_what_is_made_here(
    make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges are sorted, and packs of shards, training shards, splits and hops are made of maps, by several tasks."""
    for limit, value in (("PACKED_BELOW", 1 << 20), ("MOST_IN_A_PACK", 2)):
        monkeypatch.setattr(f"shoal.storage.store.client_table.{limit}", value)

    def made(name: str, **changes: Any) -> Store:
        twin = {"scale": 1e-3, "scratch": str(tmp_path / f"{name}-scratch")}
        data = {"dataset": "products-like", "options": twin, "store": str(tmp_path / name), "inductive": True}
        changes |= {f"data__{key}": value for key, value in data.items()}
        return prepare(make_config(engine__memory_limit="4MiB", **changes))

    here, there = made("here", engine__backend="local"), made("there", **RAY)
    assert contents(here.path) == contents(there.path)
    assert len(contents(here.path)) == 6 * 3 + 6
    scratch = [sorted((tmp_path / f"{name}-scratch").rglob("csr/*.npy")) for name in ("here", "there")]
    assert [path.read_bytes() for path in scratch[0]] == [path.read_bytes() for path in scratch[1]]
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
def test_damage_that_a_cluster_meets_is_named(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in (("PACKED_BELOW", 1 << 20), ("MOST_IN_A_PACK", 2)):
        monkeypatch.setattr(f"shoal.storage.store.client_table.{limit}", value)
    store = prepare(make_config(engine__backend="local"))
    path, record = store.path / shard_path(range(2, 4)), store.manifest.clients[3].file
    flip(path, record.start + record.bytes - 1)
    with refused(path, "client 3", says="checksum does not match the manifest"):
        prepare(make_config(propagation__hops=1, **RAY))
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    "relative", [shard_path(2), split_path(SPLIT, 2), hops_path(KERNEL, 2), Path("assignment.npy")], ids=str
)
def test_what_a_prepare_finished_is_compared(make_config: Make, capsys: Capture, relative: Path) -> None:
    store = prepare(make_config())
    (store.path / NAME).unlink()
    before = flip(store.path / relative)
    capsys.readouterr()
    again = prepare(make_config())
    assert f"{store.path / relative}: not as it was written, made again" in "".join(capsys.readouterr())
    assert (store.path / relative).read_bytes() == before
    assert again.manifest.clients == store.manifest.clients
    assert verify(again) == []


def test_shards_of_two_partitions_are_not_mixed(make_config: Make, another: Callable[[], None]) -> None:
    store = prepare(make_config())
    another()
    (store.path / NAME).unlink()
    flip(store.path / "assignment.npy")
    (store.path / shard_path(1)).unlink()
    for _ in range(2):
        with refused(store.path / "assignment.npy", says="was lost or damaged"):
            prepare(make_config())


def test_shards_made_again_must_be_those_of_the_splits(make_config: Make, another: Callable[[], None]) -> None:
    store = prepare(make_config())
    another()
    (store.path / "progress.jsonl").unlink()
    (store.path / shard_path(1)).unlink()
    for _ in range(2):
        with refused(store.path, says="shards that were made again are not what they were"):
            prepare(make_config())
        (store.path / shard_path(1)).unlink()
    assert Store(store.path).manifest == store.manifest


def test_a_damaged_journal_is_refused_and_can_be_deleted(make_config: Make) -> None:
    store = prepare(make_config())
    journal = store.path / "progress.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"bytes": 1', b'"bytes": 2', 1))
    # A finished store is read without it.
    assert prepare(make_config()).manifest == store.manifest
    with refused(journal, says="is damaged (changed "):
        prepare(make_config(propagation__hops=1))
    journal.unlink()
    assert verify(prepare(make_config(propagation__hops=1))) == []


@pytest.fixture
def inductive(make_config: Make) -> Make:
    return lambda **changes: make_config(data__inductive=True, **changes)


def contents(store: Path) -> dict[Path, bytes]:
    """The files that a prepare makes, but for a journal in the order of work and the time of a manifest."""
    return {path.relative_to(store): path.read_bytes() for path in store.rglob("*.arrow")}


@pytest.mark.parametrize("whole", [False, True])
def test_every_client_is_what_its_training_nodes_induce(inductive: Make, whole: bool) -> None:
    store = prepare(inductive(), centralized=whole)
    training = store.training(SPLIT)
    assert training.clients == store.clients == (1 if whole else 5)
    for client in range(store.clients):
        shard, split = store.shard(client), store.split(SPLIT, client)
        own, rows, hops = training.data(SPLIT, KERNEL, client)
        assert set(own.node.tolist()) == set(shard.node[split.train].tolist())
        assert rows.train.tolist() == list(range(own.nodes))
        assert len(rows.val) == len(rows.test) == 0
        place = {int(node): row for row, node in enumerate(shard.node)}
        here = np.array([place[int(node)] for node in own.node])
        np.testing.assert_array_equal(own.x, shard.x[here])
        np.testing.assert_array_equal(own.label, shard.label[here])
        edges = adjacency(own).toarray()
        np.testing.assert_array_equal(edges, adjacency(shard).toarray()[np.ix_(here, here)])
        for stored, hop in zip(hops, dense_hops(edges, own.x.astype(np.float64))):
            np.testing.assert_allclose(stored, hop, atol=1e-5)
        record = training.manifest.clients[client]
        assert (record.nodes, record.labelled, sum(record.classes)) == (own.nodes,) * 3
    assert training.manifest.splits[SPLIT].counts.tolist() == [[c.nodes, 0, 0] for c in training.manifest.clients]
    assert 0 < sum(c.nodes for c in training.manifest.clients) < 400
    assert verify(training) == []


def test_the_store_itself_is_the_same_without(make_config: Make, inductive: Make) -> None:
    plain = prepare(make_config())
    manifest, files = (plain.path / NAME).read_bytes(), contents(plain.path)
    assert not (plain.path / "training").exists()
    store = prepare(inductive())
    assert (store.path / NAME).read_bytes() == manifest
    assert {path: content for path, content in contents(store.path).items() if path.parts[0] != "training"} == files
    assert stores_below(store.path) == [store.path / "training" / SPLIT]
    assert unnamed_files(store) == []


@pytest.mark.parametrize("lost", [NAME, shard_path(2), split_path(SPLIT, 1), hops_path(KERNEL, 3)], ids=str)
def test_training_store_goes_on_where_it_stopped(inductive: Make, lost: Path | str) -> None:
    training = prepare(inductive()).training(SPLIT)
    before, made = contents(training.path), (training.path / shard_path(0)).stat().st_mtime_ns
    (training.path / lost).unlink()
    again = prepare(inductive()).training(SPLIT)
    assert contents(again.path) == before
    assert again.manifest.content(SPLIT, KERNEL) == training.manifest.content(SPLIT, KERNEL)
    assert (training.path / shard_path(0)).stat().st_mtime_ns == made
    assert verify(again) == []


def test_another_or_damaged_training_store_is_refused(inductive: Make, tmp_path: Path) -> None:
    config = inductive(engine__backend="local")
    store = prepare(config)
    job = make_job(config, store, "first")
    Host().open(job)
    with refused(store.path / "training" / SPLIT, says="another store here than the run was"):
        Host().open(replace(job, training="0" * 32))
    path = store.training(SPLIT).path / shard_path(1)
    flip(path)
    with refused(path, says="checksum does not match the manifest"):
        Store(store.path).training(SPLIT).shard(1)
    other = prepare(inductive(data__store=str(tmp_path / "other"), partition__seed=1))
    (store.path / "training").rename(tmp_path / "kept")
    (other.path / "training").rename(store.path / "training")
    with refused(store.path / "training" / SPLIT, says="made from another dataset or partition: "):
        prepare(config)


def test_a_job_needs_hops_of_its_own(make_config: Make, inductive: Make) -> None:
    store = prepare(inductive())
    prepare(make_config(propagation__hops=1))
    with refused(store.path / "training" / SPLIT, says="has no 'r0.5-k1-float32' of this config"):
        make_job(inductive(propagation__hops=1), Store(store.path), "test")


@pytest.mark.parametrize("task", ["edge", "graph"])
def test_other_tasks_are_refused(plain: Callable[..., dict[str, object]], task: str) -> None:
    with refused("data.inductive"):
        parse_config({**plain(data__inductive=True), "task": task}, "x.yaml")
