"""OGB's raw layouts, written by a synthetic twin, read back equal to the twin itself; damaged files are named."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.datasets.registry import fingerprint, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin
from shoal.storage.progress import Advance, watched_by

TWINS = [("products-like", "ogbn-products", 0.002), ("papers100m-like", "ogbn-papers100m", 0.0002)]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("twin", "original", "scale"), TWINS)
def test_layout_read_back_is_the_twin(tmp_path: Path, twin: str, original: str, scale: float, compress: bool) -> None:
    options = DataSource(twin, root=str(tmp_path / "direct"), scale=scale, seed=3)
    direct = load(options)
    write_ogb_layout(tmp_path, Twin.of(twin, options), compress)
    read = load(DataSource(original, root=str(tmp_path), feature_dtype="float32"))
    for graph in (direct, read):
        assert graph.synthetic
        assert graph.name == twin
    assert np.array_equal(read.indptr, direct.indptr)
    assert np.array_equal(read.indices, direct.indices)
    assert np.array_equal(read.y, direct.y)
    assert np.array_equal(read.split, direct.split)
    rows = np.arange(direct.nodes)
    np.testing.assert_allclose(read.x[rows], direct.x[rows], rtol=1e-6, atol=1e-7)
    assert read.cleaning == direct.cleaning
    again = load(DataSource(original, root=str(tmp_path), feature_dtype="float32"))
    assert np.array_equal(again.indices, read.indices)


@pytest.mark.parametrize("file", ["edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz"])
def test_truncated_file_is_named(tmp_path: Path, file: str) -> None:
    options = DataSource("products-like", scale=0.001)
    folder = write_ogb_layout(tmp_path, Twin.of("products-like", options))
    os.truncate(folder / "raw" / file, (folder / "raw" / file).stat().st_size // 2)
    with refused(says=file):
        load(DataSource("ogbn-products", root=str(tmp_path)))


def small(seed: int = 0) -> Twin:
    return Twin.of("products-like", DataSource("products-like", scale=0.001, seed=seed))


def test_files_without_the_note_are_taken_for_published(tmp_path: Path) -> None:
    """The store of the one is not that of the other, though all files are the same."""
    folder = write_ogb_layout(tmp_path, small())
    options = DataSource("ogbn-products", root=str(tmp_path))
    assert fingerprint(options)["synthetic"] == small().identity
    (folder / "SYNTHETIC.json").unlink()
    assert "synthetic" not in fingerprint(options)
    graph = load(options)
    assert not graph.synthetic
    assert graph.name == "ogbn-products"


def test_published_files_are_not_written_over(tmp_path: Path) -> None:
    raw = tmp_path / "ogbn_products" / "raw"
    raw.mkdir(parents=True)
    (raw / "node-feat.csv.gz").write_bytes(b"as published")
    with refused(raw / "node-feat.csv.gz", says="not synthetic"):
        write_ogb_layout(tmp_path, small())
    assert [path.name for path in raw.iterdir()] == ["node-feat.csv.gz"]
    assert (raw / "node-feat.csv.gz").read_bytes() == b"as published"


def test_a_twin_takes_the_place_of_another(tmp_path: Path) -> None:
    options = DataSource("ogbn-products", root=str(tmp_path))
    graphs = []
    for seed in (0, 1):
        write_ogb_layout(tmp_path, small(seed))
        assert fingerprint(options)["synthetic"]["seed"] == seed
        graphs.append(np.array(load(options).y))
    assert not np.array_equal(*graphs)


def test_a_half_written_twin_is_not_filled_up_from_the_network(tmp_path: Path, offline: None) -> None:
    @contextmanager
    def stop_at_labels(what: str, total: int, unit: str, done: int) -> Iterator[Advance]:
        if what == "labels":
            raise KeyboardInterrupt
        yield lambda count: None

    write_ogb_layout(tmp_path, small())
    with pytest.raises(KeyboardInterrupt), watched_by(stop_at_labels):
        write_ogb_layout(tmp_path, small(1))
    with refused(says="`shoal synthesize` again"):
        load(DataSource("ogbn-products", root=str(tmp_path)))


def test_a_twin_larger_than_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    twin = Twin.of("papers100m-like", DataSource("papers100m-like", scale=15.0))
    with refused(tmp_path / "ogbn_papers100M", says="the raw files need"):
        write_ogb_layout(tmp_path, twin)


@pytest.mark.parametrize("note", ["{", "[]", "{}", "5"])
def test_damaged_note_is_named(tmp_path: Path, note: str) -> None:
    folder = write_ogb_layout(tmp_path, small())
    (folder / "SYNTHETIC.json").write_text(note)
    with refused(tmp_path / "ogbn_products/SYNTHETIC.json"):
        load(DataSource("ogbn-products", root=str(tmp_path)))
