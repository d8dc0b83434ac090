"""The hops of some nodes as GAMLP reads them: scores of all hops, then the MLP of their weighted sum."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from shoal.algorithms.models.inputs.masked_features import products
from shoal.algorithms.models.layers.head import Head, Output
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features

FAST = {"reassoc", "contract", "nsz"}
ONE = np.float32(1)
# Hops, float32 `[N, F]` each, and which of all K they are, int64; numbers of all hops at every node, and their weights.
Read = tuple[tuple[np.ndarray, ...], np.ndarray]
Weights = tuple[np.ndarray, np.ndarray]

# Columns of a product that costs as much as a narrower one.
COLUMNS = 16


def weighted_hops(hops: Sequence[Features], head: Head, vectors_RF: Tensor) -> "DenseHops | SparseHops":
    """Puts the hops into the form that a head needs: a single layer gives its dense input as embedding.

    Scores are sums of their products with some of the vectors. Beside a dense hop, sparse ones are written out, too,
    which takes less time and no more memory than the dense one.
    """
    sparse = [hop for hop in hops if isinstance(hop, FeatureMatrix)]
    if len(head.linears) > 1 and len(sparse) == len(hops):
        return SparseHops(sparse, head, vectors_RF)
    return DenseHops([hop.to_dense() if isinstance(hop, FeatureMatrix) else hop for hop in hops], head, vectors_RF)


def weigh_sparse_hops(hops: Sequence[Features], weight_HF: Tensor, vectors_RF: Tensor, module: Any) -> Tensor | None:
    """Sums the products of sparse hops with a weight, `[N, H]`, as a GAMLP weighs them; None: in another way.

    Only stand-ins of hops are summed here (`models.compiled`).
    """
    if has_torch_function(tuple(hops)):
        return handle_torch_function(weigh_sparse_hops, tuple(hops), hops, weight_HF, vectors_RF, module)
    return None


def joined_factors(weight_HF: Tensor, vectors_RF: Tensor) -> Tensor:
    """Joins factors whose product with a sparse hop is one: `[F, W]`, a weight's, vectors, and zeros behind them."""
    factors = [weight_HF.t(), vectors_RF.t()]
    width = len(weight_HF) + len(vectors_RF)
    return torch.cat([*factors, weight_HF.new_zeros(weight_HF.shape[1], -width % COLUMNS)], dim=1)


class DenseHops:
    """Rows of all hops, hop 0 first; `shape` has the numbers of rows, hops and features."""

    def __init__(self, hops: Sequence[Tensor], head: Head, vectors_RF: Tensor) -> None:
        self._vectors_RF = vectors_RF
        # This is the only copy of the inputs; it makes scores and weighted sum one product each instead of one a hop.
        self._hops_NKF = torch.stack(tuple(hops), dim=1).to(head.dtype)
        n, k, f = self._hops_NKF.shape
        self.shape = n, k, f

    def scores_NK(self, r: int) -> Tensor:
        """Multiplies every hop by vector r."""
        return (self._hops_NKF.flatten(0, 1) @ self._vectors_RF[r]).view(self.shape[:2])

    def first_N(self) -> Tensor:
        """Multiplies hop 0 by vector 0."""
        return self._hops_NKF[:, 0] @ self._vectors_RF[0]

    def all_N(self) -> Tensor:
        """Sums the products of hop k with vector k."""
        return self._hops_NKF.flatten(1) @ self._vectors_RF[: self.shape[1]].flatten()

    def output(self, weights_NK: Tensor, head: Head) -> Output:
        """Computes the head on the weighted sum of the hops."""
        return head(torch.bmm(weights_NK.unsqueeze(1), self._hops_NKF).squeeze(1))


