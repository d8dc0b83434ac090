"""Layers of message passing: forward passes, and gradients written into the parameters' `grad`.

Axes: n receivers, m senders, F inputs, H outputs. G is the gradient at a layer's output.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.models.layers.edge_attention import backward as attention_backward
from shoal.algorithms.models.layers.edge_attention import forward as attention_forward
from shoal.algorithms.training.analytic.heads import Buffers, let_through
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures


def product(x: StoredFeatures, weight: Tensor, out: Tensor) -> Tensor:
    """x W', `[m, H]`."""
    return torch.addmm(out, x.csr if isinstance(x, SparseMatrix) else x, weight.t(), beta=0, out=out)


def spmm(operator: SparseMatrix, messages: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """The aggregated messages, `[n, H]`, or `out` plus these."""
    return torch.addmm(out, operator.csr, messages, beta=float(add), out=out)


def spmm_t(operator: SparseMatrix, gradient: Tensor, out: Tensor, add: bool = False) -> Tensor:
    """The gradient of messages from that of their aggregate, or `out` plus it."""
    return torch.addmm(out, operator.transposed, gradient, beta=float(add), out=out)


def weight_gradient(weight: Tensor, x: StoredFeatures, gradient: Tensor) -> None:
    """Writes the gradient G' x of a weight whose product x W' has the gradient G."""
    assert weight.grad is not None
    if isinstance(x, SparseMatrix):
        into = weight.grad.t()
        torch.addmm(into, x.transposed, gradient, beta=0, out=into)
    else:
        torch.mm(gradient.t(), x, out=weight.grad)


class Layer(ABC):
    """One of PyG's layers, whose parameters these are; all nodes send and receive, `n` is `m`."""

    def __init__(self, conv: Any, buffers: Buffers) -> None:
        """Of a layer with memory of its own."""
        self.conv, self.buffers = conv, buffers

    @abstractmethod
    def forward(self, operator: SparseMatrix, x: StoredFeatures) -> Tensor:
        """Output `[n, H]` for `[m, F]`, in a buffer of the layer; it and `x` must stay until `backward`."""

    @abstractmethod
    def backward(self, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Writes the parameters' gradients; gives that of the input, in a buffer of the layer, if it is wanted."""


class GCNLayer(Layer):
    """P x W' + b. With S = P' G: S' x for W, column sums of G for b, S W for x."""

    def forward(self, operator: SparseMatrix, x: StoredFeatures) -> Tensor:
        self._operator, self._x = operator, x
        weight, bias = self.conv.lin.weight, self.conv.bias
        messages = product(x, weight, self.buffers("messages", len(x), len(weight)))
        return spmm(operator, messages, self.buffers("out", len(operator), len(weight)).copy_(bias), add=True)

    def backward(self, gradient: Tensor, wanted: bool) -> Tensor | None:
        weight = self.conv.lin.weight
        torch.sum(gradient, 0, out=self.conv.bias.grad)
        messages = spmm_t(self._operator, gradient, self.buffers("messages", len(self._x), len(weight)))
        weight_gradient(weight, self._x, messages)
        return torch.mm(messages, weight, out=self.buffers("in", *self._x.shape)) if wanted else None


class SAGELayer(Layer):
    """M x W_1' + x W_2' + b. With S = M' G: S' x for W_1, G' x for W_2, S W_1 + G W_2 for x."""

    def forward(self, operator: SparseMatrix, x: StoredFeatures) -> Tensor:
        self._operator, self._x = operator, x
        neighbours, own = self.conv.lin_l.weight, self.conv.lin_r.weight
        messages = product(x, neighbours, self.buffers("messages", len(x), len(own)))
        out = product(x, own, self.buffers("out", len(operator), len(own))).add_(self.conv.lin_l.bias)
        return spmm(operator, messages, out, add=True)

    def backward(self, gradient: Tensor, wanted: bool) -> Tensor | None:
        neighbours, own = self.conv.lin_l.weight, self.conv.lin_r.weight
        torch.sum(gradient, 0, out=self.conv.lin_l.bias.grad)
        weight_gradient(own, self._x, gradient)
        messages = spmm_t(self._operator, gradient, self.buffers("messages", len(self._x), len(own)))
        weight_gradient(neighbours, self._x, messages)
        if not wanted:
            return None
        return torch.mm(messages, neighbours, out=self.buffers("in", *self._x.shape)).addmm_(gradient, own)


class GINLayer(Layer):
    """LayerNorm(relu(A z + (1 + e) z + b) V' + c) with z = x W'."""

    def forward(self, operator: SparseMatrix, x: StoredFeatures) -> Tensor:
        self._operator, self._x = operator, x
        first, _, second, norm = self.conv.nn
        shape = len(x), len(first.weight)
        self._messages = product(x, first.weight, self.buffers("messages", *shape))
        hidden = torch.mul(self._messages, 1 + self.conv.eps, out=self.buffers("hidden", *shape)).add_(first.bias)
        self._hidden = spmm(operator, self._messages, hidden, add=True).relu_()
        self._mixed = torch.addmm(second.bias, self._hidden, second.weight.t(), out=self.buffers("mixed", *shape))
        out, *self._moments = torch.native_layer_norm(
            self._mixed, norm.normalized_shape, norm.weight, norm.bias, norm.eps
        )
        return out

    def backward(self, gradient: Tensor, wanted: bool) -> Tensor | None:
        first, _, second, norm = self.conv.nn
        layer_norm_backward = torch.ops.aten.native_layer_norm_backward
        mixed, of_weight, of_bias = layer_norm_backward(
            gradient, self._mixed, norm.normalized_shape, *self._moments, norm.weight, norm.bias, [True, True, True]
        )
        norm.weight.grad.copy_(of_weight)
        norm.bias.grad.copy_(of_bias)
        torch.sum(mixed, 0, out=second.bias.grad)
        weight_gradient(second.weight, self._hidden, mixed)
        hidden = let_through(torch.mm(mixed, second.weight, out=self._mixed), self._hidden)
        torch.sum(hidden, 0, out=first.bias.grad)
        self.conv.eps.grad.copy_(torch.dot(hidden.flatten(), self._messages.flatten()))
        messages = torch.mul(hidden, 1 + self.conv.eps, out=self._messages)
        spmm_t(self._operator, hidden, messages, add=True)
        weight_gradient(first.weight, self._x, messages)
        return torch.mm(messages, first.weight, out=self.buffers("in", *self._x.shape)) if wanted else None


class GATLayer(Layer):
    """Attention over x W', see `shoal.algorithms.models.layers.edge_attention`, plus b; on a processor."""

    def forward(self, operator: SparseMatrix, x: StoredFeatures) -> Tensor:
        conv = self.conv
        self._x = x
        messages = product(x, conv.lin.weight, self.buffers("messages", len(x), len(conv.lin.weight)))
        self._messages = messages.view(-1, conv.heads, conv.out_channels)
        receiver_NH, sender_MH = ((self._messages * part).sum(-1) for part in (conv.att_dst, conv.att_src))
        out, self._kept = attention_forward(operator, receiver_NH, sender_MH, self._messages, conv.negative_slope)
        return out.flatten(1).add_(conv.bias)

    def backward(self, gradient: Tensor, wanted: bool) -> Tensor | None:
        conv = self.conv
        torch.sum(gradient, 0, out=conv.bias.grad)
        of_receiver, of_sender, messages = attention_backward(self._kept, gradient.view(self._messages.shape))
        for weight, score in ((conv.att_dst, of_receiver), (conv.att_src, of_sender)):
            weight.grad.copy_(torch.einsum("nh,nhd->hd", score, self._messages))
            messages.addcmul_(score[:, :, None], weight)
        flat = messages.flatten(1)
        weight_gradient(conv.lin.weight, self._x, flat)
        return torch.mm(flat, conv.lin.weight, out=self.buffers("in", *self._x.shape)) if wanted else None
