"""One step's view of a client's graph that FGGP's generator draws, edge by edge, with gradients to the generator."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from algorithms.completed_graph import CompletedGraph
from storage.sparse_matrix import SparseMatrix


@dataclass(frozen=True)
class EdgeOptions:
    """How likely an edge is, and how it is drawn.

    Attributes:
        random_pairs: Pairs of every node with a random other one that may become edges beside those of A'.
        lam: Lambda: the weight of A' beside the similarity of two nodes, in [0, 1].
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

    Attributes:
        operator: D^-1/2 (A^g + I) D^-1/2, which stands where the matrix of a `Neighbourhood` stands; `@` has gradients
            to the dense factor and, through products and degrees, to F.
        edges: How many edges were drawn.
    """

    operator: SparseMatrix
    edges: int

    def __init__(self, graph: CompletedGraph, f_NH: Tensor, rng: torch.Generator, options: EdgeOptions) -> None:
        """Draws candidates and edges.

        Args:
            graph: A'.
            f_NH: Output of the generator, float32, with its gradient.
            rng: Where randomness comes from.
            options: How.
        """
        raise NotImplementedError

    def regularizer(self) -> Tensor:
        """L_reg, a scalar: how badly F tells the pairs of A' from the random ones (equation 9; sampled).

        The mean over pairs of A' of -log sigmoid(l), and that over random ones of -log(1 - sigmoid(l)), averaged;
        l = <F_i, F_j> / sqrt(H). A mean over no pairs is left out; without any pair L_reg is 0.
        """
        raise NotImplementedError
