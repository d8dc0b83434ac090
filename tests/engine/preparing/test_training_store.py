"""The store of training nodes: what it holds, what it is made from, and that it goes on where it stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused
from support.shards import adjacency, dense_hops, flip

from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.host import Host
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, hops_path, shard_path, split_path, stores_below
from shoal.storage.store.verify import unnamed_files, verify

Make = Callable[..., Config]
SPLIT, KERNEL = "stratified-20-40-40-seed0", "r0.5-k2-float32"


@pytest.fixture
def make(make_config: Make) -> Make:
    return lambda **changes: make_config(data__inductive=True, **changes)


def contents(store: Path) -> dict[Path, bytes]:
    """The files that a prepare makes, but for a journal in the order of work and the time of a manifest."""
    return {path.relative_to(store): path.read_bytes() for path in store.rglob("*.arrow")}


@pytest.mark.parametrize("whole", [False, True])
def test_every_client_is_what_its_training_nodes_induce(make: Make, whole: bool) -> None:
    store = prepare(make(), centralized=whole)
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
    assert training.manifest.splits[SPLIT].counts == [[c.nodes, 0, 0] for c in training.manifest.clients]
    assert 0 < sum(c.nodes for c in training.manifest.clients) < 400
    assert verify(training) == []


def test_the_store_itself_is_the_same_without(make_config: Make, make: Make) -> None:
    plain = prepare(make_config())
    manifest, files = (plain.path / NAME).read_bytes(), contents(plain.path)
    assert not (plain.path / "training").exists()
    store = prepare(make())
    assert (store.path / NAME).read_bytes() == manifest
    assert {path: content for path, content in contents(store.path).items() if path.parts[0] != "training"} == files
    assert stores_below(store.path) == [store.path / "training" / SPLIT]
    assert unnamed_files(store) == []


@pytest.mark.parametrize("lost", [NAME, shard_path(2), split_path(SPLIT, 1), hops_path(KERNEL, 3)], ids=str)
def test_it_goes_on_where_it_stopped(make: Make, lost: Path | str) -> None:
    training = prepare(make()).training(SPLIT)
    before, made = contents(training.path), (training.path / shard_path(0)).stat().st_mtime_ns
    (training.path / lost).unlink()
    again = prepare(make()).training(SPLIT)
    assert contents(again.path) == before
    assert again.manifest.content(SPLIT, KERNEL) == training.manifest.content(SPLIT, KERNEL)
    assert (training.path / shard_path(0)).stat().st_mtime_ns == made
    assert verify(again) == []


def test_that_of_another_store_is_refused(make: Make, tmp_path: Path) -> None:
    store = prepare(make())
    other = prepare(make(data__store=str(tmp_path / "other"), partition__seed=1))
    (store.path / "training").rename(tmp_path / "kept")
    (other.path / "training").rename(store.path / "training")
    with refused(store.path / "training" / SPLIT, says="made from another dataset or partition: "):
        prepare(make())


def test_hosts_refuse_another_one_than_the_run_was_started_with(make: Make) -> None:
    config = make(engine__backend="local")
    store = prepare(config)
    job = make_job(config, store, "first")
    Host().open(job)
    with refused(store.path / "training" / SPLIT, says="another store here than the run was"):
        Host().open(replace(job, training="0" * 32))
    path = store.training(SPLIT).path / shard_path(1)
    flip(path)
    with refused(path, says="checksum does not match the manifest"):
        Store(store.path).training(SPLIT).shard(1)


def test_a_job_needs_hops_of_its_own(make_config: Make, make: Make) -> None:
    store = prepare(make())
    prepare(make_config(propagation__hops=1))
    with refused(store.path / "training" / SPLIT, says="has no 'r0.5-k1-float32' of this config"):
        make_job(make(propagation__hops=1), Store(store.path), "test")


@pytest.mark.parametrize("task", ["edge", "graph"])
def test_other_tasks_are_refused(plain: Callable[..., dict[str, object]], task: str) -> None:
    with refused("data.inductive"):
        parse_config({**plain(data__inductive=True), "task": task}, "x.yaml")
