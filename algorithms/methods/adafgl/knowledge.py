"""Predictions of the common model, and homophily of a client's own labels (AdaFGL, phase 2).

Axes: N nodes, C classes, F features, K steps of propagation.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.algorithms.losses.label_propagation import propagate_labels
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.adafgl.weighted_hops import go_back_through_hops, multiply_by_hops
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.shards.view import View

# Steps and weight of the label propagation that measures homophily, as in the authors' code.
LP_STEPS, LP_SEED_WEIGHT = 10, 0.5
UNKNOWN = 0.5
# Rows of S that others are written as, and pairs of nodes whose likeness is held at a time: 2 MB stay in a cache.
EXAMPLES, PAIRS_AT_A_TIME = 64, 2**19
# Share of entries below which products by sparse features are cheaper than those by what is written out.
SPARSE = 1 / 8


class Likeness(NamedTuple):
    """S, the cosines of the probabilities of all pairs of nodes, zero on the diagonal; made a few rows at a time.

    With a `cut` above 0, pairs of a larger cosine count 1 and others 0.

    Attributes:
        direction_NC: Probabilities, rows of length one.
    """

    direction_NC: Tensor
    cut: float

    def rows(self, rows: Tensor) -> Tensor:
        """Computes some rows of S, `[R, N]`."""
        cos_RN = self.direction_NC[rows] @ self.direction_NC.T
        if self.cut:
            cos_RN = (cos_RN > self.cut).to(cos_RN.dtype)
        return cos_RN.scatter_(1, rows[:, None], 0.0)

    @property
    def nodes(self) -> Tensor:
        """Their numbers, int64 `[N]`."""
        return torch.arange(len(self.direction_NC), device=self.direction_NC.device)

    @property
    def tile(self) -> int:
        """The number of rows that are made at a time."""
        return max(PAIRS_AT_A_TIME // len(self.direction_NC), 1)

    def factor(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Factors S = left right + rest: `[N, B]`, `[B, N]`, and the rest's places `[2, E]` and values `[E]`.

        Nodes of like probabilities have like rows. So a row is one of a few examples, or none, and where it differs.
        """
        if not self.cut:
            return self.direction_NC, self.direction_NC.T, self.nodes.repeat(2, 1), -self.direction_NC.square().sum(1)
        nodes = len(self.direction_NC)
        examples = torch.linspace(0, nodes - 1, min(nodes, EXAMPLES), device=self.direction_NC.device).long()
        right_BN = torch.cat([self.rows(examples), self.direction_NC.new_zeros(1, nodes)])
        left, places, values = [], [], []
        for rows in self.nodes.split(self.tile):
            similar_RN = self.rows(rows)
            # |a - b| is summed over ones and zeros; the sum of a, the same for all, is left out.
            differing_RB = right_BN.sum(1) - 2 * similar_RN @ right_BN.T
            best_R = differing_RB.argmin(1)
            rest_RN = similar_RN - right_BN[best_R]
            place = rest_RN.nonzero().T
            left.append(F.one_hot(best_R, len(right_BN)).to(rest_RN.dtype))
            places.append(place + torch.stack([rows[0], rows.new_zeros(())])[:, None])
            values.append(rest_RN[place[0], place[1]])
        return torch.cat(left), right_BN, torch.cat(places, dim=1), torch.cat(values)


class Mixing(NamedTuple):
    """P~ as two sparse matrices: x and the few rows `right` x, `[B, N]`, are multiplied by `rest`, `[N, N + B]`.

    Nowhere are there N x N numbers: nodes of like probabilities share rows.
    """

    right: SparseMatrix
    rest: SparseMatrix

    def times(self, x_NH: Tensor) -> Tensor:
        """Computes P~ x, `[N, H]`."""
        return self.rest @ torch.cat([x_NH, self.right @ x_NH])


class Knowledge(NamedTuple):
    """Constants of a client's second phase: class probabilities P^ by the common model, S, the sum of S, and P~.

    `hops_NG` has X, P~ X, …, P~^K X concatenated, `[N, (K + 1) F]`; it is empty where they are not written out.
    """

    p_NC: Tensor
    likeness: Likeness
    likeness_sum: float
    mixing: Mixing
    hops_NG: Tensor


