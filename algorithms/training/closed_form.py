"""Gradients of plain cross-entropy by their formulas, for models that are linear layers with ReLU and dropout.

Axes: N rows of a batch, F features, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algorithms.backbones import backbone
from algorithms.backbones.head import Head
from algorithms.base import Algorithm
from algorithms.flat_model import FlatModel
from storage.sparse_matrix import Features, SparseMatrix

# Backbones that are a `Head` on rows of one hop and nothing else.
HEADS = ("mlp", "sgc")


def needed_for_closed_form(method: Algorithm, model: FlatModel) -> str | None:
    """What is missing to train a model by gradients in closed form; None: nothing."""
    if type(model.module) not in map(backbone, HEADS):
        return "a model of linear layers alone, not adapted to another width (sgc, mlp)"
    if model.bfloat16:
        return "products in float32 (engine.precision)"
    if not method.plain_training:
        return f"a method of plain cross-entropy, which {type(method).__name__} is not"
    return None


@dataclass
class _Layer:
    """A linear layer, with memory for what it gives out and for the gradient there, `[rows, width]`.

    Of the last layer both are the same memory.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    output: Tensor
    gradient: Tensor


class ClosedForm:
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
        self._minus_one = none

    @torch.no_grad()
    def gradient(self, x_NF: Features, label_N: Tensor) -> Tensor:
        """Overwrites the gradients of all parameters by those of a batch, in training mode.

        Dropout draws from torch's default generator what the model's own forward pass would draw.

        Args:
            x_NF: Rows of the hop that the model reads.
            label_N: Their classes, int64.

        Returns:
            The mean cross-entropy, a scalar.
        """
        n = len(label_N)
        self._make_room(n)
        inputs = self._forward(x_NF.float(), n)
        logits_NC = self._layers[-1].output[:n]
        loss = _to_probabilities(logits_NC, label_N)
        logits_NC.scatter_add_(1, label_N[:, None], self._minus_one[:n])
        self._backward(inputs, n)
        return loss

    def _forward(self, x: Features, n: int) -> list[Features]:
        """Fills the outputs of all layers; gives their inputs, the hidden ones without dropout's factor."""
        inputs: list[Features] = []
        for number, layer in enumerate(self._layers):
            inputs.append(x)
            left, output = x.csr if isinstance(x, SparseMatrix) else x, layer.output[:n]
            torch.addmm(layer.bias, left, layer.weight.t(), alpha=self._factor(number), out=output)
            if layer is not self._layers[-1]:
                output.relu_()
                if self._dropout:
                    # Until the way back the memory of the gradient is free for the mask.
                    output.mul_(layer.gradient[:n].bernoulli_(1 - self._dropout))
            x = output
        return inputs

    def _backward(self, inputs: Sequence[Features], n: int) -> None:
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
        if rows <= len(self._minus_one):
            return
        new = self._minus_one.new_empty
        for layer in self._layers:
            layer.output = new(rows, len(layer.bias))
            layer.gradient = layer.output if layer is self._layers[-1] else torch.empty_like(layer.output)
        self._minus_one = new(rows, 1).fill_(-1)


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _to_probabilities(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Replaces logits by their softmax; returns their mean cross-entropy."""
    top_N, own_N = logits_NC.amax(1), logits_NC.gather(1, label_N[:, None]).squeeze(1)
    torch.softmax(logits_NC, 1, out=logits_NC)
    # The largest probability of a row is one over its sum of exponentials; its own may be too small for a float.
    return (top_N - own_N - logits_NC.amax(1).log()).mean()
