import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.arrow_file import FileRecord, checksum
from storage.errors import ShoalError
from storage.hops import hops_bytes, write_hops
from storage.induced import Induced
from storage.propagation import Kernel
from storage.shard import write_shard
from storage.store import Store, verify

SPLIT, KERNEL = "stratified-50-20-30-seed0", "r0.5-k2-float32"
SHARD = "clients/00000.arrow"


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


def test_every_file_is_listed_and_a_sound_store_has_no_fault(store: Store) -> None:
    on_disk = {str(path.relative_to(store.path)) for path in store.path.rglob("*.arrow")}
    assert {str(path) for path, _ in store.files()} == on_disk
    assert len(on_disk) == 9
    steps: list[None] = []
    assert verify(store, lambda: steps.append(None)) == []
    assert len(steps) == 9


def test_clients_of_any_size(store: Store) -> None:
    assert [store.shard(client).nodes for client in range(store.clients)] == [20, 9, 1]
    assert store.shard(2).entries == 0
    assert [hop.shape for hop in store.hops(KERNEL, 2)] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(store.hops(KERNEL, 2)[1], store.shard(2).x)
    rows = store.split(SPLIT, 0)
    assert sorted([*rows.train, *rows.val, *rows.test]) == np.flatnonzero(store.shard(0).label >= 0).tolist()


def test_what_hops_take(store: Store) -> None:
    written = sum(hop.nbytes for client in range(3) for hop in store.hops(KERNEL, client))
    assert hops_bytes(30, 3, Kernel(2)) == written
    assert hops_bytes(30, 3, Kernel(2, dtype="float16")) == written / 2


@pytest.mark.parametrize("client", [-1, 3])
def test_no_such_client(store: Store, client: int) -> None:
    reads = (store.shard, lambda c: store.split(SPLIT, c), lambda c: store.hops(KERNEL, c))
    for read in reads:
        with pytest.raises(ShoalError, match=rf"^{store.path}: no client {client}; it has clients 0 to 2$"):
            read(client)


def test_what_was_not_prepared(store: Store) -> None:
    with pytest.raises(ShoalError, match=rf"^{store.path}: no split 'public'; run `shoal prepare` on the config$"):
        store.split("public", 0)
    with pytest.raises(ShoalError, match=rf"^{store.path}: no hops 'r1-k1'; run `shoal prepare` on the config$"):
        store.hops("r1-k1", 0)
    with pytest.raises(ShoalError, match=rf"^{store.path}/whole: no manifest\.json, .*; run `shoal prepare` .*$"):
        store.whole()


def test_missing_and_truncated(store: Store) -> None:
    path = store.path / SHARD
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ShoalError, match=rf"^{path}: \d+ bytes, the manifest says \d+; .* delete the file .*$"):
        store.shard(0)
    assert verify(store) == [f"{path}: checksum does not match the manifest"]
    path.unlink()
    with pytest.raises(ShoalError, match=rf"^{path}: missing; run `shoal prepare` again$"):
        store.shard(0)
    assert verify(store) == [f"{path}: missing"]


@pytest.mark.parametrize("folder", ["clients", f"splits/{SPLIT}", f"hops/{KERNEL}"])
def test_one_flipped_bit_of_any_file_is_found(store: Store, folder: str) -> None:
    path = store.path / folder / "00001.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert verify(store) == [f"{path}: checksum does not match the manifest"]


def with_shard(store: Store, client: int, path: Path) -> Store:
    """The store as if its manifest had been made for the file that lies there now."""
    clients = list(store.manifest.clients)
    clients[client] = replace(clients[client], file=FileRecord(path.stat().st_size, checksum(path)))
    replace(store.manifest, clients=clients).write(store.path)
    return Store(store.path)


def test_a_file_of_another_kind(store: Store) -> None:
    path = store.path / SHARD
    shutil.copy(store.path / f"hops/{KERNEL}/00000.arrow", path)
    swapped = with_shard(store, 0, path)
    with pytest.raises(ShoalError, match=rf"^{path}: not a shard of format 1; .*$") as caught:
        swapped.shard(0)
    assert verify(swapped) == [str(caught.value)]


def test_hops_of_another_shard(store: Store) -> None:
    path = store.path / f"hops/{KERNEL}/00000.arrow"
    record = write_hops(path, store.shard(1), Kernel(2))
    hops = {KERNEL: [record, *store.manifest.hops[KERNEL][1:]]}
    replace(store.manifest, hops=hops).write(store.path)
    with pytest.raises(ShoalError, match=rf"^{path}: 9 rows for a shard of 20; delete the file .*$"):
        Store(store.path).hops(KERNEL, 0)


def test_neighbours_and_labels_out_of_bounds(store: Store) -> None:
    path = store.path / "clients/00002.arrow"
    part = Induced(np.array([29]), np.array([0, 1]), np.array([1]))
    write_shard(path, 2, part, np.full(30, 7), np.ones((1, 3), dtype=np.float32))
    faults = verify(with_shard(store, 2, path))
    assert faults == [f"{path}: a neighbour lies outside rows 0 to 0", f"{path}: a label lies outside -1 to 1"]
