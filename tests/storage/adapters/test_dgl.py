"""Graphs of DGL itself, in and out."""

import numpy as np
import pytest
import torch

from shoal.storage.adapters import from_dgl, from_pyg, to_dgl, to_pyg

dgl = pytest.importorskip("dgl", reason="DGL has no build for this Python", exc_type=ImportError)


def test_a_graph_of_dgl_goes_out_and_comes_back() -> None:
    given = dgl.graph((torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 0, 3])), num_nodes=5)
    given.ndata["feat"], given.ndata["label"] = torch.arange(10.0).view(5, 2), torch.tensor([0, 1, 0, 1, -1])
    for name, part in (("train_mask", [0, 1]), ("test_mask", [2])):
        given.ndata[name] = torch.zeros(5, dtype=torch.bool).index_fill(0, torch.tensor(part), True)
    given.edata["weight"], given.edata["feat"] = torch.tensor([1.0, 2, 3, 4]), torch.arange(12.0).view(4, 3)
    graph = from_dgl(given)
    assert (graph.nodes, graph.entries, graph.edge_features, graph.y.tolist()) == (5, 8, 3, [0, 1, 0, 1, -1])
    assert graph.split.tolist() == [1, 1, 3, 0, 0]  # type: ignore[union-attr]
    # The edge from 1 to 2 is entry (2, 1); it has the same features back.
    data = to_pyg(graph)
    of_edge = {tuple(ends): row for ends, row in zip(data.edge_index.t().tolist(), data.edge_attr.tolist())}
    assert of_edge[1, 2] == of_edge[2, 1] == [3, 4, 5]
    out = to_dgl(graph)
    assert isinstance(out, dgl.DGLGraph)
    assert (out.num_nodes(), out.num_edges()) == (5, 8)
    again = from_dgl(out)
    for name in ("indptr", "indices", "x", "y", "split", "edge_weight", "edge_attr"):
        np.testing.assert_array_equal(getattr(again, name), getattr(graph, name), err_msg=name)
    assert from_pyg(data).edge_weight.tolist() == graph.edge_weight.tolist()  # type: ignore[union-attr]
