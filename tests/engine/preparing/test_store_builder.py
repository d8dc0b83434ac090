"""Nothing is made from a file that is not what was written, and nothing is made twice in two ways."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from support.errors import refused
from support.shards import flip

from shoal.engine.config.config import Config
from shoal.engine.preparing.prepare import prepare
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.storage.graph.graph import Graph
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, hops_path, shard_path, split_path
from shoal.storage.store.verify import verify

Make = Callable[..., Config]
SPLIT, KERNEL = "stratified-20-40-40-seed0", "r0.5-k2-float32"
RAY = {"engine__backend": "ray", "engine__hosts": 1}


@pytest.fixture
def on_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hops are tasks of a real Ray cluster."""
    monkeypatch.setattr("shoal.engine.preparing.store_steps.CLUSTER_BYTES", 0)


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
def test_tasks_of_a_cluster_read_sound_shards_only(make_config: Make) -> None:
    path = prepare(make_config()).path / shard_path(3)
    flip(path)
    with refused(path, says="checksum does not match the manifest"):
        prepare(make_config(propagation__hops=1, **RAY))


@pytest.mark.usefixtures("on_cluster")
def test_hops_on_a_cluster_are_those_made_here(make_config: Make, tmp_path: Path) -> None:
    here = prepare(make_config(data__store=str(tmp_path / "here"), engine__backend="local"))
    there = prepare(make_config(data__store=str(tmp_path / "there"), **RAY))
    assert here.manifest.hops == there.manifest.hops
    assert not verify(there)
    assert not ray.is_initialized()


@pytest.mark.usefixtures("on_cluster")
def test_a_cluster_that_computes_no_hops_is_not_waited_for(make_config: Make) -> None:
    with refused("prepare", says="no hops of clients ["):
        prepare(make_config(**RAY, engine__cell_timeout=1e-3))
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    "relative", [shard_path(2), split_path(SPLIT, 2), hops_path(KERNEL, 2), Path("assignment.npy")], ids=str
)
def test_what_an_interrupted_prepare_finished_is_compared(
    make_config: Make, capsys: pytest.CaptureFixture[str], relative: Path
) -> None:
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


def test_shards_made_again_must_be_those_that_splits_were_made_of(
    make_config: Make, another: Callable[[], None]
) -> None:
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