class SparseHops:
    """The same of sparse hops, each multiplied once, by the first weight and all vectors, before the sum."""

    def __init__(self, hops: Sequence[FeatureMatrix], head: Head, vectors_RF: Tensor) -> None:
        self.shape = len(hops[0]), len(hops), hops[0].shape[1]
        first: Any = head.linears[0]
        self._bias_H, self._hidden = first.bias, first.out_features
        factors_FW = joined_factors(first.weight, vectors_RF)
        self._products_NW = products([hop.float() for hop in hops], factors_FW)

    def scores_NK(self, r: int) -> Tensor:
        return torch.stack([product_NW[:, self._hidden + r] for product_NW in self._products_NW], dim=1)

    def first_N(self) -> Tensor:
        return self._products_NW[0][:, self._hidden]

    def all_N(self) -> Tensor:
        return torch.stack([product_NW[:, self._hidden + k] for k, product_NW in enumerate(self._products_NW)]).sum(0)

    def output(self, weights_NK: Tensor, head: Head) -> Output:
        through = [product_NW[:, : self._hidden] for product_NW in self._products_NW]
        parts = [weight_N1 * product_NH for weight_N1, product_NH in zip(weights_NK.split(1, dim=1), through)]
        return head.after_first(torch.stack(parts).sum(0) + self._bias_H)


class Hops(NamedTuple):
    """Rows of all hops, by their number: those that are summed before they are multiplied, and the others."""

    summed: dict[int, Tensor]
    others: dict[int, Features]

    @property
    def kernel_inputs(self) -> Read:
        """The summed hops as the kernels read them, and their numbers."""
        if not self.summed:
            return (np.empty((0, 0), np.float32),), np.zeros(1, np.int64)
        return tuple(hop.contiguous().numpy() for hop in self.summed.values()), np.array(list(self.summed))

    def reference_hops(self, references: int) -> list[int]:
        """Returns the summed hops that all are compared with, if the first `references` of all hops are."""
        return [k for k in self.summed if k < references]


def apart(hops: Sequence[Features]) -> Hops:
    """Separates the hops: dense ones are summed if there are several."""
    dense = {k: hop for k, hop in enumerate(hops) if isinstance(hop, Tensor)}
    summed = dense if len(dense) > 1 else {}
    return Hops(summed, {k: hop for k, hop in enumerate(hops) if k not in summed})


def weigh_hops(
    module: Any, hops: Hops, scores: Mapping[int, Tensor], count: int, sum_NF: Tensor
) -> tuple[Tensor, Tensor]:
    """Sigmoids of all scores and weights of all `count` hops, `[N, K]`; writes the weighted sum of some, `[N, F]`.

    `module` is a GAMLP of any attention but `recursive`, on a processor; `scores` has, of every hop that is not summed,
    its products with the vectors, `[N, R]`. `sum_NF` is of width 0 if none are summed.
    """
    rows = len(sum_NF)
    weight_NK = torch.empty(rows, count)
    if module.attention == "simple":
        own_F, reference_RF, shared_N = torch.empty(0), torch.empty(0, 0), torch.zeros(rows)
        gate_NK = module.theta.detach().repeat(rows, 1)
    else:
        own_F, reference_KF = score_vectors(module.score.weight.detach(), module.head.linears[0].in_features)
        reference_RF = reference_KF[hops.reference_hops(len(reference_KF))]
        gate_NK, shared_N = torch.zeros(rows, count), module.score.bias.detach().repeat(rows)
        for place, score_NR in scores.items():
            gate_NK[:, place] = score_NR[:, -1]
            if place < len(reference_KF):
                shared_N += score_NR[:, place]
    vectors, weights = (own_F.numpy(), reference_RF.numpy()), (gate_NK.numpy(), weight_NK.numpy())
    weigh(hops.kernel_inputs, vectors, shared_N.numpy(), weights, sum_NF.numpy())
    return gate_NK, weight_NK


def score_vectors(weight: Tensor, features: int) -> tuple[Tensor, Tensor]:
    """Returns the vector of a hop's score, `[F]`, and those of the hops that all are compared with."""
    rows = weight.view(-1, features)
    return rows[-1], rows[:-1]


