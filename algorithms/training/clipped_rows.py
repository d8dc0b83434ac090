"""Gradients in which each training row counts up to a bound, with noise: DP-SGD on rows of the hops.

Abadi et al., Deep learning with differential privacy, CCS 2016, algorithm 1, with all rows in every step. Axes: N rows,
P parameters.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood
from shoal.algorithms.models.layers.dropout import fill_kept, masks
from shoal.algorithms.protocol import Tree

# Numbers of gradients that are held at a time.
MOST = 2**24


class ClippedRows:
    """(sum_i g_i min(1, C / |g_i|) + N(0, (z C)^2)) / N, g_i being the gradient of the cross-entropy of row i.

    Each row passes through the model alone, so that no layer mixes rows. Dropout draws what plain training draws; noise
    follows, from torch's default generator. Without noise and clip it is plain training, but for the order of sums.
    """

    def __init__(self, model: FlatModel, clip: float | None, noise: float) -> None:
        """Takes a decoupled model: `clip` is C, None: no bound; `noise` is z."""
        self._module, self._gradient, self._sizes = model.module, model.w.grad, model.w.numel()
        self._clip, self._noise = math.inf if clip is None else clip, noise

    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """Overwrites the gradients of all parameters; gives the mean loss of the rows, which has no noise."""
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        hops = [hop.to_dense().float() for hop in inputs]
        drawn: list[Tensor] = []

        def draw(x: Tensor, p: float) -> Tensor:
            drawn.append(fill_kept(torch.empty_like(x), p).div_(1 - p))
            return drawn[-1]

        def loss_of(parameters: Tree, hops: list[Tensor], kept: list[Tensor], label: Tensor) -> Tensor:
            left = iter(kept)
            with masks(lambda x, p: next(left).unsqueeze(0)):
                rows = ([hop.unsqueeze(0) for hop in hops],)
                return F.cross_entropy(functional_call(self._module, parameters, rows).logits_NC, label.unsqueeze(0))

        with torch.no_grad(), masks(draw):
            self._module(hops)
        parameters = {name: p.detach() for name, p in self._module.named_parameters()}
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        losses, of_rows = label_N.new_zeros((), dtype=torch.float32), vmap(grad_and_value(loss_of), (None, 0, 0, 0))
        size = max(1, MOST // self._sizes)
        for start in range(0, len(label_N), size):
            rows = slice(start, start + size)
            gradient_of, loss_N = of_rows(parameters, [h[rows] for h in hops], [k[rows] for k in drawn], label_N[rows])
            norm_N = torch.stack([g.flatten(1).square().sum(1) for g in gradient_of.values()]).sum(0).sqrt()
            share_N = (self._clip / norm_N).clamp(max=1.0)
            for name, g in gradient_of.items():
                total[name] += torch.einsum("n...,n->...", g, share_N)
            losses += loss_N.sum()
        for name, p in self._module.named_parameters():
            noise = self._noise * self._clip * torch.randn(p.shape, device=p.device) if self._noise else 0.0
            assert p.grad is not None
            p.grad.copy_((total[name] + noise) / len(label_N))
        return losses / len(label_N)
