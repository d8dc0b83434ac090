"""A store, its manifest, and what is verified of both."""

import json
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.shards import flip

from shoal.storage.files.checksummed_json import SEAL, sealed, unsealed
from shoal.storage.files.digest import digest
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.arrow_file import FileRecord, record_of
from shoal.storage.shards.hops import hops_bytes, write_hops
from shoal.storage.store.client_table import Clients, Files, SplitRecord
from shoal.storage.store.manifest import NAME, Manifest, read_manifest
from shoal.storage.store.store import Store
from shoal.storage.store.verify import files_to_verify, unnamed_files, verify
from shoal.storage.store.writer import PROGRESS, Journal

SPLIT, KERNEL = "stratified-50-20-30-seed0", "r0.5-k2-float32"
SHARD = "clients/00000.arrow"


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


def test_clients_of_any_size(store: Store) -> None:
    on_disk = {path.relative_to(store.path) for path in store.path.rglob("*.arrow")}
    assert {path for path, _ in store.files()} == on_disk
    # Three kinds, and a table of each.
    assert len(on_disk) == 9 + 3
    assert [store.shard(client).nodes for client in range(store.clients)] == [20, 9, 1]
    assert store.shard(2).entries == 0
    assert [hop.shape for hop in store.hops(KERNEL, 2)] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(store.hops(KERNEL, 2)[1], store.shard(2).x)
    rows = store.split(SPLIT, 0)
    assert sorted([*rows.train, *rows.val, *rows.test]) == np.flatnonzero(store.shard(0).label >= 0).tolist()
    written = sum(hop.nbytes for client in range(3) for hop in store.hops(KERNEL, client))
    for dtype, factor in (("float32", 1), ("float16", 2)):
        assert factor * hops_bytes(30, 3, PropagationOptions(2, 0.5, dtype)) == written


def test_what_was_not_prepared(store: Store) -> None:
    refusals = [
        (lambda: store.split("public", 0), store.path, "no split 'public'"),
        (lambda: store.hops("r1-k1", 0), store.path, "no hops 'r1-k1'"),
        (store.whole, store.path / "whole", "no manifest.json"),
    ]
    for client in (-1, 3):
        for read in (store.shard, partial(store.split, SPLIT), partial(store.hops, KERNEL)):
            refusals.append((partial(read, client), store.path, f"no client {client}"))
    for read, path, says in refusals:
        with refused(path, says=says):
            read()


OPENINGS = {
    "clients": lambda store: store.shard(1),
    f"splits/{SPLIT}": lambda store: store.split(SPLIT, 1),
    f"hops/{KERNEL}": lambda store: store.hops(KERNEL, 1),
}


@pytest.mark.parametrize("folder", list(OPENINGS))
def test_one_flipped_bit_of_any_file_is_found_when_it_is_first_opened(store: Store, folder: str) -> None:
    path, read = store.path / folder / "00001.arrow", OPENINGS[folder]
    flip(path)
    for again in (read, read, lambda store: store.data(SPLIT, KERNEL, 1)):
        with refused(path, says="checksum does not match the manifest"):
            again(store)
    # Whoever wants that opens it unchecked.
    read(Store(store.path, first_read=False))
    flip(path)
    read(store)
    # Once it was checked, a store does not read it again.
    flip(path)
    read(store)
    with refused(path, says="checksum does not match the manifest"):
        read(Store(store.path))


def test_threads_check_a_file_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr("shoal.storage.shards.arrow_file.digest", counted)
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(store.shard, [0, 1, 2] * 20))
    assert [shard.nodes for shard in opened[:3]] == [20, 9, 1]
    assert sorted(read) == [store.path / f"clients/0000{client}.arrow" for client in range(3)]


def test_hops_of_another_shard(store: Store) -> None:
    path = store.path / f"hops/{KERNEL}/00000.arrow"
    record = write_hops(path, store.shard(1), PropagationOptions(2))
    hops = {KERNEL: Files.of([record, *list(store.manifest.hops[KERNEL])[1:]])}
    replace(store.manifest, hops=hops).write(store.path)
    for first_read in (True, False):
        with refused(path, says="9 rows for a shard of 20"):
            Store(store.path, first_read).hops(KERNEL, 0)


