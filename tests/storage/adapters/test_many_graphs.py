"""Many small graphs of PyG, in and out, and clients that hold graphs or pairs."""

from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.pyg_graphs import three
from torch_geometric.data import Batch

from shoal.storage.adapters import from_pyg, to_pyg
from shoal.storage.graph.pairs import Pairs
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split


def test_parts_and_clients_of_many_graphs() -> None:
    graphs = three()
    for number, data in enumerate(graphs):
        data.train_mask, data.test_mask, data.assignment = torch.tensor([number == 0]), number == 2, number
    batch = Batch.from_data_list([data.clone().update({"y": torch.as_tensor(data.y).reshape(1)}) for data in graphs])
    for graph in (from_pyg(graphs), from_pyg(batch), from_pyg(to_pyg(from_pyg(graphs)))):
        assert (graph.split.tolist(), graph.assignment.tolist()) == ([1, 0, 3], [0, 1, 2])
        assert (graph.graph_of.tolist(), graph.y.tolist()) == ([0, 0, 1, 2, 2, 2], [2, 0, 1])
    graphs[1].train_mask = torch.tensor([True, False])
    with refused("data[1].train_mask", says="one value for the graph, found [2]"):
        from_pyg(graphs)
    del graphs[1].train_mask
    with refused("data[...].train_mask", says="2 of 3 graphs have it"):
        from_pyg(graphs)
    for data in graphs:
        data.train_mask = torch.tensor([True])
    with refused("data[...].train_mask", says="is no split"):
        from_pyg(graphs)


def test_many_graphs_in_and_out() -> None:
    graph = from_pyg(three(), "mine")
    assert (graph.name, graph.nodes, graph.items, graph.classes) == ("mine", 6, 3, 3)
    assert graph.indptr.tolist() == [0, 1, 2, 2, 3, 5, 6]
    assert (graph.indices.tolist(), graph.y.tolist()) == ([1, 0, 4, 3, 5, 4], [2, 0, 1])
    assert graph.graph_of.tolist() == [0, 0, 1, 2, 2, 2]
    assert np.array_equal(graph.x, [[1, 0], [0, 1], [5, 6], [1, 1], [2, 2], [3, 3]])
    out = to_pyg(graph)
    assert (out.batch.tolist(), out.y.tolist()) == ([0, 0, 1, 2, 2, 2], [2, 0, 1])


def small_shard(label: list[int], **own: Any) -> Shard:
    """Nodes 4, 5 and 9, with an edge between the first two."""
    arrays = [np.array(array, dtype=np.int32) for array in (label, [0, 1, 2, 2], [1, 0])]
    return Shard(0, np.array([4, 5, 9]), *arrays, np.ones((3, 2), dtype=np.float32), **own)


def test_a_client_of_many_graphs_has_masks_of_graphs() -> None:
    shard = small_shard([1, 1, 0], graph=np.array([3, 3, 7]))
    out = to_pyg(shard, Split(*(np.array(rows, dtype=np.int32) for rows in ([1], [], [0]))))
    assert (out.batch.tolist(), out.y.tolist(), out.n_id.tolist()) == ([0, 0, 1], [1, 0], [4, 5, 9])
    assert (out.train_mask.tolist(), out.test_mask.tolist()) == ([False, True], [True, False])


def test_a_client_of_pairs_has_labels_and_masks_of_pairs() -> None:
    columns = [1, 2, 2], [1, 0, 0], [1, 3, 2]
    partner, label, part = (np.array(column, dtype=np.int8) for column in columns)
    pairs = Pairs(np.array([0, 2, 3, 3], dtype=np.int32), partner.astype(np.int32), label, part)
    shard = small_shard([-1] * 3, pairs=pairs)
    out = to_pyg(shard, Split(*(np.array([row], dtype=np.int32) for row in (0, 2, 1))))
    assert out.edge_index.tolist() == [[0, 1], [1, 0]]
    assert (out.edge_label_index.tolist(), out.edge_label.tolist()) == ([[0, 0, 1], [1, 2, 2]], [1, 0, 0])
    assert (out.n_id.tolist(), out.y, out.num_nodes) == ([4, 5, 9], None, 3)
    masks = [out.train_mask.tolist(), out.val_mask.tolist(), out.test_mask.tolist()]
    assert masks == [[True, False, False], [False, False, True], [False, True, False]]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        *((key, None, "missing") for key in ("x", "y", "edge_index")),
        ("x", torch.ones(1, 3), "found [1, 3]"),
        ("x", torch.ones(0, 2), "found [0, 2]"),
        ("x", torch.ones(2), "found [2]"),
        ("y", torch.tensor([0, 1]), "must be the one label of the graph, found [2]"),
        ("y", {1}, "found set"),
        ("edge_index", torch.tensor([[0], [1]]), "names a node outside 0 to 0"),
        ("edge_index", torch.tensor([[-1], [0]]), "names a node outside 0 to 0"),
        ("edge_index", torch.ones(2, 1), "must be integers"),
        ("edge_index", torch.zeros(1, 2, dtype=torch.int64), "shape [2, E]"),
    ],
)
def test_a_wrong_graph_among_many_is_named(key: str, value: Any, says: str) -> None:
    graphs = three()
    setattr(graphs[1], key, value)
    with refused(f"data[1].{key}", says=says):
        from_pyg(graphs)
