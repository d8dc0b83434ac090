"""The store of training nodes: what it holds, what it is made from, and that it goes on where it stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.host import Host
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.errors import ShoalError
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, hops_path, shard_path, split_path, stores_below
from shoal.storage.store.verify import unnamed_files, verify

MakeConfig = Callable[..., Config]
SPLIT, KERNEL = "stratified-20-40-40-seed0", "r0.5-k2-float32"


def contents(store: Path) -> dict[Path, bytes]:
    """The files that a prepare makes, but for a journal in the order of work and the time of a manifest."""
    files = (path for path in store.rglob("*.arrow"))
    return {path.relative_to(store): path.read_bytes() for path in files}


@pytest.mark.parametrize("whole", [False, True])
def test_every_client_is_what_its_training_nodes_induce(make_config: MakeConfig, whole: bool) -> None:
    store = prepare(make_config(data__inductive=True), centralized=whole)
    training = store.training(SPLIT)
    assert training.clients == store.clients == (1 if whole else 5)
    trained = 0
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
        a, found = (np.zeros((each.nodes, each.nodes)) for each in (shard, own))
        for matrix, each in ((a, shard), (found, own)):
            matrix[np.repeat(np.arange(each.nodes), np.diff(each.indptr)), each.indices] = 1
        np.testing.assert_array_equal(found, a[np.ix_(here, here)])
        loops = found + np.eye(own.nodes)
        root = loops.sum(1) ** -0.5
        hop = own.x.astype(np.float64)
        for stored in hops:
            hop = root[:, None] * loops * root @ hop
            np.testing.assert_allclose(stored, hop, atol=1e-5)
        trained += own.nodes
        record = training.manifest.clients[client]
        assert (record.nodes, record.labelled, sum(record.classes)) == (own.nodes,) * 3
    assert training.manifest.splits[SPLIT].counts == [[c.nodes, 0, 0] for c in training.manifest.clients]
    assert 0 < trained < 400
    assert verify(training) == []


def test_the_store_itself_is_the_same_without(make_config: MakeConfig) -> None:
    plain = prepare(make_config())
    manifest, files = (plain.path / NAME).read_bytes(), contents(plain.path)
    assert not (plain.path / "training").exists()
    store = prepare(make_config(data__inductive=True))
    assert (store.path / NAME).read_bytes() == manifest
    assert {path: content for path, content in contents(store.path).items() if path.parts[0] != "training"} == files
    assert stores_below(store.path) == [store.path / "training" / SPLIT]
    assert unnamed_files(store) == []


@pytest.mark.parametrize("lost", [NAME, shard_path(2), split_path(SPLIT, 1), hops_path(KERNEL, 3)], ids=str)
def test_it_goes_on_where_it_stopped(make_config: MakeConfig, lost: Path | str) -> None:
    config = make_config(data__inductive=True)
    training = prepare(config).training(SPLIT)
    before, made = contents(training.path), (training.path / shard_path(0)).stat().st_mtime_ns
    (training.path / lost).unlink()
    again = prepare(config).training(SPLIT)
    assert contents(again.path) == before
    assert again.manifest.content(SPLIT, KERNEL) == training.manifest.content(SPLIT, KERNEL)
    assert (training.path / shard_path(0)).stat().st_mtime_ns == made
    assert verify(again) == []


def test_splits_and_hops_lie_side_by_side(make_config: MakeConfig) -> None:
    first = prepare(make_config(data__inductive=True))
    prepare(make_config(data__inductive=True, data__split_seed=1))
    prepare(make_config(data__inductive=True, propagation__hops=1))
    assert [path.name for path in stores_below(first.path)] == [SPLIT, SPLIT.replace("seed0", "seed1")]
    assert set(first.training(SPLIT).manifest.hops) == {KERNEL, "r0.5-k1-float32"}
    node = [set(first.training(split.name).shard(0).node.tolist()) for split in stores_below(first.path)]
    assert node[0] != node[1]


def test_that_of_another_store_is_refused(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(data__inductive=True)
    store = prepare(config)
    other = prepare(make_config(data__inductive=True, data__store=str(tmp_path / "other"), partition__seed=1))
    (store.path / "training").rename(tmp_path / "kept")
    (other.path / "training").rename(store.path / "training")
    line = rf"^{store.path}/training/{SPLIT}: this store was made from another dataset or partition: .*training\.of"
    with pytest.raises(ShoalError, match=line):
        prepare(config)


def test_hosts_refuse_another_one_than_the_run_was_started_with(make_config: MakeConfig) -> None:
    config = make_config(data__inductive=True, engine__backend="local")
    store = prepare(config)
    job = make_job(config, store, "first")
    Host().open(job)
    with pytest.raises(ShoalError, match=rf"^{store.path}/training/{SPLIT}: .* another store here than the run was"):
        Host().open(replace(job, training="0" * 32))
    path = store.training(SPLIT).path / shard_path(1)
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest"):
        Store(store.path).training(SPLIT).shard(1)


def test_a_job_needs_hops_of_its_own(make_config: MakeConfig) -> None:
    store = prepare(make_config(data__inductive=True))
    config = make_config(data__inductive=True, propagation__hops=1)
    prepare(make_config(propagation__hops=1))
    with pytest.raises(ShoalError, match=rf"^{store.path}/training/{SPLIT}: has no 'r0.5-k1-float32' of this config; "):
        make_job(config, Store(store.path), "test")


@pytest.mark.parametrize("task", ["edge", "graph"])
def test_other_tasks_are_refused(plain: Callable[..., dict[str, object]], task: str) -> None:
    line = rf"^x\.yaml: data\.inductive: is for labels of nodes; with task {task} leave it out$"
    with pytest.raises(ShoalError, match=line):
        parse_config({**plain(data__inductive=True), "task": task}, "x.yaml")
