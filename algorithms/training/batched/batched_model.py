"""One model with the parameters of several clients, on the rows of each.

Axes: B clients, N rows of the longest of them, F features, C classes, P parameters.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from shoal.algorithms.client import FlatModel
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
