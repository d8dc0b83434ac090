"""Packs, and the tables that say where a client lies in them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from support.errors import refused
from support.fixtures import Configure
from support.shards import dense, flip

from shoal.engine.preparing.prepare import prepare
from shoal.storage.graph.rows import CsrRows
from shoal.storage.shards.arrow_file import MappedFile, either_column, write_pack
from shoal.storage.store.client_table import Files, clients_a_pack, clients_of, name_of
from shoal.storage.store.manifest import NAME, read_manifest
from shoal.storage.store.store import Store, hops_path, shard_path, split_path
from shoal.storage.store.verify import unnamed_files, verify

SPLIT, KERNEL = "stratified-20-40-40-seed0", "r0.5-k2-float32"


@pytest.fixture
def packed(make_config: Configure, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Five clients in packs of two, two and one."""
    monkeypatch.setattr("shoal.storage.store.client_table.MOST_IN_A_PACK", 2)
    return prepare(make_config())


def test_small_shards_share_a_file() -> None:
    assert [clients_a_pack(10, size) for size in (0, 10 << 20, (10 << 20) - 10)] == [10, 1, 10]
    assert [clients_a_pack(5000, 5000 * mean) for mean in (100, 1 << 17, 1 << 20)] == [1000, 512, 1]
    for clients in (range(3, 4), range(1000, 2000), range(100_000, 100_007)):
        assert clients_of(name_of(clients)) == clients
    assert not any(map(clients_of, ("table.arrow", "00001.hidden", "notes", "1-x.arrow")))


