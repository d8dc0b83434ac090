"""What several clients were given, as one tree of tensors whose first axis is the client."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as trees


def form_of(given: Any) -> Hashable:
    """What must be alike for trees of two clients to be stacked: their shape, and the shapes of their tensors."""
    leaves, form = trees.tree_flatten(given)
    return str(form), tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)


class StackedGiven:
    """Trees of one form.

    Attributes:
        tensors: Of every place of the tree that has a tensor: those of all clients, or the one that all share.
        in_dims: For `torch.vmap`: 0, or None for one that all share.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        """Of every client, in their order."""
        columns = list(zip(*(trees.tree_leaves(one) for one in given)))
        self._leaves, self._form = trees.tree_flatten(given[0])
        self._places = [place for place, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor)]
        of_tensors = [columns[place] for place in self._places]
        shared = [all(leaf is column[0] for leaf in column) for column in of_tensors]
        self.tensors = [column[0] if one else torch.stack(column) for column, one in zip(of_tensors, shared)]
        self.in_dims = [None if one else 0 for one in shared]

    def of_one(self, tensors: Sequence[Tensor]) -> Any:
        """The tree of one client, with its part of the tensors."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors):
            leaves[place] = tensor
        return trees.tree_unflatten(leaves, self._form)
