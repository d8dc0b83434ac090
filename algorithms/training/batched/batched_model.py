"""One model with the parameters of several clients, on the rows of each.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils import _pytree as trees

from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.output import Output
from shoal.algorithms.training.batched.batched_inputs import BatchedInputs


def logits_of(model: FlatModel, w_P: Tensor, inputs: Inputs) -> Tensor:
    """Logits `[N, C]` by a model in its present mode, with other parameters than its own."""
    return output_of(model, w_P, inputs).logits_NC


def output_of(model: FlatModel, w_P: Tensor, inputs: Inputs) -> Output:
    """Logits `[N, C]` and embeddings `[N, H]`, in the same way."""
    names = (name for name, _ in model.module.named_parameters())
    out: Output = functional_call(model.module, dict(zip(names, model.parts(w_P))), (inputs,))
    return out


def outputs(model: FlatModel, w_BP: Tensor, inputs: BatchedInputs) -> Output:
    """Logits `[B, N, C]` and embeddings `[B, N, H]` of all clients in evaluation mode, without gradients."""
    model.module.eval()
    with torch.no_grad(), model.precision():
        out: Output = vmap(lambda w_P, tensors: output_of(model, w_P, inputs.of_one(tensors)))(w_BP, inputs.tensors)
    return out


def evaluated(model: FlatModel, w_BP: Tensor, hops: Sequence[Tensor]) -> Tensor:
    """Logits `[B, N, C]` of all clients in evaluation mode, without gradients; of hops `[B, N, F]`, float32."""
    model.module.eval()
    with torch.no_grad(), model.precision():
        return vmap(lambda w_P, *parts: logits_of(model, w_P, parts))(w_BP, *hops).float()


def form_of(received: Any) -> Hashable:
    """What must be alike for trees of two clients to be stacked: their shape, and the shapes of their tensors."""
    leaves, form = trees.tree_flatten(received)
    return str(form), tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)


class BatchedReceived:
    """Trees of one form.

    Attributes:
        tensors: Of every place of the tree that has a tensor: those of all clients, or the one that all share.
        in_dims: For `torch.vmap`: 0, or None for one that all share.
    """

    def __init__(self, received: Sequence[Any]) -> None:
        """Of every client, in their order."""
        columns = list(zip(*(trees.tree_leaves(one) for one in received)))
        self._leaves, self._form = trees.tree_flatten(received[0])
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
