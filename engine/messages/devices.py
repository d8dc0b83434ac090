"""Tensors on the device where a host or the server computes."""

from contextlib import AbstractContextManager, nullcontext

import torch

from shoal.algorithms.protocol import Tree

CPU = torch.device("cpu")


def creating_on(device: torch.device) -> AbstractContextManager[object]:
    """Inside the block, tensors that a method makes anew lie on the device."""
    return nullcontext() if device.type == "cpu" else device


def moved(tree: Tree, device: torch.device) -> Tree:
    """The tensors on a device; those that lie there already are the same."""
    return {name: t.to(device) for name, t in tree.items()}


def copied(tree: Tree, device: torch.device) -> Tree:
    """Copies of the tensors on a device."""
    return {name: t.to(device, copy=True) for name, t in tree.items()}