def knowledge(data: View, p_NC: Tensor, alpha: float, steps: int, cut: float) -> Knowledge:
    """Builds P~ = D^-1/2 (alpha A + (1 - alpha) S + I) D^-1/2, D the row sums of the middle, or its product with X.

    P~^k X is written out for k up to K, but where X is sparse, and has so few entries or so many columns that products
    of X itself by weights, and of these by P~ K times, are cheaper. S is the `Likeness` of P^; K are the steps.
    """
    likeness, x_NF = Likeness(unit(p_NC), cut), data.whole(0)
    left_NB, right_BN, places, values = likeness.factor()
    total = left_NB.sum(0).double() @ right_BN.sum(1).double() + values.double().sum()
    mixing = _mixing(data, alpha, left_NB, right_BN, places, values)
    without_hops = Knowledge(p_NC, likeness, float(total), mixing, p_NC.new_empty(0, 0))
    if isinstance(x_NF, SparseMatrix):
        few = len(x_NF.parts()[1]) < SPARSE * data.nodes * data.features
        if few or steps * data.nodes < (steps + 1) * data.features:
            return without_hops
        x_NF = x_NF.to_dense()
    hops = [x_NF]
    for _ in range(steps):
        hops.append(mixing.times(hops[-1]))
    return without_hops._replace(hops_NG=torch.cat(hops, dim=1))


def _mixing(data: View, alpha: float, left_NB: Tensor, right_BN: Tensor, places: Tensor, values: Tensor) -> Mixing:
    """Builds P~ from the parts of S."""
    shared = left_NB.any(0) & right_BN.any(1)
    left_NB, right_BN = (1 - alpha) * left_NB[:, shared], right_BN[shared]
    count, (starts, columns) = len(right_BN), data.edges
    nodes = torch.arange(data.nodes, device=data.device)
    edges = torch.stack([nodes.repeat_interleave(starts.diff()), columns.long()])
    sharing, sharers = left_NB.nonzero().T, right_BN.nonzero().T
    behind = sharing + torch.tensor([[0], [data.nodes]], device=data.device)
    where = torch.cat([places, edges, nodes.repeat(2, 1), behind], dim=1)
    parts = (1 - alpha) * values, alpha * data.adjacency.values(), values.new_ones(data.nodes), left_NB[*sharing]
    size = data.nodes, data.nodes + count
    keys, place = (where[0] * size[1] + where[1]).unique(return_inverse=True)
    entries = values.new_zeros(len(keys)).index_add_(0, place, torch.cat(parts))
    row, column = keys // size[1], keys % size[1]
    sum_M = torch.cat([entries.new_ones(data.nodes), right_BN.sum(1)])
    root_N = entries.new_zeros(data.nodes).index_add_(0, row, entries * sum_M[column]).rsqrt()
    root_M = torch.cat([root_N, entries.new_ones(count)])
    return Mixing(
        _matrix(sharers, right_BN[*sharers] * root_N[sharers[1]], (count, data.nodes)),
        _matrix(torch.stack([row, column]), entries * root_N[row] * root_M[column], size),
    )


def _matrix(places: Tensor, values: Tensor, size: tuple[int, int]) -> SparseMatrix:
    """Makes a matrix of entries that are in the order of rows and columns."""
    row, column = places
    counts = torch.bincount(row, minlength=size[0]).cumsum(0)
    starts = torch.cat([counts.new_zeros(1), counts]).int()
    return SparseMatrix.of(starts, column.int(), values, size[1])


class Rows(NamedTuple):
    """Rows asked for, int64 `[R]`, their features, and what is written out of them, `[R, (K + 1) F]`; all constant."""

    rows: Tensor
    x_RF: Features
    hops_RG: Tensor


def propagate_weighted(
    known: Knowledge, x_NF: Features, weights: Sequence[Tensor], asked: Rows | None = None
) -> tuple[Tensor, ...]:
    """Multiplies [X, P~ X, …, P~^K X] by W^T, for weights W `[H, (K + 1) F]`, all of one H: `[N, H]` each.

    With rows that are asked for, the product of the last weight is of these alone, `[R, H]`. A backward pass writes the
    gradients of the weights into their `grad`, which must be there: they are most of what a step writes. Where hops are
    not written out, weights and their gradients lie column by column.
    """
    products: tuple[Tensor, ...] = _Propagated.apply(known, x_NF, asked, *weights)
    return products


