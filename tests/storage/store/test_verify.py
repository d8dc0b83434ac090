"""Every file of a store is read and compared, and what is not of the store is named."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from shoal.storage.store.arrow_file import record_of
from shoal.storage.store.store import Store
from shoal.storage.store.verify import files_to_verify, unnamed_files, verify
from shoal.storage.store.writer import PROGRESS, Journal

SPLIT, KERNEL = "stratified-50-20-30-seed0", "r0.5-k2-float32"


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    """A store with an assignment that its journal names, beside a shard that the manifest names as well."""
    store = make_store()
    (store.path / "assignment.npy").write_bytes(b"to whom nodes belong")
    journal = Journal(store.path / PROGRESS)
    journal.append(store.manifest.identity)
    for name in ("assignment.npy", "clients/00000.arrow"):
        journal.append({"path": name, **asdict(record_of(store.path / name))})
    return store


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_sound_store_has_no_fault(store: Store) -> None:
    steps: list[None] = []
    assert verify(store, lambda: steps.append(None)) == []
    assert len(steps) == files_to_verify(store) == 10
    assert unnamed_files(store) == []


@pytest.mark.parametrize("folder", ["clients", f"splits/{SPLIT}", f"hops/{KERNEL}"])
def test_one_flipped_bit_of_any_file_is_found(store: Store, folder: str) -> None:
    # What this process has read before is read again.
    store.data(SPLIT, KERNEL, 1)
    path, cut = store.path / folder / "00001.arrow", store.path / "clients/00000.arrow"
    size = cut.stat().st_size
    flip(path)
    cut.write_bytes(cut.read_bytes()[:-8])
    shorter = f"{cut}: {size - 8} bytes, the manifest says {size}"
    assert verify(store) == [shorter, f"{path}: checksum does not match the manifest"]
    path.unlink()
    assert verify(store) == [shorter, f"{path}: missing"]


def test_what_only_the_journal_names(store: Store) -> None:
    path = store.path / "assignment.npy"
    flip(path)
    assert verify(store) == [f"{path}: checksum does not match {PROGRESS}"]
    # It is needed for shards only, and made again with them.
    path.unlink()
    assert verify(store) == []


def test_a_damaged_journal_is_named_and_left_as_it_is(store: Store) -> None:
    path = store.path / PROGRESS
    sound = path.read_bytes()
    flip(path)
    (fault,) = verify(store)
    assert fault.startswith(f"{path}: line 2 is damaged (")
    path.write_bytes(sound[:-5])
    assert verify(store) == []
    assert path.read_bytes() == sound[:-5]


def test_what_nothing_names(store: Store) -> None:
    strays = ["clients/00003.arrow", "notes.txt", "hops/r1.0-k1-float32/00000.arrow", "whole/clients/00000.arrow"]
    for name in strays:
        (store.path / name).parent.mkdir(exist_ok=True, parents=True)
        (store.path / name).touch()
    assert unnamed_files(store) == sorted(store.path / name for name in strays)
    assert verify(store) == []
    # A store of the whole graph is verified by itself.
    shutil.copy(store.path / "manifest.json", store.path / "whole")
    assert unnamed_files(store) == sorted(store.path / name for name in strays[:3])
