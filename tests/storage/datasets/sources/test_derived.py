"""Derived arrays are used as they were made, or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin

FILES = ("csr/indptr.npy", "csr/indices.npy", "csr/cleaning.json", "y.npy", "split.npy")


def flip(path: Path) -> None:
    """Same size, same time of change."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture(params=["arxiv-like", "ogbn-arxiv"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> DataSource:
    twin = DataSource("arxiv-like", root=str(tmp_path), scale=0.01)
    if request.param == "ogbn-arxiv":
        write_ogb_layout(tmp_path, Twin.of("arxiv-like", twin))
        return DataSource("ogbn-arxiv", root=str(tmp_path))
    return twin


def folder(tmp_path: Path) -> Path:
    (note,) = tmp_path.rglob("contents.json")
    return note.parent


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [flip, lambda path: os.truncate(path, 3), lambda path: path.write_bytes(b"")])
def test_a_damaged_one_is_named(options: DataSource, tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    load(options)
    damage(folder(tmp_path) / name)
    with refused(says="and it is made again"):
        load(options)


@pytest.mark.parametrize("name", ["y.npy", "split.npy", "contents.json"])
def test_a_deleted_one_is_made_again(options: DataSource, tmp_path: Path, name: str) -> None:
    before = load(options)
    place = folder(tmp_path)
    (place / name).unlink()
    after = load(options)
    assert np.array_equal(after.y, before.y)
    flip(place / "y.npy")
    with refused(place / "y.npy", says="not as it was made"):
        load(options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["contents.json", "source.json"])
@pytest.mark.parametrize("text", ["", "{}", '{"csr/indptr.npy": "0"}', "\x00"])
def test_damaged_notes_delete_nothing(options: DataSource, tmp_path: Path, name: str, text: str) -> None:
    load(options)
    place = folder(tmp_path)
    before = {path: path.stat() for path in place.rglob("*.npy")}
    (place / name).write_text(text)
    with refused(place / name, says=f"delete the folder {place}"):
        load(options)
    assert {path: path.stat() for path in before} == before
