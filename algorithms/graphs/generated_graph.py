"""One step's view of a client's graph that FGGP's generator draws, edge by edge, with gradients to the generator."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.graphs.completed_graph import Candidates, CompletedGraph, draw_candidates
from shoal.algorithms.graphs.drawn_operator import DrawnOperator
from shoal.algorithms.graphs.pairs import PairDots

LEAST_CHANCE, LEAST_NORM = 1e-6, 1e-8


@dataclass(frozen=True)
class EdgeOptions:
    """How likely an edge is, and how it is drawn.

    Attributes:
        random_pairs: Pairs of every node with a random other one that may become edges in addition to those of A'.
        lam: Lambda: the weight of A' against the similarity of two nodes, in [0, 1].
        similarity: Omega: `cosine`, relu(cos(F_i, F_j)); or `max`, <F_i, F_j> over the largest one (authors' code).
        temperature: T of the relaxation; the drawn edges do not depend on it.
        draw: `logistic`: an edge is there with probability B. `gumbel`: equation 7 as it is written, 1 - exp(-B).
    """

    random_pairs: int = 5
    lam: float = 0.5
    similarity: Literal["cosine", "max"] = "cosine"
    temperature: float = 1.0
    draw: Literal["logistic", "gumbel"] = "logistic"

    def __post_init__(self) -> None:
        if self.random_pairs < 0:
            raise ValueError("random_pairs must not be negative")
        if not 0 <= self.lam <= 1:
            raise ValueError("lam must lie in [0, 1]")
        if not self.temperature > 0:
            raise ValueError("temperature must be positive")


class GeneratedGraph:
    """One draw of A^g over candidate pairs: those of A' and random ones (FGGP, equations 6, 7 and 9).

    A candidate becomes an edge by B = lambda * [it is in A'] + (1 - lambda) * Omega, kept within [1e-6, 1 - 1e-6]; in
    the backward pass it counts as the sigmoid whose half it was cut at (straight-through). Other pairs never do.

    Attributes:
        candidates: The pairs that could become edges.
        probability_S: B, float32, without gradient.
        operator: D^-1/2 (A^g + I) D^-1/2, which stands where the matrix of a `Neighbourhood` stands; `@` has gradients
            to the dense factor and, through products and degrees, to F.
    """

    def __init__(self, graph: CompletedGraph, f_NH: Tensor, rng: torch.Generator, options: EdgeOptions) -> None:
        """Draws candidates and edges.

        Args:
            graph: A'.
            f_NH: Output of the generator, float32, with its gradient, on the device of the graph's pairs.
            rng: Where randomness comes from, for that device.
            options: How.
        """
        self.candidates = draw_candidates(graph, options.random_pairs, rng)
        self._dot_S: Tensor = PairDots.apply(f_NH, self.candidates.pairs_2S)
        self._width = f_NH.shape[1]
        probability_S = edge_probability(self.candidates, f_NH, self._dot_S, options)
        self.probability_S = probability_S.detach()
        kept_S = draw_edges(probability_S, rng, options)
        self.operator = DrawnOperator(self.candidates.pairs_2S, kept_S, graph.nodes)

    @property
    def edges(self) -> int:
        """How many edges were drawn."""
        return int(self.operator.degree_N.sum(dtype=torch.float64) - len(self.operator)) // 2

    def regularizer(self) -> Tensor:
        """L_reg, a scalar: how badly F tells the pairs of A' from the random ones (equation 9; sampled).

        The mean over pairs of A' of -log sigmoid(l), and that over the others of -log(1 - sigmoid(l)), averaged;
        l = <F_i, F_j> / sqrt(H). A mean over no pairs is left out; without any pair L_reg is 0.
        """
        scaled_S, known_S = self._dot_S / math.sqrt(self._width), self.candidates.known_S
        parts = F.softplus(-scaled_S[known_S]), F.softplus(scaled_S[~known_S])
        means = [part.mean() for part in parts if len(part)]
        return torch.stack(means).mean() if means else self._dot_S.sum()


def edge_probability(candidates: Candidates, f_NH: Tensor, dot_S: Tensor, options: EdgeOptions) -> Tensor:
    """B of every candidate, float32 `[S]`.

    Args:
        candidates: The pairs.
        f_NH: F, float32.
        dot_S: <F_i, F_j> of the pairs.
        options: Lambda and Omega.
    """
    if options.similarity == "cosine":
        inverse_N = 1 / f_NH.norm(dim=1).clamp_min(LEAST_NORM)
        i, j = candidates.pairs_2S
        omega_S = F.relu(dot_S * inverse_N.index_select(0, i) * inverse_N.index_select(0, j))
    else:
        omega_S = dot_S / dot_S.max().clamp_min(LEAST_NORM) if len(dot_S) else dot_S
    mixed_S = options.lam * candidates.known_S + (1 - options.lam) * omega_S
    return mixed_S.clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)


def draw_edges(probability_S: Tensor, rng: torch.Generator, options: EdgeOptions) -> Tensor:
    """Zeros and ones, float32 `[S]`, with the gradients of what they were rounded from."""
    u_S = torch.rand(len(probability_S), generator=rng, device=probability_S.device)
    if options.draw == "logistic":
        score_S = torch.logit(probability_S) + torch.logit(u_S)
    else:
        score_S = torch.log(probability_S) - torch.log(-torch.log(u_S))
    soft_S = torch.sigmoid(score_S / options.temperature)
    return (score_S.detach() >= 0).float() + (soft_S - soft_S.detach())