class _Propagated(torch.autograd.Function):
    """P~ is symmetric, so that gradients are propagated as features are."""

    @staticmethod
    def forward(ctx: Any, known: Knowledge, x_NF: Features, asked: Rows | None, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.known, ctx.x_NF, ctx.asked, ctx.weights = known, x_NF, asked, weights
        if known.hops_NG.numel():
            hops = _hops_read(known, asked, len(weights))
            return tuple(hop @ weight.t() for hop, weight in zip(hops, weights))
        if _is_compiled(x_NF):
            return _multiply_by_hops(known, x_NF, weights, asked)
        of_hops = zip(*(weight.t().split(x_NF.shape[1]) for weight in weights))
        *nearer, product = [torch.cat([x_NF @ part for part in parts], dim=1) for parts in of_hops]
        for of_hop in reversed(nearer):
            product = of_hop + known.mixing.times(product)
        *products, last = product.chunk(len(weights), dim=1)
        return *products, last.clone() if asked is None else last[asked.rows]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        info, x_NF, asked = ctx.known, ctx.x_NF, ctx.asked
        if info.hops_NG.numel():
            for hop, weight, gradient in zip(_hops_read(info, asked, len(gradients)), ctx.weights, gradients):
                torch.mm(gradient.t(), hop, out=weight.grad)
            return (None,) * (3 + len(gradients))
        *others, last = gradients
        if asked is not None:
            last = torch.zeros_like(others[0]).index_add_(0, asked.rows, last)
        if _is_compiled(x_NF):
            _go_back_through_hops(info, x_NF, [*others, last], ctx.weights)
            return (None,) * (3 + len(gradients))
        product = torch.cat([*others, last], dim=1)
        of_hops = zip(*(weight.grad.t().split(x_NF.shape[1]) for weight in ctx.weights))
        for number, of_hop in enumerate(of_hops):
            if number:
                product = info.mixing.times(product)
            for part, gradient in zip(of_hop, product.chunk(len(of_hop), dim=1)):
                x_NF.times_transposed(gradient, part)
        return (None,) * (3 + len(gradients))


def _is_compiled(x_NF: Features) -> TypeGuard[SparseMatrix]:
    """Whether one call multiplies by what is not written out."""
    return isinstance(x_NF, SparseMatrix) and x_NF.form is not None


def _multiply_by_hops(
    known: Knowledge, x_NF: SparseMatrix, weights: Sequence[Tensor], asked: Rows | None
) -> tuple[Tensor, ...]:
    """Multiplies on a processor, see `propagate_weighted`."""
    (hidden, wide), (nodes, features) = weights[0].shape, x_NF.shape
    factors, outs = [weight.detach().t().contiguous() for weight in weights], torch.empty(len(weights), nodes, hidden)
    mixing, steps = known.mixing, wide // features - 1
    matrices = x_NF.arrays, mixing.right.arrays, mixing.rest.arrays
    multiply_by_hops(*matrices, _places(factors), _places(outs), features, hidden, steps)
    *products, last = outs
    return *products, last if asked is None else last[asked.rows]


def _go_back_through_hops(
    known: Knowledge, x_NF: SparseMatrix, gradients: Sequence[Tensor], weights: Sequence[Tensor]
) -> None:
    """Writes the gradients of weights on a processor."""
    (hidden, wide), features = weights[0].shape, x_NF.shape[1]
    gradients, mixing, steps = [g.contiguous() for g in gradients], known.mixing, wide // features - 1
    into = [weight.grad.t() for weight in weights if weight.grad is not None]
    assert len(into) == len(weights)
    assert all(gradient.is_contiguous() for gradient in into)
    matrices = x_NF.transposed_arrays, mixing.right.arrays, mixing.rest.arrays
    go_back_through_hops(*matrices, _places(gradients), _places(into), features, hidden, steps)


def _places(tensors: Iterable[Tensor]) -> np.ndarray:
    return np.array([tensor.data_ptr() for tensor in tensors])


def _hops_read(known: Knowledge, asked: Rows | None, weights: int) -> list[Tensor]:
    """Returns the hops that are written out, as each weight reads them."""
    return [known.hops_NG] * (weights - 1) + [known.hops_NG if asked is None else asked.hops_RG]


def homophily(data: View, rng: torch.Generator) -> float:
    """Measures HCS: how often half of the training labels, propagated over edges, tell the other half, in [0, 1].

    Nodes of unknown label start as 1 / C for every class. A node whose largest class is not unique has no
    prediction, which counts as wrong. `UNKNOWN` without two training nodes. The half that propagates is the smaller.
    """
    n = len(data.train)
    if n < 2:
        return UNKNOWN
    order = torch.randperm(n, generator=rng, device=data.train.device)
    seeds, asked = order[: n // 2], order[n // 2 :]
    seed_NC = torch.full((data.nodes, data.classes), 1 / data.classes, device=data.device)
    seed_NC[data.train[seeds]] = F.one_hot(data.train_label[seeds], data.classes).float()
    *_, label_NC = propagate_labels(data, seed_NC, LP_STEPS, LP_SEED_WEIGHT)
    predicted_RC, truth = label_NC[data.train[asked]], data.train_label[asked]
    truth_R1 = predicted_RC.gather(1, truth[:, None])
    others = predicted_RC.scatter(1, truth[:, None], -torch.inf)
    return float((truth_R1[:, 0] > others.max(1).values).float().mean())
