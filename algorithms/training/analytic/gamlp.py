"""Gradients of GAMLP.

Axes: N rows of a batch, K hops counting hop 0, of which D are summed, F features, H hidden width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.models.layers.dropout import fill_kept
from shoal.algorithms.models.layers.weighted_hops import (
    COLUMNS,
    Hops,
    apart,
    joined_factors,
    score_vectors,
    unweigh,
    weigh_hops,
)
from shoal.algorithms.training.analytic.heads import Buffers, to_gradient, weight_gradient
from shoal.storage.graph.sparse_matrix import SparseMatrix, require_stored


class GAMLPGradients:
    """The gradients of a weighted sum of hops and an MLP on it, on a processor; all attentions but `recursive`.

    With the gradient G at Z = sum_k w_k X_k W' + b, W has sum_k (w_k G)' X_k, and weight w_k has the row sums of
    G * (X_k W'). From there softmax and sigmoid hand on s, the gradient of the scores, which are linear in the hops.

    Where several hops are dense, they are summed before they are multiplied, U = sum_k w_k X_k: there are three
    products, U W', G' U and G W, whose rows times those of X_k sum up to the gradient of w_k, instead of two for
    every hop. A sparse hop, or the only dense one, is multiplied by the first weight for itself.
    """

    def __init__(self, model: FlatModel) -> None:
        module: Any = model.module
        self._module = module
        self._linears: list[Any] = list(module.head.linears)
        self._buffers = Buffers(model.w.detach())

    @torch.no_grad()
    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """See `AnalyticGradient`; the inputs are rows of all hops."""
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        hops = apart([hop.float() for hop in inputs])
        first = self._linears[0]
        products = self._products(hops)
        scores = {k: score_NR for k, (_, score_NR) in products.items()}
        sum_NF = first.weight.new_empty(len(label_N), 0)
        if hops.summed:
            sum_NF = self._buffers("sum", len(label_N), first.weight.shape[1])
        gate_NK, weight_NK = weigh_hops(self._module, hops, scores, len(inputs), sum_NF)
        out = self._buffers("out", len(label_N), len(first.weight)).copy_(first.bias)
        if hops.summed:
            out.addmm_(sum_NF, first.weight.t())
        for k, (product_NH, _) in products.items():
            out.addcmul_(product_NH, weight_NK[:, k : k + 1])
        layers, logits_NC = self._forward(out)
        loss = to_gradient(logits_NC, label_N)
        gradient = self._backward(layers, logits_NC.div_(len(label_N)))
        torch.sum(gradient, 0, out=first.bias.grad)
        weight = first.weight.grad.t().zero_()
        of_score_NK = torch.zeros_like(weight_NK)
        for k, (product_NH, _) in products.items():
            of_score_NK[:, k] = torch.linalg.vecdot(product_NH, gradient)
        if hops.summed:
            torch.mm(sum_NF.t(), gradient, out=weight)
            # The sum is needed no more.
            torch.mm(gradient, first.weight, out=sum_NF)
        vectors_RF = self._unweigh(hops, sum_NF, gate_NK, weight_NK, of_score_NK)
        if hops.others:
            found_FW = self._backwards(hops, gradient, weight_NK, of_score_NK)
            weight.add_(found_FW[:, : len(first.weight)])
            vectors_RF.add_(found_FW[:, len(first.weight) :][:, : len(vectors_RF)].t())
        return loss

    def _products(self, hops: Hops) -> dict[int, tuple[Tensor, Tensor]]:
        """Multiplies every hop that is not summed by the first weight, `[N, H]`, and by vectors, `[N, R]`."""
        if not hops.others:
            return {}
        weight, vectors_RF = self._linears[0].weight, self._module.vectors_RF()
        factors_FW, width = joined_factors(weight, vectors_RF), len(weight)
        products = {}
        for k, features in hops.others.items():
            hop = require_stored(features)
            out = self._buffers(f"product {k}", len(hop), factors_FW.shape[1])
            product_NW = (
                hop.times(factors_FW, out) if isinstance(hop, SparseMatrix) else torch.mm(hop, factors_FW, out=out)
            )
            products[k] = product_NW[:, :width], product_NW[:, width : width + len(vectors_RF)]
        return products

    def _backwards(self, hops: Hops, gradient: Tensor, weight_NK: Tensor, of_score_NK: Tensor) -> Tensor:
        """Computes the gradients of the factors of `_products`, `[F, W]`, for all these hops together."""
        width, vectors = gradient.shape[1], len(self._module.vectors_RF())
        columns = width + vectors + -(width + vectors) % COLUMNS
        of_product_NW = self._buffers("of product", len(gradient), columns)
        found_FW = self._buffers("of factors", len(self._linears[0].weight.t()), columns)
        everyone_N = of_score_NK.sum(1)
        for number, (k, features) in enumerate(hops.others.items()):
            hop = require_stored(features)
            torch.mul(gradient, weight_NK[:, k : k + 1], out=of_product_NW[:, :width])
            of_product_NW[:, width:] = 0
            if vectors:
                of_product_NW[:, width + vectors - 1] = of_score_NK[:, k]
            if k < vectors - 1:
                of_product_NW[:, width + k] = everyone_N
            if isinstance(hop, SparseMatrix):
                hop.times_transposed(of_product_NW, found_FW, beta=float(number > 0))
            else:
                torch.addmm(found_FW, hop.t(), of_product_NW, beta=float(number > 0), out=found_FW)
        return found_FW

    def _forward(self, out: Tensor) -> tuple[list[tuple[Tensor, Tensor | None, Tensor]], Tensor]:
        """Computes output, dropout's factors and activation of every hidden layer; and the logits."""
        head = self._module.head
        layers = []
        for linear in self._linears[1:]:
            passed, kept = torch.prelu(out, head.prelu.weight), None
            if head.dropout:
                kept = fill_kept(torch.empty_like(passed), head.dropout).div_(1 - head.dropout)
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

    def _unweigh(
        self, hops: Hops, of_sum_NF: Tensor, gate_NK: Tensor, weight_NK: Tensor, of_score_NK: Tensor
    ) -> Tensor:
        """Writes the gradients of what scores are made from, without the part of the others; gives those of vectors.

        `of_score_NK` has those of the others' weights, and gets those of all scores.
        """
        module = self._module
        if module.attention == "simple":
            of_own_F, of_reference_RF = torch.empty(0), torch.empty(0, 0)
        else:
            features = self._linears[0].in_features
            of_own_F, of_reference_KF = score_vectors(module.score.weight.grad.zero_(), features)
            referred = hops.reference_hops(len(of_reference_KF))
            of_reference_RF = torch.zeros(len(referred), len(of_own_F))
        weights, vectors = (gate_NK.numpy(), weight_NK.numpy()), (of_own_F.numpy(), of_reference_RF.numpy())
        unweigh(hops.kernel_inputs, of_sum_NF.numpy(), weights, of_score_NK.numpy(), vectors)
        if module.attention == "simple":
            torch.sum(of_score_NK, 0, out=module.theta.grad)
            return module.theta.new_empty(0, len(self._linears[0].weight.t()))
        torch.sum(of_score_NK, (0, 1), out=module.score.bias.grad.view(()))
        of_reference_KF[referred] = of_reference_RF
        return module.score.weight.grad.view(-1, len(of_own_F))
