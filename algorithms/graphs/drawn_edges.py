"""Edges drawn by the cosine of two nodes' rows, and how badly these tell known pairs from others, as one call.

Axes: S pairs i < j, ascending by i and then by j; N nodes, rows of width H.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.algorithms.graphs.pairs import FAST, add_rows, write_dots
from shoal.storage.kernels.exponentials import exp, log

ONE, ZERO = np.float32(1), np.float32(0)
# The largest number of which `exp` is one.
MOST = np.float32(88)


class DrawnEdges(torch.autograd.Function):
    """Whether each pair is an edge, float32 `[S]`, and L_reg in its balanced form, see `GeneratedGraph`.

    `DrawnEdges.apply(f_NH, pairs_2S, known_S, u_S, factors)`, with uniform numbers u, and lambda, the temperature, and
    the bounds of a probability and of a length as factors. Both results have gradients to F.
    """

    @staticmethod
    def forward(
        ctx: Any, f_NH: Tensor, pairs_2S: Tensor, known_S: Tensor, u_S: Tensor, factors: tuple[float, ...]
    ) -> tuple[Tensor, Tensor]:
        f = f_NH.detach().contiguous()
        pairs = pairs_2S.numpy()
        kept, cosine, of_cosine, of_dot = np.empty((4, len(known_S)), np.float32)
        inverse = np.empty(len(f), np.float32)
        drawn_by = pairs, f.numpy(), known_S.numpy(), u_S.numpy(), factors
        loss = _draw(*drawn_by, inverse, cosine, kept, of_cosine, of_dot)
        ctx.set_materialize_grads(False)
        ctx.f_NH, ctx.arrays, ctx.least_length = f, (pairs, inverse, cosine, of_cosine, of_dot), factors[-1]
        return torch.from_numpy(kept), torch.tensor(loss, dtype=torch.float32)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None, None]:
        pairs, inverse, cosine, of_cosine, of_dot = ctx.arrays
        of_kept, of_loss = gradients
        passed = np.zeros_like(cosine) if of_kept is None else of_kept.contiguous().numpy()
        times = np.float32(0 if of_loss is None else of_loss)
        out_NH = torch.empty_like(ctx.f_NH)
        _go_back(
            pairs, ctx.f_NH.numpy(), inverse, cosine, of_cosine, of_dot, passed, times, ctx.least_length, out_NH.numpy()
        )
        return out_NH, None, None, None, None


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _draw(
    pairs: np.ndarray, f: np.ndarray, known: np.ndarray, uniform: np.ndarray, factors: tuple[float, ...],
    inverse: np.ndarray, cosine: np.ndarray, kept: np.ndarray, of_cosine: np.ndarray, of_dot: np.ndarray,
) -> float:  # fmt: skip
    """Draws edges, and returns L_reg.

    Writes one over the length of every row, the cosine of every pair, whether it is an edge, the derivative of that by
    the cosine, and the derivative of L_reg by the pair's product.
    """
    low, high = pairs
    nodes, width = f.shape
    share, temperature, least, least_length = factors
    for node in range(nodes):
        square = ZERO
        for h in range(width):
            square += f[node, h] * f[node, h]
        inverse[node] = ONE / max(np.float32(np.sqrt(square)), np.float32(least_length))
    write_dots(low, high, f, of_dot)
    edges = 0
    for pair in range(len(known)):
        cosine[pair] = of_dot[pair] * inverse[low[pair]] * inverse[high[pair]]
        edges += known[pair]
    loss = _tell_known(known, edges, width, of_dot)
    of_known, of_omega = np.float32(share), np.float32(1 - share)
    lowest, highest, sharpness = np.float32(least), np.float32(1 - least), np.float32(1 / temperature)
    for pair in range(len(known)):
        omega = max(cosine[pair], ZERO)
        mixed = (of_known if known[pair] else ZERO) + of_omega * omega
        chance = min(max(mixed, lowest), highest)
        u = uniform[pair]
        # The logits of both, where zeros count as the least number.
        score = log(chance / (ONE - chance)) + log(u) - log(ONE - u)
        kept[pair] = ONE if score >= ZERO else ZERO
        soft = ONE / (ONE + exp(min(-score * sharpness, MOST)))
        slope = soft * (ONE - soft) * sharpness * of_omega / (chance * (ONE - chance))
        of_cosine[pair] = slope if cosine[pair] > ZERO and lowest <= mixed <= highest else ZERO
    return loss


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _tell_known(known: np.ndarray, edges: int, width: int, dot: np.ndarray) -> float:
    """Computes L_reg, and overwrites the products of pairs by its derivatives."""
    others = len(known) - edges
    kinds = np.float32(2 if edges and others else 1)
    of_known, of_other = ONE / (kinds * np.float32(max(edges, 1))), ONE / (kinds * np.float32(max(others, 1)))
    scale, loss = np.float32(1 / np.sqrt(width)), 0.0
    for pair in range(len(known)):
        sign = -ONE if known[pair] else ONE
        weight = of_known if known[pair] else of_other
        level = sign * scale * dot[pair]
        # At most 1, so that nothing overflows.
        power = exp(-abs(level))
        loss += weight * (max(level, ZERO) + log(ONE + power))
        dot[pair] = weight * sign * scale * (ONE if level >= ZERO else power) / (ONE + power)
    return loss


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _go_back(
    pairs: np.ndarray, f: np.ndarray, inverse: np.ndarray, cosine: np.ndarray, of_cosine: np.ndarray,
    of_dot: np.ndarray, passed: np.ndarray, times: np.float32, least_length: float, out: np.ndarray,
) -> None:  # fmt: skip
    """Writes the gradient of the rows: `passed` is that of edges, `times` that of L_reg."""
    low, high = pairs
    nodes, width = f.shape
    weight, along, longest = np.empty(len(cosine), np.float32), np.zeros(nodes, np.float32), ONE / least_length
    for pair in range(len(cosine)):
        i, j = low[pair], high[pair]
        through = passed[pair] * of_cosine[pair]
        weight[pair] = through * inverse[i] * inverse[j] + times * of_dot[pair]
        along[i] += through * cosine[pair]
        along[j] += through * cosine[pair]
    for node in range(nodes):
        # A row of least length has a constant in its place.
        factor = ZERO if inverse[node] >= longest else -along[node] * inverse[node] * inverse[node]
        for h in range(width):
            out[node, h] = factor * f[node, h]
    add_rows(low, high, weight, f, out)
