"""SparseTensor in and out. torch_sparse has no build for this torch: a duck type keeps to its interface."""

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.errors import refused
from torch import Tensor
from torch_geometric.data import Data

from shoal.storage.adapters import from_pyg, from_sparse_tensor, to_sparse_tensor
from shoal.storage.graph.graph import Graph

Square = Callable[..., dict[str, Any]]
MASKS = ("train_mask", "val_mask", "test_mask")


class SparseTensor:
    """As torch_sparse.SparseTensor: from rows or from a row pointer, entries in row order."""

    def __init__(
        self, *, col: Tensor, sparse_sizes: tuple[int, int], row: Tensor | None = None, rowptr: Tensor | None = None,
        value: Tensor | None = None, is_sorted: bool = False,
    ) -> None:  # fmt: skip
        if rowptr is not None:
            assert rowptr.dtype == col.dtype == torch.int64
            row = torch.repeat_interleave(torch.arange(sparse_sizes[0]), rowptr.diff())
        assert row is not None
        keys = row * sparse_sizes[1] + col
        assert not is_sorted or bool((keys.diff() >= 0).all()), "announced as sorted, but is not"
        order = keys.argsort()
        self.entries = row[order], col[order], None if value is None else value[order]
        self.sizes = sparse_sizes

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.entries

    def sparse_sizes(self) -> tuple[int, int]:
        return self.sizes


MODULE = SimpleNamespace(SparseTensor=SparseTensor)


def adjacency(square: Square, sizes: tuple[int, int] = (4, 4)) -> SparseTensor:
    target, source = square()["edge_index"]
    return SparseTensor(row=source, col=target, value=torch.rand(5), sparse_sizes=sizes)


def test_adjacency_in(square: Square, assert_square: Callable[[Graph], None]) -> None:
    tensors = square()
    masks = {key: tensors[key] for key in MASKS}
    assert_square(from_sparse_tensor(adjacency(square), tensors["x"], tensors["y"], masks))
    bare = from_sparse_tensor(adjacency(square), tensors["x"], tensors["y"], name="mine")
    assert bare.split is None
    assert bare.name == "mine"


def test_values_are_weights(square: Square, given_weights: Tensor, assert_weighted: Callable[[Graph], None]) -> None:
    tensors = square()
    target, source = tensors["edge_index"]
    given = SparseTensor(row=source, col=target, value=given_weights, sparse_sizes=(4, 4))
    masks = {key: tensors[key] for key in MASKS}
    assert_weighted(from_sparse_tensor(given, tensors["x"], tensors["y"], masks))
    graph = from_pyg(Data(**square(edge_index=None, adj_t=given)))
    assert_weighted(graph)
    assert_weighted(from_sparse_tensor(to_sparse_tensor(graph, MODULE), tensors["x"], tensors["y"], masks))


def test_adjacency_out_is_what_came_in(square: Square) -> None:
    graph = from_pyg(Data(**square()))
    row, col, value = to_sparse_tensor(graph, MODULE).coo()
    assert value is None
    assert graph.edge_weight is None
    assert row.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert col.tolist() == [1, 2, 3, 0, 2, 0, 1, 3, 0, 2]
    again = from_sparse_tensor(to_sparse_tensor(graph, MODULE), square()["x"], square()["y"])
    assert again.indices.tolist() == graph.indices.tolist()
    assert again.cleaning.reversed_added == 0


def test_refuses(square: Square) -> None:
    tensors = square()
    x, y = tensors["x"], tensors["y"]
    with refused("adjacency", says="square, found [4, 5]"):
        from_sparse_tensor(adjacency(square, (4, 5)), x, y)
    with refused("adjacency", says="found list"):
        from_sparse_tensor([[0, 1]], x, y)
    with refused("adjacency", says="names node 3, but the 3 nodes"):
        from_sparse_tensor(adjacency(square), x[:3], y[:3])
    with refused("masks['val_mask']"):
        from_sparse_tensor(adjacency(square), x, y, {key: torch.ones(4, dtype=torch.bool) for key in MASKS})


@pytest.mark.skipif(importlib.util.find_spec("torch_sparse") is not None, reason="torch_sparse is installed")
def test_without_torch_sparse_one_line(square: Square) -> None:
    with refused("torch_sparse"):
        to_sparse_tensor(from_pyg(Data(**square())))