def test_a_pack_is_an_arrow_file_with_a_batch_a_client(
    packed: Store, make_config: Configure, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    names = {path.parts[0] for path, _ in packed.files()}
    assert names == {"clients", "splits", "hops", "tables"}
    assert len(list(packed.files())) == 3 * 3 + 3
    request.getfixturevalue("unpacked")
    alone = prepare(make_config(data__store=str(tmp_path / "alone")))
    for client in range(5):
        pack = range(client // 2 * 2, min(client // 2 * 2 + 2, 5))
        for path in (shard_path(pack), split_path(SPLIT, pack), hops_path(KERNEL, pack)):
            found = pa.ipc.open_file(packed.path / path)
            assert found.num_record_batches == len(pack)
            own = pa.ipc.open_file(alone.path / path.parent / f"{client:05d}.arrow")
            assert found.get_batch(client - pack[0]).equals(own.get_batch(0))
    record = packed.manifest.clients[3].file
    content = (packed.path / shard_path(range(2, 4))).read_bytes()
    first, last = record.batches
    own = content[:first] + content[record.start : record.start + record.bytes] + content[last:]
    assert (record.number, record.start + record.bytes) == (1, last)
    assert xxhash.xxh3_128_hexdigest(own) == record.xxh3


OPENINGS = [
    (shard_path, lambda store, client: store.shard(client)),
    (lambda pack: split_path(SPLIT, pack), lambda store, client: store.split(SPLIT, client)),
    (lambda pack: hops_path(KERNEL, pack), lambda store, client: store.hops(KERNEL, client)),
]


@pytest.mark.parametrize("number", range(3))
def test_a_damaged_client_is_named_and_the_others_are_read(packed: Store, number: int) -> None:
    place, read = OPENINGS[number]
    path = packed.path / place(range(2, 4))
    manifest = packed.manifest
    record = (manifest.clients.files, manifest.splits[SPLIT].files, manifest.hops[KERNEL])[number][3]
    before = flip(path, record.start + record.bytes - 1)
    for again in (packed, Store(packed.path)):
        read(again, 2)
        with refused(path, "client 3", says="checksum does not match the manifest"):
            read(again, 3)
    assert verify(packed) == [f"{path}: client 3: checksum does not match the manifest"]
    # What all clients are read by, and a pack that is cut off.
    for content in (before[:7] + b"1" + before[8:], before[:-3] + b"1" + before[-2:], before[:-8]):
        path.write_bytes(content)
        for client in (2, 3):
            with refused(path, f"client {client}"):
                read(Store(packed.path), client)
        read(Store(packed.path), 1)
        (fault,) = verify(packed)
        assert fault.startswith(f"{path}: ")
        assert ": client " not in fault
    path.write_bytes(before)
    assert (verify(packed), unnamed_files(packed)) == ([], [])


def test_a_store_without_packs_stays_one(make_config: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an earlier Shoal, of which something is lost, or to which something is added."""
    with monkeypatch.context() as patch:
        patch.setattr("shoal.storage.store.client_table.PACKED_BELOW", 0)
        store = prepare(make_config())
    (store.path / shard_path(2)).unlink()
    again = prepare(make_config(propagation__hops=1))
    assert again.manifest.clients == store.manifest.clients
    assert (store.path / hops_path("r0.5-k1-float32", 4)).exists()
    assert verify(again) == []


def test_a_pack_that_is_made_again_is_mapped_again(packed: Store) -> None:
    path, record = packed.path / shard_path(range(2)), packed.manifest.clients[1].file
    # In the features, which are the last of a batch.
    sound = flip(path, record.start + record.bytes - 200)
    packed.shard(0)
    path.with_suffix(".new").write_bytes(sound)
    os.replace(path.with_suffix(".new"), path)
    np.testing.assert_array_equal(packed.shard(1).x, Store(packed.path).shard(1).x)
    path.unlink()
    with refused(path, "client 1", says="missing"):
        packed.shard(1)


def test_packs_that_change_places_are_refused(packed: Store) -> None:
    first, second = (packed.path / shard_path(range(start, start + 2)) for start in (0, 2))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    for client in range(4):
        with refused(packed.path / shard_path(range(client // 2 * 2, client // 2 * 2 + 2)), f"client {client}"):
            packed.shard(client)


@pytest.mark.parametrize("damage", ["flipped", "missing", "of another store"])
def test_a_table_must_be_the_one_that_the_manifest_names(
    packed: Store, make_config: Configure, tmp_path: Path, damage: str
) -> None:
    path = packed.path / "tables" / "clients.arrow"
    content = path.read_bytes()
    if damage == "flipped":
        flip(path, len(content) // 2)
    elif damage == "missing":
        path.unlink()
    else:
        other = prepare(make_config(data__store=str(tmp_path / "other"), partition__seed=1))
        os.replace(other.path / "tables" / "clients.arrow", path)
    for read in (read_manifest, lambda store: prepare(make_config())):
        with refused(path, says="lost, damaged, or of another store than"):
            read(packed.path)
    # The way out that it names.
    (packed.path / NAME).unlink()
    assert prepare(make_config()).manifest.content(SPLIT, KERNEL) == packed.manifest.content(SPLIT, KERNEL)
    assert path.read_bytes() == content


def test_content_is_of_the_columns(packed: Store) -> None:
    manifest = packed.manifest
    files = manifest.clients.files
    content = manifest.content(SPLIT, KERNEL)
    assert read_manifest(packed.path).content(SPLIT, KERNEL) == content
    contents = {content, manifest.content(SPLIT, None)}
    for name, column in [*manifest.clients.columns.items(), *files.columns.items()]:
        other = column.copy()
        other.flat[-1] += 1
        columns = {**manifest.clients.columns, name: other}
        clients = type(manifest.clients)(columns, type(files)(2, columns))
        assert clients != manifest.clients
        contents.add(replace(manifest, clients=clients).content(SPLIT, KERNEL))
    assert len(contents) == 2 + len(manifest.clients.columns)


def test_rows_of_both_layouts_lie_in_one_column(tmp_path: Path) -> None:
    x = np.array([[0, 2, 0], [0, 0, 0], [3, 0, 4]], dtype=np.float32)
    sparse = CsrRows(*(np.array(each, np.int32) for each in ([0, 1, 1, 3], [1, 0, 2])), np.float32([2, 3, 4]), 3)
    for kind in (np.float32, np.float16):
        rows = [x.astype(kind), replace(sparse, values=sparse.values.astype(kind)), x[:0].astype(kind)]
        path = tmp_path / "a.arrow"
        record = write_pack(path, "hops", [{"hop1": either_column(each)} for each in rows])
        files = Files.of_packs([path], "hops", [record], clients=3, pack=3)
        for each, own in zip(rows, files, strict=True):
            found = MappedFile(path, "hops", own).features("hop1")
            assert type(found) is type(each)
            assert found.dtype == kind
            np.testing.assert_array_equal(dense(found), dense(each))
