"""OGB's raw layouts, written by a synthetic twin, read back equal to the twin itself; damaged files are named."""

import os
from pathlib import Path

import numpy as np
import pytest

from storage.datasets import DataSource, load
from storage.datasets.ogb_layout import write_ogb_layout
from storage.datasets.twin import Twin
from storage.errors import ShoalError
from storage.graph import TEST, TRAIN, VAL

TWINS = [("products-like", "ogbn-products", 0.002), ("papers100m-like", "ogbn-papers100m", 0.0002)]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("twin", "original", "scale"), TWINS)
def test_layout_read_back_is_the_twin(tmp_path: Path, twin: str, original: str, scale: float, compress: bool) -> None:
    options = DataSource(twin, root=str(tmp_path / "direct"), scale=scale, seed=3)
    direct = load(options)
    write_ogb_layout(tmp_path, Twin.of(twin, options), compress)
    read = load(DataSource(original, root=str(tmp_path), feature_dtype="float32"))
    assert direct.synthetic
    assert direct.name == twin
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
