"""OGB's raw layouts, written by a synthetic twin, read back equal to the twin itself; damaged files are named."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from shoal.storage.datasets.registry import fingerprint, load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin
from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
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


def test_counts_labels_and_split_of_a_twin(tmp_path: Path) -> None:
    graph = load(DataSource("papers100m-like", root=str(tmp_path), scale=0.0005))
    assert graph.nodes == pytest.approx(111_059_956 * 0.0005, rel=0.01)
    assert graph.classes == 172
    assert graph.features == 128
    assert graph.split is not None
    sizes = [int((graph.split == part).sum()) for part in (TRAIN, VAL, TEST)]
    assert sizes == pytest.approx([604, 63, 107], abs=2)
    assert np.array_equal(graph.y >= 0, graph.split > 0)
    degree = np.diff(graph.indptr)
    assert degree.max() > 10 * degree.mean()


@pytest.mark.parametrize("file", ["edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz"])
def test_truncated_file_is_named(tmp_path: Path, file: str) -> None:
    options = DataSource("products-like", scale=0.001)
    folder = write_ogb_layout(tmp_path, Twin.of("products-like", options))
    os.truncate(folder / "raw" / file, (folder / "raw" / file).stat().st_size // 2)
    with pytest.raises(ShoalError, match=rf"{file}[^\n]*$"):
        load(DataSource("ogbn-products", root=str(tmp_path)))


def test_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=rf"{tmp_path}[^\n]*$"):
        load(DataSource("ogbn-arxiv", root=str(tmp_path)))


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
    with pytest.raises(ShoalError, match=rf"^{raw}/node-feat\.csv\.gz: [^\n]*not synthetic[^\n]*$"):
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
    with pytest.raises(ShoalError, match=r"\.csv\.gz: not found; [^\n]*products-like[^\n]*synthesize[^\n]*$"):
        load(DataSource("ogbn-products", root=str(tmp_path)))


def test_a_twin_larger_than_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    twin = Twin.of("papers100m-like", DataSource("papers100m-like", scale=15.0))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/ogbn_papers100M: the raw files need [0-9.]+ GiB"):
        write_ogb_layout(tmp_path, twin)


@pytest.mark.parametrize("note", ["{", "[]", "{}", "5"])
def test_damaged_note_is_named(tmp_path: Path, note: str) -> None:
    folder = write_ogb_layout(tmp_path, small())
    (folder / "SYNTHETIC.json").write_text(note)
    with pytest.raises(ShoalError, match=r"SYNTHETIC\.json: cannot be read[^\n]*$"):
        load(DataSource("ogbn-products", root=str(tmp_path)))
