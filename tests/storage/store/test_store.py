import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import digest
from shoal.storage.graph.induced import Induced
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.store.arrow_file import record_of
from shoal.storage.store.hops import hops_bytes, write_hops
from shoal.storage.store.shard import write_shard
from shoal.storage.store.store import Store

SPLIT, KERNEL = "stratified-50-20-30-seed0", "r0.5-k2-float32"
SHARD = "clients/00000.arrow"


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


def test_every_file_is_listed(store: Store) -> None:
    on_disk = {str(path.relative_to(store.path)) for path in store.path.rglob("*.arrow")}
    assert {str(path) for path, _ in store.files()} == on_disk
    assert len(on_disk) == 9


def test_clients_of_any_size(store: Store) -> None:
    assert [store.shard(client).nodes for client in range(store.clients)] == [20, 9, 1]
    assert store.shard(2).entries == 0
    assert [hop.shape for hop in store.hops(KERNEL, 2)] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(store.hops(KERNEL, 2)[1], store.shard(2).x)
    rows = store.split(SPLIT, 0)
    assert sorted([*rows.train, *rows.val, *rows.test]) == np.flatnonzero(store.shard(0).label >= 0).tolist()


def test_what_hops_take(store: Store) -> None:
    written = sum(hop.nbytes for client in range(3) for hop in store.hops(KERNEL, client))
    assert hops_bytes(30, 3, PropagationOptions(2)) == written
    assert hops_bytes(30, 3, PropagationOptions(2, dtype="float16")) == written / 2


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


def flip(path: Path) -> None:
    """Changes a bit that no reader of Arrow files looks at, behind the six letters that they begin with."""
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


def test_missing_and_truncated(store: Store) -> None:
    path = store.path / SHARD
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ShoalError, match=rf"^{path}: \d+ bytes, the manifest says \d+; .* delete the file .*$"):
        store.shard(0)
    path.unlink()
    with pytest.raises(ShoalError, match=rf"^{path}: missing; run `shoal prepare` again$"):
        store.shard(0)


OPENINGS = {
    "clients": lambda store: store.shard(1),
    f"splits/{SPLIT}": lambda store: store.split(SPLIT, 1),
    f"hops/{KERNEL}": lambda store: store.hops(KERNEL, 1),
}


@pytest.mark.parametrize("folder", list(OPENINGS))
def test_one_flipped_bit_of_any_file_is_found_when_it_is_first_opened(store: Store, folder: str) -> None:
    path = store.path / folder / "00001.arrow"
    flip(path)
    for _ in range(2):
        with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest; .*delete the file .*$"):
            OPENINGS[folder](store)
        with pytest.raises(ShoalError, match=rf"^{path}: checksum .*$"):
            store.data(SPLIT, KERNEL, 1)
    # Whoever wants that opens it unchecked.
    OPENINGS[folder](Store(store.path, first_read=False))
    flip(path)
    OPENINGS[folder](store)


@pytest.mark.parametrize("folder", list(OPENINGS))
def test_a_file_is_checked_once_a_store(store: Store, folder: str) -> None:
    path = store.path / folder / "00001.arrow"
    OPENINGS[folder](store)
    flip(path)
    OPENINGS[folder](store)
    with pytest.raises(ShoalError, match=rf"^{path}: checksum does not match the manifest; .*$"):
        OPENINGS[folder](Store(store.path))


def test_threads_check_a_file_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr("shoal.storage.store.arrow_file.digest", counted)
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(store.shard, [0, 1, 2] * 20))
    assert [shard.nodes for shard in opened[:3]] == [20, 9, 1]
    assert sorted(read) == [store.path / f"clients/0000{client}.arrow" for client in range(3)]


def with_shard(store: Store, client: int, path: Path) -> Store:
    """The store as if its manifest had been made for the file that lies there now."""
    clients = list(store.manifest.clients)
    clients[client] = replace(clients[client], file=record_of(path))
    replace(store.manifest, clients=clients).write(store.path)
    return Store(store.path)


def test_a_file_of_another_kind(store: Store) -> None:
    path = store.path / SHARD
    shutil.copy(store.path / f"hops/{KERNEL}/00000.arrow", path)
    swapped = with_shard(store, 0, path)
    with pytest.raises(ShoalError, match=rf"^{path}: not a shard of format 1; .*$"):
        swapped.shard(0)


def test_hops_of_another_shard(store: Store) -> None:
    path = store.path / f"hops/{KERNEL}/00000.arrow"
    record = write_hops(path, store.shard(1), PropagationOptions(2))
    hops = {KERNEL: [record, *store.manifest.hops[KERNEL][1:]]}
    replace(store.manifest, hops=hops).write(store.path)
    with pytest.raises(ShoalError, match=rf"^{path}: 9 rows for a shard of 20; .*delete the file .*$"):
        Store(store.path).hops(KERNEL, 0)
    with pytest.raises(ShoalError, match=rf"^{path}: 9 rows for a shard of 20; delete the file .*$"):
        Store(store.path, first_read=False).hops(KERNEL, 0)


def test_neighbours_out_of_bounds(store: Store) -> None:
    path = store.path / "clients/00002.arrow"
    part = Induced(np.array([29]), np.array([0, 1]), np.array([1]))
    write_shard(path, 2, part, np.zeros(30), np.ones((1, 3), dtype=np.float32))
    with pytest.raises(ShoalError, match=rf"^{path}: a neighbour lies outside rows 0 to 0; .*delete the file .*$"):
        with_shard(store, 2, path).data(SPLIT, KERNEL, 2)
