"""Nothing is made from a file that is not what was written, and nothing is made twice in two ways."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.engine.config.config import Config
from shoal.engine.preparing.prepare import prepare
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store, hops_path, shard_path, split_path
from shoal.storage.store.verify import verify

MakeConfig = Callable[..., Config]
SPLIT, KERNEL = "stratified-20-40-40-seed0", "r0.5-k2-float32"


def in_turn(graph: Graph, options: PartitionOptions, workspace: Workspace) -> np.ndarray:
    """Another partition, such as a partitioner gives after an update."""
    return (np.arange(graph.nodes) % options.clients).astype(np.int32)


def flip(path: Path) -> bytes:
    """Changes a bit that no reader of Arrow files looks at, in a file of the same size; gives what was there."""
    before = path.read_bytes()
    content = bytearray(before)
    content[7] ^= 1
    path.write_bytes(content)
    return before


@pytest.mark.parametrize(
    "change", [{"data__split_seed": 1}, {"propagation__hops": 1}, {"propagation__rows": "labelled"}]
)
def test_splits_and_hops_are_made_from_sound_shards_only(make_config: MakeConfig, change: dict[str, object]) -> None:
    path = prepare(make_config()).path / shard_path(3)
    before = flip(path)
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest; .*delete the file and run"):
        prepare(make_config(**change))
    path.write_bytes(before)
    assert verify(prepare(make_config(**change))) == []


def test_tasks_of_a_cluster_read_sound_shards_only(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = prepare(make_config()).path / shard_path(3)
    flip(path)
    monkeypatch.setattr("shoal.engine.preparing.store_steps.CLUSTER_BYTES", 0)
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest; .*"):
        prepare(make_config(propagation__hops=1, engine__backend="ray", engine__hosts=1))


@pytest.mark.parametrize(
    "relative", [shard_path(2), split_path(SPLIT, 2), hops_path(KERNEL, 2), Path("assignment.npy")], ids=str
)
def test_what_an_interrupted_prepare_finished_is_compared(
    make_config: MakeConfig, capsys: pytest.CaptureFixture[str], relative: Path
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


def test_shards_of_two_partitions_are_not_mixed(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    store = prepare(config)
    monkeypatch.setattr("shoal.engine.preparing.store_builder.partition", in_turn)
    (store.path / NAME).unlink()
    flip(store.path / "assignment.npy")
    (store.path / shard_path(1)).unlink()
    line = rf"^{store.path}/assignment\.npy: was lost or damaged, .*; delete the folder {store.path} and run"
    for _ in range(2):
        with pytest.raises(ShoalError, match=line):
            prepare(config)


def test_shards_made_again_must_be_those_that_splits_were_made_of(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    store = prepare(config)
    monkeypatch.setattr("shoal.engine.preparing.store_builder.partition", in_turn)
    (store.path / "progress.jsonl").unlink()
    (store.path / shard_path(1)).unlink()
    for _ in range(2):
        with pytest.raises(
            ShoalError, match=rf"^{store.path}: shards that were made again are not what they were, .*;"
        ):
            prepare(config)
        (store.path / shard_path(1)).unlink()
    assert Store(store.path).manifest == store.manifest


def test_a_damaged_journal_is_refused_and_can_be_deleted(make_config: MakeConfig) -> None:
    store = prepare(make_config())
    journal = store.path / "progress.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"bytes": 1', b'"bytes": 2', 1))
    # A finished store is read without it.
    assert prepare(make_config()).manifest == store.manifest
    with pytest.raises(ShoalError, match=rf"^{journal}: line \d+ is damaged \(changed .*\); delete it and run `shoal"):
        prepare(make_config(propagation__hops=1))
    journal.unlink()
    assert verify(prepare(make_config(propagation__hops=1))) == []
