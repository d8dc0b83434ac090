"""Tensors of all types and shapes, there and back in one copy."""

import pytest
import torch
from support.other_device.device import load
from support.other_device.device_counts import DeviceCounts
from torch import Tensor

from shoal.algorithms.protocol import Reduce
from shoal.engine.hosts.gpu import brought, fetched, sent
from shoal.engine.messages.cell import Cell


def some() -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(3, 5),
        torch.tensor(True),
        torch.randn(2, 3, dtype=torch.float64).t(),
        torch.zeros(0, 4),
        torch.arange(7),
        torch.tensor([True, False, True]),
        torch.randn(3).half(),
        torch.randn(5).bfloat16(),
        torch.tensor(3, dtype=torch.int32),
    ]


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for mine, other in zip(found, expected):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        assert torch.equal(mine.cpu(), other.cpu())


@pytest.mark.parametrize("count", [0, 1, 9])
def test_there_and_back(count: int) -> None:
    other, tensors = load(), some()[:count]
    with DeviceCounts(other) as counts:
        there = sent(tensors, other)
    assert (counts.copies, counts.synchronisations) == (min(count, 1), 0)
    assert all(t.device == other for t in there)
    assert_equal(there, tensors)
    with DeviceCounts(other) as counts:
        back = fetched(there)
    assert (counts.copies, counts.synchronisations) == (min(count, 1), min(count, 1))
    assert all(t.device.type == "cpu" for t in back)
    assert_equal(back, tensors)


def test_each_is_alone() -> None:
    """Writes into one are not counted of another; one that stays keeps no more memory than its own."""
    there = sent(some(), load())
    versions = [t._version for t in there]
    there[0].add_(1)
    assert there[0]._version > versions[0]
    assert [t._version for t in there[1:]] == versions[1:]
    assert_equal(there[1:], some()[1:])
    assert [t.untyped_storage().nbytes() for t in fetched(there)] == [t.nbytes for t in there]


def test_fetched_values_do_not_hang_on_a_graph() -> None:
    w = torch.ones(3, device=load(), requires_grad=True)
    (found,) = fetched([2 * w])
    assert not found.requires_grad
    assert found.tolist() == [2.0] * 3


def test_a_cell_is_brought_whole() -> None:
    other, trees = load(), [{"a": torch.full((2,), float(i)), "b": torch.tensor(i)} for i in range(6)]
    private, states, inboxes = ({1: trees[i], 4: trees[i + 1]} for i in (0, 2, 4))
    cell = Cell(1, [1, 4], "train", {"w": Reduce.MEAN}, True, private, states, inboxes, frozenset([4]), 1.0, trees[0])
    with DeviceCounts(other) as counts:
        there = brought(cell, other)
    assert counts.copies == 1
    for name in ("private", "states", "inboxes"):
        found, expected = getattr(there, name), getattr(cell, name)
        assert found.keys() == expected.keys()
        for client, tree in expected.items():
            assert found[client].keys() == tree.keys()
            assert_equal(list(found[client].values()), list(tree.values()))
    assert_equal(list(there.score_with.values()), list(trees[0].values()))
    assert (there.ids, there.up, there.score) == (cell.ids, cell.up, cell.score)