@pytest.fixture
def noted(make_store: Callable[..., Store]) -> Store:
    """A noted with an assignment that its journal names, beside a shard that the manifest names as well."""
    noted = make_store()
    (noted.path / "assignment.npy").write_bytes(b"to whom nodes belong")
    journal = Journal(noted.path / PROGRESS)
    journal.append(noted.manifest.identity)
    for name in ("assignment.npy", "clients/00000.arrow"):
        journal.append({"path": name, **asdict(record_of(noted.path / name))})
    return noted


def test_a_sound_store_has_no_fault(noted: Store) -> None:
    steps: list[None] = []
    assert verify(noted, lambda: steps.append(None)) == []
    assert len(steps) == files_to_verify(noted) == 13
    assert unnamed_files(noted) == []


@pytest.mark.parametrize("folder", ["clients", f"splits/{SPLIT}", f"hops/{KERNEL}"])
def test_one_flipped_bit_of_any_file_is_found(noted: Store, folder: str) -> None:
    # What this process has read before is read again.
    noted.data(SPLIT, KERNEL, 1)
    path, cut = noted.path / folder / "00001.arrow", noted.path / "clients/00000.arrow"
    size = cut.stat().st_size
    flip(path, path.stat().st_size // 2)
    cut.write_bytes(cut.read_bytes()[:-8])
    shorter = f"{cut}: {size - 8} bytes, the manifest says {size}"
    assert verify(noted) == [shorter, f"{path}: checksum does not match the manifest"]
    path.unlink()
    assert verify(noted) == [shorter, f"{path}: missing"]


def test_what_only_the_journal_names(noted: Store) -> None:
    path = noted.path / "assignment.npy"
    flip(path, path.stat().st_size // 2)
    assert verify(noted) == [f"{path}: checksum does not match {PROGRESS}"]
    # It is needed for shards only, and made again with them.
    path.unlink()
    assert verify(noted) == []


def test_a_damaged_journal_is_named_and_left_as_it_is(noted: Store) -> None:
    path = noted.path / PROGRESS
    sound = path.read_bytes()
    flip(path, path.stat().st_size // 2)
    (fault,) = verify(noted)
    assert fault.startswith(f"{path}: line 2 is damaged (")
    path.write_bytes(sound[:-5])
    assert verify(noted) == []
    assert path.read_bytes() == sound[:-5]


def test_what_nothing_names(noted: Store) -> None:
    strays = ["clients/00003.arrow", "notes.txt", "hops/r1.0-k1-float32/00000.arrow", "whole/clients/00000.arrow"]
    for name in strays:
        (noted.path / name).parent.mkdir(exist_ok=True, parents=True)
        (noted.path / name).touch()
    assert (unnamed_files(noted), verify(noted)) == (sorted(noted.path / name for name in strays), [])
    # A noted of the whole graph is verified by itself.
    shutil.copy(noted.path / "manifest.json", noted.path / "whole")
    assert unnamed_files(noted) == sorted(noted.path / name for name in strays[:3])


@pytest.fixture
def manifest(make_store: Callable[..., Store]) -> Manifest:
    return make_store().manifest


def test_content_is_of_what_a_run_reads(manifest: Manifest) -> None:
    content = manifest.content(SPLIT, KERNEL)
    assert re.fullmatch("[0-9a-f]{32}", content)
    split, hops = manifest.splits[SPLIT], manifest.hops[KERNEL]
    splits, kernels = {"public": split, **manifest.splits}, {"r1.0-k1-float32": hops, **manifest.hops}
    more = replace(manifest, splits=splits, hops=kernels)
    for same in (more, replace(manifest, provenance={"created": "today"}, quality={"cut_fraction": 1})):
        assert same.content(SPLIT, KERNEL) == content
    file, client = FileRecord(1, "0" * 32), manifest.clients[0]
    rows, files = split.counts.tolist(), list(split.files)
    changes = ({"identity": {}}, {"nodes": 31}, {"features": 4}, {"classes": 3}, {"dtype": "float16"})
    others = [
        *(replace(manifest, **change) for change in changes),
        replace(manifest, clients=Clients.of([replace(client, file=file), *list(manifest.clients)[1:]])),
        replace(manifest, splits={SPLIT: SplitRecord(rows, 1, split.files)}),
        replace(manifest, splits={SPLIT: SplitRecord(rows, 0, Files.of([file, *files[1:]]))}),
        replace(manifest, splits={SPLIT: SplitRecord([[1, 1, 1], *rows[1:]], 0, split.files)}),
        replace(manifest, hops={KERNEL: Files.of([file, *list(hops)[1:]])}),
    ]
    contents = [other.content(SPLIT, KERNEL) for other in others]
    assert len({content, *contents}) == len(others) + 1
    assert manifest.content(SPLIT, None) not in contents
    assert replace(manifest, hops={}).content(SPLIT, None) == manifest.content(SPLIT, None) != content


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged"),
        (b'{"format": 1,', "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        *((sealed({"format": version}).encode(), "not a manifest of format 3") for version in (1, 4, "3", None)),
        (b'{"format": 1, "clients": []}', "made by an older Shoal"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    with refused(tmp_path, says="no manifest.json"):
        read_manifest(tmp_path)
    (tmp_path / NAME).write_bytes(content)
    with refused(tmp_path / NAME, says=says):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *({key: None} for key in ("nodes", "clients", "splits", "identity")),
        *({"clients": clients} for clients in ([7], [{"client": 0}], [{"client": 0, "file": None}])),
    ],
)
def test_changed_manifest_is_damaged(tmp_path: Path, manifest: Manifest, change: dict[str, Any]) -> None:
    manifest.write(tmp_path)
    plain = unsealed((tmp_path / NAME).read_text())
    changed = {key: value for key, value in (plain | change).items() if value is not None}
    # With the seal of what it was, and with one of its own.
    for text in (json.dumps({**changed, SEAL: "0" * 16}), sealed(changed)):
        (tmp_path / NAME).write_text(text)
        with refused(tmp_path / NAME, says="damaged"):
            read_manifest(tmp_path)


@pytest.mark.parametrize(("kind", "item", "task"), [("graphs", "graph", "graph"), ("pairs", "pair", "edge")])
def test_other_items_are_written(tmp_path: Path, manifest: Manifest, kind: str, item: str, task: str) -> None:
    assert (manifest.items, manifest.item_name, manifest.task) == (30, "node", "node")
    assert (manifest.limits.graphs, manifest.limits.pairs) == (None, False)
    manifest.write(tmp_path)
    optional = {"graphs", "pairs", "weighted", "layout", "domains", "label_names"}
    assert not optional & set(unsealed((tmp_path / NAME).read_text()))
    clients = [replace(client, **{kind: number}) for number, client in enumerate(manifest.clients)]
    many = replace(manifest, clients=Clients.of(clients), **{kind: 3})
    many.write(tmp_path)
    again = read_manifest(tmp_path)
    assert [p.name for p in tmp_path.glob("manifest*")] == [NAME]
    assert (again, again.items, again.item_name, again.task) == (many, 3, item, task)
    assert (again.limits.graphs, again.limits.pairs) == ((3, False) if kind == "graphs" else (None, True))
    assert [client.items for client in again.clients] == [0, 1, 2]
    assert many.content(SPLIT, KERNEL) != manifest.content(SPLIT, KERNEL)


def test_a_manifest_without_tables_is_read(make_store: Callable[..., Store]) -> None:
    """As it was before there were packs, with the content that it had then."""
    store = make_store()
    manifest = store.manifest
    plain = unsealed((store.path / NAME).read_text())
    plain["format"] = 2
    plain["clients"] = [
        {key: value for key, value in asdict(each).items() if value is not None} for each in manifest.clients
    ]
    plain["splits"] = {
        name: {
            "counts": split.counts.tolist(), "without_training": [2], "unreachable": 0,
            "files": [asdict(each) for each in split.files],
        }
        for name, split in manifest.splits.items()
    }  # fmt: skip
    plain["hops"] = {name: [asdict(each) for each in files] for name, files in manifest.hops.items()}
    (store.path / NAME).write_text(sealed(plain))
    for table, _ in manifest.tables():
        (store.path / table).unlink()
    old = Store(store.path)
    assert old.manifest == manifest
    (split,), (kernel,) = manifest.splits, manifest.hops
    assert old.manifest.content(split, kernel) == "d0d5bce9a8609e080275ccf0ff73b754"
    assert (verify(old), unnamed_files(old)) == ([], [])
    old.manifest.write(store.path)
    assert read_manifest(store.path) == manifest
