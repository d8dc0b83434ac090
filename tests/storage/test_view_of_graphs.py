"""The view of a client that holds many small graphs."""

import numpy as np
import pytest
import torch

from shoal.storage.store.shard import Shard
from shoal.storage.store.split import Split
from shoal.storage.store.view import Cache, View


@pytest.fixture
def view() -> View:
    """Graphs 2, 5 and 6 of a dataset, of two, one and three nodes; the last one trains, the others are tested."""
    graph = np.array([2, 2, 5, 6, 6, 6])
    label = np.array([1, 1, 0, 2, 2, 2], dtype=np.int32)
    indptr, indices = np.array([0, 1, 2, 2, 3, 4, 4], dtype=np.int32), np.array([1, 0, 4, 3], dtype=np.int32)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    split = Split(*(np.array(rows, dtype=np.int32) for rows in ([2], [], [0, 1])))
    return View("test", Shard(3, np.arange(10, 16), label, indptr, indices, x, graph), split, [], 3, Cache(2**20))


def test_items_are_graphs(view: View) -> None:
    assert (view.nodes, view.items) == (6, 3)
    assert view.graph_ptr.tolist() == [0, 2, 3, 6]
    assert view.label.tolist() == [1, 0, 2]
    assert view.train_label.tolist() == [2]
    assert view.rows_of(torch.tensor([2, 0])).tolist() == [3, 4, 5, 0, 1]
    assert view.rows_of(view.val).tolist() == []
    view.touch([0], training=True, edges=True)


def test_what_is_written_is_seen(view: View) -> None:
    assert view.written() is None
    view.graph_ptr.add_(1)
    assert view.written() == "graph_ptr"


def test_rows_behind_torchs_back_are_those_of_a_training_graph(view: View) -> None:
    x = view.x
    assert view.written() is None
    x.numpy()[0] = 7  # of graph 2, which does not train
    assert view.written() is None
    x.numpy()[3] = 7
    assert view.written() == "x"
