"""Heterophilous graphs, from a small file in the form of the published ones, beside PyG's reader of the same file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_geometric.datasets import HeterophilousGraphDataset

from shoal.storage.datasets.readers.heterophilous import NAMES, URL, path_of
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError


def write(root: Path, name: str, **changes: Any) -> Path:
    masks = {key: np.tile(np.arange(3) == k, (10, 1)) for k, key in enumerate(("train", "val", "test"))}
    arrays = {
        "node_features": np.arange(6, dtype=np.float32).reshape(3, 2),
        "node_labels": np.array([1, 0, 1]),
        "edges": np.array([[0, 1], [1, 2]]),
        **{f"{key}_masks": mask for key, mask in masks.items()},
    } | changes
    path = root / path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_reads_what_pyg_reads(name: str, tmp_path: Path) -> None:
    masks = np.zeros((10, 3), dtype=bool)
    first = [np.concatenate([[np.arange(3) == k], masks[1:]]) for k in (2, 0, 1)]
    write(tmp_path, name, **dict(zip(("train_masks", "val_masks", "test_masks"), first)))
    graph = load(DataSource(name, root=str(tmp_path)))
    (data,) = HeterophilousGraphDataset(str(tmp_path), name)
    source = np.repeat(np.arange(3), np.diff(graph.indptr))
    assert np.array_equal([source, graph.indices], data.edge_index.numpy())
    assert np.array_equal(graph.x, data.x.numpy())
    assert np.array_equal(graph.y, data.y.numpy())
    assert graph.split is not None
    for part, mask in enumerate((data.train_mask, data.val_mask, data.test_mask), 1):
        assert np.array_equal(graph.split == part, mask[:, 0].numpy())
    assert (graph.split.tolist(), graph.name) == ([2, 3, 1], name)
    assert HeterophilousGraphDataset.url == URL


def test_refuses_masks_of_other_nodes(tmp_path: Path) -> None:
    path = write(tmp_path, "tolokers", val_masks=np.zeros((10, 4), dtype=bool))
    with pytest.raises(ShoalError, match=rf"^{path} \(val_masks\): must be truth values of 3 nodes, found bool \[4\]$"):
        load(DataSource("tolokers", root=str(tmp_path)))
