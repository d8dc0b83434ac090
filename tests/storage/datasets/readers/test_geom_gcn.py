"""Web pages and actors, from small files in the form of the published ones, beside PyG's readers of the same files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_geometric.datasets import Actor, WebKB

from shoal.storage.datasets.readers.geom_gcn import EDGES, NODES, URL, WORDS, paths
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.errors import ShoalError

PARTS = np.array([2, 1, 3, 1])
WORDS_OF_NODES = {True: ["0,3", "2", "1,2,3", "0"], False: ["1,0,0,1", "0,0,1,0", "0,1,1,1", "1,0,0,0"]}


def write(root: Path, name: str, order: tuple[int, ...] = (0, 1, 2, 3), nodes: int = 4) -> Path:
    folder = root / paths(name)[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    words = WORDS_OF_NODES[name == "actor"]
    lines = [f"{i}\t{words[i]}\t{i % 2}" for i in order]
    (folder / NODES).write_text("\n".join(["node_id\tfeature\tlabel", *lines]) + "\n")
    (folder / EDGES).write_text("node_id\tnode_id\n0\t1\n1\t0\n2\t3\n3\t3\n2\t0\n")
    for number in range(10):
        parts = np.roll(PARTS, number)[:nodes]
        masks: dict[str, Any] = {
            f"{key}_mask": (parts == part).astype(np.uint8) for part, key in enumerate(("train", "val", "test"), 1)
        }
        np.savez(folder / f"{WORDS[name]}_split_0.6_0.2_{number}.npz", **masks)
    return folder


@pytest.mark.parametrize("name", WORDS)
def test_reads_what_pyg_reads(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    graph = load(DataSource(name, root=str(tmp_path)))
    (data,) = Actor(str(tmp_path / "actor")) if name == "actor" else WebKB(str(tmp_path), name)
    assert np.array_equal(graph.x, data.x.numpy())
    assert np.array_equal(graph.y, data.y.numpy())
    assert graph.split is not None
    assert graph.split.tolist() == PARTS.tolist()
    for part, mask in enumerate((data.train_mask, data.val_mask, data.test_mask), 1):
        assert np.array_equal(graph.split == part, mask[:, 0].numpy())
    both = {(a, b) for a, b in data.edge_index.t().tolist() if a != b}
    source = np.repeat(np.arange(4), np.diff(graph.indptr))
    assert set(zip(source.tolist(), graph.indices.tolist())) == both | {(b, a) for a, b in both}
    assert WebKB.url == URL == Actor.url


def test_nodes_in_any_order(tmp_path: Path) -> None:
    write(tmp_path / "a", "texas")
    write(tmp_path / "b", "texas", order=(2, 0, 3, 1))
    first, second = (load(DataSource("texas", root=str(tmp_path / place))) for place in "ab")
    assert np.array_equal(first.x, second.x)
    assert np.array_equal(first.y, second.y)


def test_what_is_wrong(tmp_path: Path) -> None:
    folder = write(tmp_path, "cornell", order=(0, 1, 1, 3))
    with pytest.raises(ShoalError, match=rf"{folder / NODES}: cannot be read .*nodes are not numbered from 0 to 3"):
        load(DataSource("cornell", root=str(tmp_path)))
    write(tmp_path, "cornell", nodes=3)
    with pytest.raises(ShoalError, match=r"\(train_mask\): must be truth values of 4 nodes, found \[3\]"):
        load(DataSource("cornell", root=str(tmp_path)))