def evaluate_gamlp(module: Any, hops: Sequence[Features]) -> Output:
    """Evaluates a GAMLP as `weigh_hops` takes it, without gradients, for rows of all hops."""
    head: Head = module.head
    if len(head.linears) == 1:
        dense = [hop.to_dense() for hop in hops]
        parts = Hops({k: hop.float() for k, hop in enumerate(dense)}, {})
    else:
        parts = apart([hop.float() for hop in hops])
    first: Any = head.linears[0]
    sum_NF = torch.empty(len(hops[0]), first.in_features if parts.summed else 0)
    product_of: dict[int, Tensor] = {}
    if parts.others:
        factors_FW = joined_factors(first.weight, module.vectors_RF())
        product_of = dict(zip(parts.others, products(list(parts.others.values()), factors_FW)))
    last = first.out_features + len(module.vectors_RF())
    scores = {k: product_NW[:, first.out_features : last] for k, product_NW in product_of.items()}
    _, weight_NK = weigh_hops(module, parts, scores, len(hops), sum_NF)
    if not product_of:
        return head(sum_NF)
    out = first.bias.repeat(len(sum_NF), 1)
    if parts.summed:
        out.addmm_(sum_NF, first.weight.t())
    for k, product_NW in product_of.items():
        out.addcmul_(product_NW[:, : first.out_features], weight_NK[:, k : k + 1])
    return head.after_first(out)


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def weigh(
    read: Read, vectors: tuple[np.ndarray, np.ndarray], shared: np.ndarray, weights: Weights, total: np.ndarray
) -> None:
    """Writes weights softmax(sigmoid(scores)) of all hops at every node, and the weighted sum of D of its hops.

    Args:
        read: Those that are summed, of width 0 if there are none, and which of the K hops they are.
        vectors: What a hop is multiplied by for its own score, float32 `[F]`, empty if scores read no hop; and what the
            first ones of them are multiplied by for the score of every hop, `[R, F]`.
        shared: The part of all scores that is not of these hops, `[N]`.
        weights: That part of each hop's score, which gives way to its sigmoid, and the weights; `total` is `[N, F]`.
    """
    (hops, places), (hop_vector, reference), (gate, weight) = read, vectors, weights
    reads = len(hop_vector) > 0
    for n in range(len(shared)):
        common = shared[n]
        for d in range(len(hops)):
            x = hops[d]
            if reads:
                score = np.float32(0)
                for column in range(x.shape[1]):
                    score += x[n, column] * hop_vector[column]
                gate[n, places[d]] += score
            if d < len(reference):
                part = np.float32(0)
                for column in range(x.shape[1]):
                    part += x[n, column] * reference[d, column]
                common += part
        norm = np.float32(0)
        for k in range(gate.shape[1]):
            gate[n, k] = ONE / (ONE + math.exp(-(gate[n, k] + common)))
            weight[n, k] = math.exp(gate[n, k])
            norm += weight[n, k]
        for k in range(gate.shape[1]):
            weight[n, k] /= norm
        total[n, :] = 0
        for d in range(len(hops)):
            x, w = hops[d], weight[n, places[d]]
            for column in range(x.shape[1]):
                total[n, column] += w * x[n, column]


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def unweigh(
    read: Read, of_total: np.ndarray, weights: Weights, of_score: np.ndarray, vectors: tuple[np.ndarray, np.ndarray]
) -> None:
    """Computes the gradients of scores, and of the factors of summed hops, from that of their sum.

    Arguments are those of `weigh`, or what it gave, and gradients: `of_total` that of the weighted sum, `[N, F]`;
    `of_score` that of the weights of other hops, 0 for these, which gives way to that of all scores, `[N, K]`; those of
    its `vectors` are added.
    """
    (hops, places), (gate, weight), (of_own, of_reference) = read, weights, vectors
    reads = len(of_own) > 0
    for n in range(len(of_total)):
        for d in range(len(hops)):
            x, product = hops[d], np.float32(0)
            for column in range(x.shape[1]):
                product += x[n, column] * of_total[n, column]
            of_score[n, places[d]] += product
        mean = np.float32(0)
        for k in range(gate.shape[1]):
            mean += weight[n, k] * of_score[n, k]
        everyone = np.float32(0)
        for k in range(gate.shape[1]):
            g = gate[n, k]
            of_score[n, k] = weight[n, k] * (of_score[n, k] - mean) * g * (ONE - g)
            everyone += of_score[n, k]
        for d in range(len(hops)):
            x, score = hops[d], of_score[n, places[d]]
            if reads:
                for column in range(x.shape[1]):
                    of_own[column] += score * x[n, column]
            if d < len(of_reference):
                for column in range(x.shape[1]):
                    of_reference[d, column] += everyone * x[n, column]
