"""Gradients of models of rows, and what they are made of, written into the parameters' `grad`.

Axes: N rows of a batch, F inputs, H outputs, C classes. G is the gradient at a layer's output.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.compiled.row_losses import cross_entropy
from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.models.layers.dropout import fill_kept
from shoal.algorithms.models.layers.head import Head
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures


class Buffers:
    """Matrices by name that keep their memory and their numbers between steps; they grow to the most rows needed."""

    def __init__(self, like: Tensor) -> None:
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
    """Computes the gradient before ReLU, in place: entries stay where the output, dropped or not, is above zero."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def to_gradient(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Replaces logits by softmax - one-hot, N times the gradient of the mean cross-entropy; returns the loss."""
    if logits_NC.device.type == "cpu" and logits_NC.dtype == torch.float32:
        return torch.tensor(cross_entropy(logits_NC.numpy(), label_N.numpy()))
    torch.log_softmax(logits_NC, 1, out=logits_NC)
    loss = F.nll_loss(logits_NC, label_N)
    logits_NC.exp_()
    logits_NC.scatter_add_(1, label_N[:, None], logits_NC.new_full((1, 1), -1).expand(len(label_N), 1))
    return loss


def weight_gradient(weight: Tensor, x: StoredFeatures, gradient: Tensor) -> None:
    """Writes the gradient G' x of a weight whose product x W' has the gradient G."""
    assert weight.grad is not None
    if isinstance(x, SparseMatrix):
        x.times_transposed(gradient, weight.grad.t())
    else:
        torch.mm(gradient.t(), x, out=weight.grad)


# Backbones that are a `Head` on rows of one hop and nothing else.
HEADS = ("mlp", "sgc")


class HeadGradients:
    """The gradients of a backward pass, to rounding, written into `grad`.

    A layer gives Z = X W' + b; a hidden one hands on max(Z, 0), of which dropout keeps some entries, times 1 / (1 - p).
    With labels as rows Y of zeros and a one, the mean cross-entropy of N rows has the gradient (softmax(Z) - Y) / N at
    the logits. From the gradient G at its Z a layer has G' X for W, the column sums of G for b, and G W for the layer
    below, where entries that were not handed on become zero. Factors wait for a product that has them for nothing.

    With `FlatModel.bfloat16` the operands of all products are bfloat16: rows, weights, hidden outputs and gradients at
    outputs. Products add up in float32. Softmax, loss, column sums, and the gradients that are written are float32.

    Memory for the largest batch so far is kept from step to step.
    """

    def __init__(self, model: FlatModel) -> None:
        head = model.module.head
        assert isinstance(head, Head)
        self._linears: list[Any] = list(head.linears)
        self._buffers = Buffers(model.w.detach())
        self._dtype = torch.bfloat16 if model.bfloat16 else torch.float32
        self._operands = Buffers(model.w.new_empty(0, dtype=self._dtype)) if model.bfloat16 else self._buffers
        self._dropout = head.dropout

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `AnalyticGradient`; the inputs are rows of the one hop that the model reads."""
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        (x_NF,) = inputs
        assert isinstance(x_NF, Tensor | SparseMatrix)
        read, outputs = self._forward(self._operand("rows", x_NF) if isinstance(x_NF, Tensor) else x_NF.float())
        logits_NC = outputs[-1]
        if logits_NC.dtype != torch.float32:
            logits_NC = self._buffers("logits", *logits_NC.shape).copy_(logits_NC)
        loss = to_gradient(logits_NC, label_N)
        self._backward(read, outputs, logits_NC)
        return loss

    def _operand(self, name: str, values: Tensor) -> Tensor:
        """Returns a matrix as products read it: itself, or a copy of their type in memory of this name."""
        return values if values.dtype == self._dtype else self._operands(name, *values.shape).copy_(values)

    def _forward(self, x: StoredFeatures) -> tuple[list[StoredFeatures], list[Tensor]]:
        """Computes inputs of all layers, the hidden ones without dropout's factor, and their outputs."""
        inputs: list[StoredFeatures] = []
        outputs: list[Tensor] = []
        for number, linear in enumerate(self._linears):
            inputs.append(x)
            shape = len(x), len(linear.bias)
            output = self._operands(f"output {number}", *shape)
            if isinstance(x, SparseMatrix):
                x.times(linear.weight.t(), output.copy_(linear.bias), beta=1)
            else:
                bias = self._operand(f"bias {number}", linear.bias[None])
                weight = self._operand(f"weight {number}", linear.weight)
                torch.addmm(bias, x, weight.t(), alpha=self._factor(number), out=output)
            if number < len(self._linears) - 1:
                output.relu_()
                if self._dropout:
                    # The memory of the gradient is free for the mask until the way back.
                    output.mul_(fill_kept(self._operands(f"gradient {number}", *shape), self._dropout))
            outputs.append(output)
            x = output
        return inputs, outputs

    def _backward(self, inputs: Sequence[StoredFeatures], outputs: Sequence[Tensor], gradient: Tensor) -> None:
        """Fills the gradients of all parameters, from that at the logits, which lacks the factor 1 / N."""
        scale = 1 / len(gradient)
        for number, linear in reversed([*enumerate(self._linears)]):
            x, into = inputs[number], linear.weight.grad.t()
            factor = scale * self._factor(number)
            torch.sum(gradient, 0, dtype=torch.float32, out=linear.bias.grad).mul_(scale)
            gradient = self._operand(f"output {number}", gradient)
            if isinstance(x, SparseMatrix):
                x.times_transposed(gradient, into, factor)
            elif self._dtype == torch.float32:
                torch.addmm(into, x.t(), gradient, beta=0, alpha=factor, out=into)
            else:
                product = torch.mm(gradient.t(), x, out=self._operands(f"product {number}", *linear.weight.shape))
                torch.mul(product, factor, out=linear.weight.grad)
            if number:
                weight = self._operand(f"weight {number}", linear.weight)
                below = self._operands(f"gradient {number - 1}", *outputs[number - 1].shape)
                gradient = let_through(torch.mm(gradient, weight, out=below), outputs[number - 1])
                scale *= self._factor(number)

    def _factor(self, number: int) -> float:
        """Returns dropout's factor, which the input of a layer, as it is kept, lacks."""
        return 1 / (1 - self._dropout) if number else 1.0
