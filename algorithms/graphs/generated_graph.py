"""One step's view of a client's graph that FGGP's generator draws, edge by edge, with gradients to the generator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.graphs.completed_graph import Candidates, CompletedGraph, draw_candidates
from shoal.algorithms.graphs.drawn_edges import DrawnEdges
from shoal.algorithms.graphs.pairs import (
    PairDots,
    cross_dots,
    gradients_of_edges,
    normalised_rows,
    on_processor,
    symmetric_rows,
)
from shoal.algorithms.models.inputs.learned_matrix import LearnedMatrix
from shoal.storage.graph.sparse_matrix import SparseMatrix

LEAST_CHANCE, LEAST_NORM = 1e-6, 1e-8
# One uniform number in 2^24 is zero: its score would be infinite, and a cross-entropy NaN.
LEAST_DRAW = 2.0**-25

Similarity = Literal["cosine", "max", "sigmoid"]
# The matrices of drawn edges: of a GCN, and of a GIN.
Drawn = Literal["symmetric", "sum"]


@dataclass(frozen=True)
class EdgeOptions:
    """Options of the probability of an edge, and of its draw.

    Attributes:
        random_pairs: Random pairs of every node that may become edges beside those of A'; `all`, as eq. 7 is written.
        lam: Lambda: the weight of A' against the similarity of two nodes, in [0, 1].
        similarity: Omega: `cosine`, relu(cos(F_i, F_j)); `max`, <F_i, F_j> over the largest one (authors' code); or
            `sigmoid` of <F_i, F_j>, as eq. 7 is written: never below a half where F is not negative.
        temperature: T of the relaxation; the drawn edges do not depend on it.
        draw: `logistic`: an edge is there with probability B. `gumbel`: equation 7 as it is written, 1 - exp(-B).
        reg_form: L_reg: `balanced`, or `literal`, see `GeneratedGraph.regularizer`.
    """

    random_pairs: int | Literal["all"] = 5
    lam: float = 0.5
    similarity: Similarity = "cosine"
    temperature: float = 1.0
    draw: Literal["logistic", "gumbel"] = "logistic"
    reg_form: Literal["balanced", "literal"] = "balanced"

    @property
    def in_one_call(self) -> bool:
        """Whether compiled code draws such edges, see `DrawnEdges`."""
        return (self.similarity, self.draw, self.reg_form) == ("cosine", "logistic", "balanced")


class GeneratedGraph:
    """One draw of A^g over candidate pairs: those of A' and random ones (FGGP, equations 6, 7 and 9).

    A candidate becomes an edge by B = lambda * [it is in A'] + (1 - lambda) * Omega, kept within [1e-6, 1 - 1e-6]; in
    the backward pass it counts as the sigmoid whose half it was cut at (straight-through). Other pairs never do.

    Attributes:
        candidates: The pairs that could become edges.
        operator: The matrix of a kind, see `DrawnOperator`, which stands where that of a `Neighbourhood` stands; `@`
            has gradients to the dense factor and, through products and degrees, to F.
    """

    def __init__(
        self,
        graph: CompletedGraph,
        f_NH: Tensor,
        rng: torch.Generator,
        options: EdgeOptions,
        kind: Drawn = "symmetric",
        first: Tensor | None = None,
    ) -> None:
        """Draws candidates of A', and edges by the generator's output F, float32, on the device of the pairs.

        `first` is as of `draw_candidates`.
        """
        self.candidates = draw_candidates(graph, options.random_pairs, rng, first)
        u_S = torch.rand(len(self.candidates.known_S), generator=rng, device=f_NH.device)
        self._regularizer: Tensor | None = None
        if on_processor(f_NH) and options.in_one_call:
            factors = options.lam, options.temperature, LEAST_CHANCE, LEAST_NORM
            kept_S, self._regularizer = DrawnEdges.apply(f_NH, *self.candidates, u_S, factors)
        else:
            self._dot_S: Tensor = PairDots.apply(f_NH, self.candidates.pairs_2S)
            self._width, self._literal = f_NH.shape[1], options.reg_form == "literal"
            score_S = edge_scores(edge_probability(self.candidates, f_NH, self._dot_S, options), u_S, options)
            self._soft_S = score_S / options.temperature
            kept_S = draw_edges(score_S, self._soft_S)
        self.operator = DrawnOperator(self.candidates.pairs_2S, kept_S, graph.nodes, kind)

    def regularizer(self) -> Tensor:
        """Computes L_reg, a scalar: how badly F tells the pairs of A' from the other candidates (equation 9).

        The mean over pairs of A' of -log sigmoid(l), and that over the others of -log(1 - sigmoid(l)), averaged;
        l = <F_i, F_j> / sqrt(H). A mean over no pairs is left out; without any pair L_reg is 0.

        `literal`, H(A', A^g) as it is written: one mean over all candidates of the same logarithms, with the sigmoid
        that equation 7 rounds, instead of sigmoid(l). What it rounds to is 0 or 1, whose logarithm may be infinite.
        """
        if self._regularizer is not None:
            return self._regularizer
        known_S = self.candidates.known_S
        if self._literal and len(known_S):
            return F.binary_cross_entropy_with_logits(self._soft_S, known_S.float())
        scaled_S = self._dot_S / math.sqrt(self._width)
        # A mean over some pairs is a sum over all of them with weights.
        edges = int(known_S.sum())
        counts = edges, len(known_S) - edges
        of_known, of_other = (1 / (count * sum(map(bool, counts))) if count else 0.0 for count in counts)
        weight_S = torch.where(known_S, of_known, of_other).to(scaled_S.dtype)
        return weight_S @ F.softplus(torch.where(known_S, -scaled_S, scaled_S))


def edge_probability(candidates: Candidates, f_NH: Tensor, dot_S: Tensor, options: EdgeOptions) -> Tensor:
    """Computes B of every candidate, float32 `[S]`, from F and the products <F_i, F_j> of the pairs."""
    if options.similarity == "cosine":
        inverse_N = 1 / f_NH.norm(dim=1).clamp_min(LEAST_NORM)
        i, j = candidates.pairs_2S
        omega_S = F.relu(dot_S * inverse_N.index_select(0, i) * inverse_N.index_select(0, j))
    elif options.similarity == "sigmoid":
        omega_S = dot_S.sigmoid()
    else:
        omega_S = dot_S / dot_S.max().clamp_min(LEAST_NORM) if len(dot_S) else dot_S
    mixed_S = options.lam * candidates.known_S + (1 - options.lam) * omega_S
    return mixed_S.clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)


def edge_scores(probability_S: Tensor, u_S: Tensor, options: EdgeOptions) -> Tensor:
    """Computes numbers, float32 `[S]`, whose sigmoid with temperature is rounded to an edge or none; u is uniform."""
    u_S = u_S.clamp_min(LEAST_DRAW)
    if options.draw == "logistic":
        return torch.logit(probability_S) + torch.logit(u_S)
    return torch.log(probability_S) - torch.log(-torch.log(u_S))


def draw_edges(score_S: Tensor, scaled_S: Tensor) -> Tensor:
    """Zeros and ones, float32 `[S]`, with the gradients of the sigmoid of the scores over the temperature."""
    soft_S = torch.sigmoid(scaled_S)
    return (score_S.detach() >= 0).float() + (soft_S - soft_S.detach())


class DrawnOperator(LearnedMatrix):
    """P = D^-1/2 (A + I) D^-1/2, D = diag((A + I) 1), of a graph whose edges are some of the candidate pairs.

    It stands where the matrix of a layer stands, which is multiplied by dense rows. Products have gradients to the
    dense factor and to the numbers a_e, whether pair e is an edge, for all pairs, also those that are none: with
    y = P x, g the gradient of y, s = D^-1/2 1, and c_ij the sum of <g_i, x_j> + <g_j, x_i> over products,

        dL/da_ij = s_i s_j c_ij + t_i + t_j,   t_i = -s_i^2 / 2 sum_j P_ij c_ij,

    t being what comes through the degrees; the sum has c_ii as well, twice <g_i, x_i>. The matrix of kind `sum` is A,
    and dL/da_ij = c_ij.
    """

    def __init__(self, pairs_2S: Tensor, kept_S: Tensor, nodes: int, kind: Drawn = "symmetric") -> None:
        """Builds the graph once, for all layers.

        Args:
            pairs_2S: Candidate edges (i, j) with i < j, int32, ascending.
            kept_S: The a_e of the class, float32: above 0.5 where a candidate is an edge.
            nodes: Number of nodes.
            kind: P (`symmetric`), or A (`sum`).
        """
        self._pairs_2S, self.numbers, self._kept_S, self._kind = pairs_2S, kept_S, kept_S.detach() > 0.5, kind
        if kind == "sum":
            some = pairs_2S[:, self._kept_S].cpu().numpy()
            starts, columns = (torch.from_numpy(part).to(kept_S.device) for part in symmetric_rows(some, nodes))
            values = torch.ones(len(columns), device=kept_S.device)
        elif on_processor(kept_S):
            arrays = normalised_rows(pairs_2S.numpy(), self._kept_S.numpy(), nodes)
            starts, columns, values, self._scale_N = map(torch.from_numpy, arrays)
        else:
            starts, columns, values, self._scale_N = _by_torch(pairs_2S, self._kept_S, nodes)
        csr = SparseMatrix.of(starts, columns, values, nodes).csr
        super().__init__(csr, csr)

    def __matmul__(self, dense: Tensor) -> Tensor:
        with torch.autocast(dense.device.type, enabled=False):
            return _Product.apply(dense.float(), self.numbers, self)

    def of_numbers(self, products: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        if self._kind == "sum":
            return torch.stack([cross_dots(g_NH, x_NH, self._pairs_2S) for x_NH, g_NH in products]).sum(0)
        if on_processor(self._scale_N):
            places = [(x_NH.data_ptr(), g_NH.data_ptr(), x_NH.shape[1]) for x_NH, g_NH in products]
            out_S = torch.empty(len(self._kept_S))
            tensors = *self._pairs_2S, self._kept_S, self._scale_N
            gradients_of_edges(*(t.numpy() for t in tensors), np.array(places), out_S.numpy())
            return out_S
        cross_S = sum(cross_dots(g_NH, x_NH, self._pairs_2S) for x_NH, g_NH in products)
        own_N = sum(torch.linalg.vecdot(g_NH, x_NH) for x_NH, g_NH in products)
        assert isinstance(cross_S, Tensor)
        assert isinstance(own_N, Tensor)
        i, j = self._pairs_2S
        cross_S *= self._scale_N[i] * self._scale_N[j]
        square_N, entry_S = self._scale_N.square(), cross_S * self._kept_S
        sum_N = (2 * square_N * own_N).index_add_(0, i, entry_S).index_add_(0, j, entry_S)
        through_N = sum_N * square_N / -2
        return cross_S + through_N[i] + through_N[j]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, kept_S: Tensor, matrix: DrawnOperator) -> Tensor:
        ctx.matrix = matrix
        if kept_S.requires_grad:
            ctx.save_for_backward(x_NH.contiguous())
        return matrix.times(x_NH.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        g_NH = gradients[0].contiguous()
        of_kept = ctx.matrix.of_numbers([(*ctx.saved_tensors, g_NH)]) if ctx.needs_input_grad[1] else None
        return ctx.matrix.times(g_NH), of_kept, None


def _by_torch(pairs_2S: Tensor, kept_S: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Builds what `normalised_rows` does, on any device."""
    low, high = pairs_2S[:, kept_S].long()
    loops = torch.arange(nodes, device=low.device) * (nodes + 1)
    keys = torch.cat([low * nodes + high, loops, high * nodes + low]).sort().values
    row, column = keys // max(nodes, 1), keys % max(nodes, 1)
    starts = torch.searchsorted(row, torch.arange(nodes + 1, device=row.device))
    scale_N = starts.diff().float().rsqrt()
    return starts.int(), column.int(), scale_N[row] * scale_N[column], scale_N
