"""Gradients of plain cross-entropy by their formulas, for models that are linear layers with ReLU and dropout.

Axes: N rows of a batch, F features, C classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.inputs.graph_batch import ItemBatch
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood
from shoal.algorithms.models.layers.dropout import fill_kept
from shoal.algorithms.models.layers.head import Head
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures


class Buffers:
    """Matrices by name that keep their memory and their numbers between steps; they grow to the most rows needed."""

    def __init__(self, like: Tensor) -> None:
        """Of a tensor's type and device."""
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def __call__(self, name: str, rows: int, width: int) -> Tensor:
        """A matrix `[rows, width]`, the same memory for the same name."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape[0] < rows:
            buffer = self._buffers[name] = self._like.new_empty(rows, width)
        assert buffer.shape[1] == width, (name, buffer.shape, width)
        return buffer[:rows]


def let_through(gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient before ReLU, in place: entries stay where the output, dropped or not, is above zero."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def to_gradient(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Replaces logits by softmax - one-hot, N times the gradient of the mean cross-entropy; returns the loss.

    Args:
        logits_NC: float32 `[N, C]`.
        label_N: Classes, int64.
    """
    torch.log_softmax(logits_NC, 1, out=logits_NC)
    loss = F.nll_loss(logits_NC, label_N)
    logits_NC.exp_()
    logits_NC.scatter_add_(1, label_N[:, None], logits_NC.new_full((1, 1), -1).expand(len(label_N), 1))
    return loss


# Backbones that are a `Head` on rows of one hop and nothing else.
HEADS = ("mlp", "sgc")


class HeadGradients:
    """The gradients of a backward pass, to rounding, written into `grad`.

    A layer gives Z = X W' + b; a hidden one hands on max(Z, 0), of which dropout keeps some entries, times 1 / (1 - p).
    With labels as rows Y of zeros and a one, the mean cross-entropy of N rows has the gradient (softmax(Z) - Y) / N at
    the logits. From the gradient G at its Z a layer has G' X for W, the column sums of G for b, and G W for the layer
    below, where entries that were not handed on become zero. Factors wait for a product that has them for nothing.

    Memory for the largest batch so far is kept from step to step.
    """

    def __init__(self, model: FlatModel) -> None:
        """Of a model whose backbone is one of `HEADS`."""
        head = model.module.head
        assert isinstance(head, Head)
        self._linears: list[Any] = list(head.linears)
        self._buffers = Buffers(model.w.detach())
        self._dropout = head.dropout

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `AnalyticGradient`; the inputs are rows of the one hop that the model reads."""
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        (x_NF,) = inputs
        assert isinstance(x_NF, Tensor | SparseMatrix)
        read, outputs = self._forward(x_NF.float())
        loss = to_gradient(outputs[-1], label_N)
        self._backward(read, outputs)
        return loss

    def _forward(self, x: StoredFeatures) -> tuple[list[StoredFeatures], list[Tensor]]:
        """Inputs of all layers, the hidden ones without dropout's factor, and their outputs."""
        inputs: list[StoredFeatures] = []
        outputs: list[Tensor] = []
        for number, linear in enumerate(self._linears):
            inputs.append(x)
            shape = len(x), len(linear.bias)
            left, output = x.csr if isinstance(x, SparseMatrix) else x, self._buffers(f"output {number}", *shape)
            torch.addmm(linear.bias, left, linear.weight.t(), alpha=self._factor(number), out=output)
            if number < len(self._linears) - 1:
                output.relu_()
                if self._dropout:
                    # Until the way back the memory of the gradient is free for the mask.
                    output.mul_(fill_kept(self._buffers(f"gradient {number}", *shape), self._dropout))
            outputs.append(output)
            x = output
        return inputs, outputs

    def _backward(self, inputs: Sequence[StoredFeatures], outputs: Sequence[Tensor]) -> None:
        """Fills the gradients of all parameters, from that at the logits, which lacks the factor 1 / N."""
        gradient = outputs[-1]
        scale = 1 / len(gradient)
        for number, linear in reversed([*enumerate(self._linears)]):
            x, into = inputs[number], linear.weight.grad.t()
            right = x.transposed if isinstance(x, SparseMatrix) else x.t()
            torch.addmm(into, right, gradient, beta=0, alpha=scale * self._factor(number), out=into)
            torch.sum(gradient, 0, out=linear.bias.grad).mul_(scale)
            if number:
                below = self._buffers(f"gradient {number - 1}", *outputs[number - 1].shape)
                gradient = let_through(torch.mm(gradient, linear.weight, out=below), outputs[number - 1])
                scale *= self._factor(number)

    def _factor(self, number: int) -> float:
        """What the input of a layer, as it is kept, is multiplied by: the factor of the dropout before it."""
        return 1 / (1 - self._dropout) if number else 1.0
