"""Moves and copies, seen on torch's `meta` device, which has no memory."""

import torch

from shoal.algorithms.rng import CPU, copied, creating_on, moved

META = torch.device("meta")


def test_new_tensors_lie_on_the_device() -> None:
    with creating_on(META):
        assert torch.zeros(3).device == META
        assert torch.full((2, 2), 1.0).device == META
    with creating_on(CPU):
        assert torch.zeros(3).device == CPU
    assert torch.zeros(3).device == CPU


def test_moving_to_where_a_tensor_lies_is_free() -> None:
    tree = {"w": torch.ones(3), "n": torch.tensor(2)}
    there = moved(tree, CPU)
    assert there is not tree
    assert all(there[name] is t for name, t in tree.items())


def test_moving_elsewhere() -> None:
    there = moved({"w": torch.ones(3), "n": torch.ones(2, dtype=torch.int64)}, META)
    assert [(t.device, t.dtype) for t in there.values()] == [(META, torch.float32), (META, torch.int64)]


def test_copies_share_no_memory() -> None:
    tree = {"w": torch.ones(3), "row": torch.arange(6.0).view(2, 3)[1]}
    there = copied(tree, CPU)
    for name, t in there.items():
        t.mul_(2)
        assert not torch.equal(t, tree[name])
    assert tree["row"].tolist() == [3, 4, 5]
