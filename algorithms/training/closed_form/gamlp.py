"""Gradients of GAMLP.

Axes: N rows of a batch, K hops counting hop 0, F features, H hidden width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithms.backbones.graph_batch import ItemBatch
from algorithms.backbones.neighbourhood import Inputs, Neighbourhood
from algorithms.flat_model import FlatModel
from algorithms.training.closed_form.cross_entropy import to_gradient
from algorithms.training.closed_form.products import product, weight_gradient
from algorithms.training.closed_form.rooms import Rooms
from storage.sparse_matrix import Features, SparseMatrix


class GAMLPGradients:
    """The gradients of a weighted sum of hops and an MLP on it; all attentions but `recursive`.

    With the gradient G at Z = sum_k w_k X_k W' + b, W has sum_k (w_k G)' X_k, and weight w_k has the row sums of
    G * (X_k W'). From there softmax and sigmoid hand on s, the gradient of the scores, which are linear in the hops.
    No weighted rows are formed: each hop is multiplied by the first weight for itself, sparse or dense.
    """

    def __init__(self, model: FlatModel) -> None:
        """Of a model whose backbone is GAMLP."""
        module: Any = model.module
        self._module = module
        self._linears: list[Any] = list(module.head.linears)
        self._rooms = Rooms(model.w.detach())

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `ClosedForm`; the inputs are rows of all hops."""
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        hops = [hop.float() for hop in inputs]
        first = self._linears[0]
        weights_NK, gates_NK = self._weights(hops)
        products = [self._product(k, hop) for k, hop in enumerate(hops)]
        out = self._rooms("out", *products[0].shape).copy_(first.bias)
        for product_NH, weight_N1 in zip(products, weights_NK.split(1, dim=1)):
            out.addcmul_(product_NH, weight_N1)
        layers, logits_NC = self._forward(out)
        loss = to_gradient(logits_NC, label_N)
        gradient = self._backward(layers, logits_NC.div_(len(label_N)))
        torch.sum(gradient, 0, out=first.bias.grad)
        self._first_weight(hops, weights_NK, gradient)
        of_weights_NK = torch.stack([torch.linalg.vecdot(product_NH, gradient) for product_NH in products], 1)
        of_gates_NK = weights_NK * (of_weights_NK - (weights_NK * of_weights_NK).sum(1, keepdim=True))
        self._scores(hops, of_gates_NK * gates_NK * (1 - gates_NK))
        return loss

    def _weights(self, hops: Sequence[Features]) -> tuple[Tensor, Tensor]:
        """The weight of every hop at every row, and the sigmoids whose softmax it is, `[N, K]`."""
        module = self._module
        if module.attention == "simple":
            score_NK = module.theta.expand(len(hops[0]), -1)
        else:
            own, reference = self._vectors(module.score.weight)
            score_NK = torch.cat([times(hop, own) for hop in hops], 1) + module.score.bias
            for hop, vector in zip(hops, reference):
                score_NK += times(hop, vector)
        gates_NK = score_NK.sigmoid()
        return gates_NK.softmax(1), gates_NK

    def _vectors(self, weight: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """The vector that every hop is scored by, and those of the hops that it is compared with, `[F, 1]`."""
        *reference, own = weight.view(-1, self._linears[0].weight.shape[1], 1)
        return own, reference

    def _product(self, k: int, hop: Features) -> Tensor:
        """A hop times the first weight, `[N, H]`."""
        weight = self._linears[0].weight
        return product(hop, weight, self._rooms(f"product {k}", len(hop), len(weight)))

    def _forward(self, out: Tensor) -> tuple[list[tuple[Tensor, Tensor | None, Tensor]], Tensor]:
        """Of every hidden layer its output, dropout's factors and what it hands on; and the logits."""
        head = self._module.head
        layers = []
        for linear in self._linears[1:]:
            passed, kept = torch.prelu(out, head.prelu.weight), None
            if head.dropout:
                kept = torch.empty_like(passed).bernoulli_(1 - head.dropout).div_(1 - head.dropout)
                passed.mul_(kept)
            layers.append((out, kept, passed))
            out = torch.addmm(linear.bias, passed, linear.weight.t())
        return layers, out

    def _backward(self, layers: Sequence[tuple[Tensor, Tensor | None, Tensor]], gradient: Tensor) -> Tensor:
        """Writes the gradients of all layers after the first; gives that at the first one's output."""
        slope = self._module.head.prelu
        if slope is not None:
            slope.weight.grad.zero_()
        for linear, (out, kept, passed) in zip(reversed(self._linears[1:]), reversed(layers)):
            torch.sum(gradient, 0, out=linear.bias.grad)
            weight_gradient(linear.weight, passed, gradient)
            gradient = gradient @ linear.weight
            if kept is not None:
                gradient.mul_(kept)
            slope.weight.grad += torch.dot(gradient.flatten(), out.clamp_max(0).flatten())
            gradient = torch.where(out > 0, gradient, gradient * slope.weight)
        return gradient

    def _first_weight(self, hops: Sequence[Features], weights_NK: Tensor, gradient: Tensor) -> None:
        """Writes the gradient of the first weight, of all hops together."""
        into = self._linears[0].weight.grad.t()
        for k, (hop, weight_N1) in enumerate(zip(hops, weights_NK.split(1, dim=1))):
            left = hop.transposed if isinstance(hop, SparseMatrix) else hop.t()
            torch.addmm(into, left, gradient * weight_N1, beta=float(k > 0), out=into)

    def _scores(self, hops: Sequence[Features], scores_NK: Tensor) -> None:
        """Writes the gradients of what scores are made from."""
        module = self._module
        if module.attention == "simple":
            torch.sum(scores_NK, 0, out=module.theta.grad)
            return
        torch.sum(scores_NK, (0, 1), out=module.score.bias.grad.view(()))
        own, reference = self._vectors(module.score.weight.grad)
        everyone_N1 = scores_NK.sum(1, keepdim=True)
        own.zero_()
        for k, hop in enumerate(hops):
            own += back(hop, scores_NK[:, k : k + 1])
        for hop, vector in zip(hops, reference):
            vector.copy_(back(hop, everyone_N1))


def times(hop: Features, vector_F1: Tensor) -> Tensor:
    """The product of a hop with a vector, `[N, 1]`; that with a matrix of one column takes several times as long."""
    return hop @ vector_F1 if isinstance(hop, SparseMatrix) else torch.mv(hop, vector_F1[:, 0])[:, None]


def back(hop: Features, score_N1: Tensor) -> Tensor:
    """The gradient of a vector from that of its product with a hop, `[F, 1]`."""
    if isinstance(hop, SparseMatrix):
        return hop.transposed @ score_N1
    return torch.mv(hop.t(), score_N1[:, 0])[:, None]
