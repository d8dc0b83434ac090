"""Gradients of plain cross-entropy by their formulas, for models that are linear layers with ReLU and dropout.

Axes: N rows of a batch, F features, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.models.inputs.graph_batch import ItemBatch
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood
from shoal.algorithms.models.layers.dropout import fill_kept
from shoal.algorithms.models.layers.head import Head
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures


def to_gradient(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Replaces logits by softmax - one-hot, N times the gradient of the mean cross-entropy; returns the latter.

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


@dataclass
class _Layer:
    """A linear layer, with memory for what it gives out and for the gradient there, `[rows, width]`.

    Of the last layer both are the same memory.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    output: Tensor
    gradient: Tensor


class HeadGradients:
    """The gradients that a backward pass would add up, written in their place; the same numbers to rounding.

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
        none = model.w.detach().new_empty(0, 1)
        self._layers = [
            _Layer(linear.get_parameter("weight"), linear.get_parameter("bias"), none, none) for linear in head.linears
        ]
        self._dropout = head.dropout

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `AnalyticGradient`; the inputs are rows of the one hop that the model reads."""
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        (x_NF,) = inputs
        n = len(label_N)
        self._make_room(n)
        read = self._forward(x_NF.float(), n)
        loss = to_gradient(self._layers[-1].output[:n], label_N)
        self._backward(read, n)
        return loss

    def _forward(self, x: StoredFeatures, n: int) -> list[StoredFeatures]:
        """Fills the outputs of all layers; gives their inputs, the hidden ones without dropout's factor."""
        inputs: list[StoredFeatures] = []
        for number, layer in enumerate(self._layers):
            inputs.append(x)
            left, output = x.csr if isinstance(x, SparseMatrix) else x, layer.output[:n]
            torch.addmm(layer.bias, left, layer.weight.t(), alpha=self._factor(number), out=output)
            if layer is not self._layers[-1]:
                output.relu_()
                if self._dropout:
                    # Until the way back the memory of the gradient is free for the mask.
                    output.mul_(fill_kept(layer.gradient[:n], self._dropout))
            x = output
        return inputs

    def _backward(self, inputs: Sequence[StoredFeatures], n: int) -> None:
        """Fills the gradients of all parameters, from that at the logits, which lacks the factor 1 / N."""
        scale = 1 / n
        for number in reversed(range(len(self._layers))):
            layer, x = self._layers[number], inputs[number]
            gradient, into = layer.gradient[:n], _gradient_of(layer.weight).t()
            right = x.transposed if isinstance(x, SparseMatrix) else x.t()
            torch.addmm(into, right, gradient, beta=0, alpha=scale * self._factor(number), out=into)
            torch.sum(gradient, 0, out=_gradient_of(layer.bias)).mul_(scale)
            if number:
                handed_on, below = self._layers[number - 1].output[:n], self._layers[number - 1].gradient[:n]
                torch.mm(gradient, layer.weight, out=below)
                torch.ops.aten.threshold_backward.grad_input(below, handed_on, 0, grad_input=below)
                scale *= self._factor(number)

    def _factor(self, number: int) -> float:
        """What the input of a layer, as it is kept, is multiplied by: the factor of the dropout before it."""
        return 1 / (1 - self._dropout) if number else 1.0

    def _make_room(self, rows: int) -> None:
        if rows <= len(self._layers[0].output):
            return
        for layer in self._layers:
            layer.output = layer.output.new_empty(rows, len(layer.bias))
            layer.gradient = layer.output if layer is self._layers[-1] else torch.empty_like(layer.output)


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
