"""Codes of nodes that tell where in its graph a node lies and nothing of its features (FedStar)."""

import torch
from torch import Tensor

from shoal.storage.graph.sparse_matrix import SparseMatrix

# Steps of random walks, and number of degrees that have a code of their own.
STEPS, DEGREES = 16, 16
CODES = STEPS + DEGREES
# Walks from as many nodes of every graph are followed in one product.
STARTS = 64


def structure_codes(adjacency: Tensor, first: Tensor) -> Tensor:
    """Computes codes of all nodes of several graphs, float32 `[N, Q]`; see `GraphBatch.first`.

    The first 16 numbers are the probabilities that a random walk is back after 1 to 16 steps, (P^k)_vv with
    P = A D^-1; the others tell the degree, one-hot, from 1 to 16 and above. A node without edges has zeros alone (the
    authors' code counts it to degree 1).

    No power of P is made: the columns of P^k for 64 nodes of every graph at a time are N x 64 numbers, and one product
    with A leads to the next k. Graphs that have no such nodes left are cut out. A is CSR, symmetric, of ones.
    """
    degree_N = adjacency.crow_indices().diff().long()
    codes_NQ = torch.zeros(len(degree_N), CODES, device=first.device)
    edged = degree_N.nonzero().flatten()
    codes_NQ[edged, STEPS - 1 + degree_N[edged].clamp_max(DEGREES)] = 1
    sizes_G = first.diff()
    graph_N = torch.arange(len(sizes_G), device=first.device).repeat_interleave(sizes_G)
    number_N = torch.arange(len(degree_N), device=first.device) - first[graph_N]
    for start in range(0, int(sizes_G.max()), STARTS):
        large = sizes_G > start
        rows = large[graph_N].nonzero().flatten()
        matrix = SparseMatrix(adjacency, adjacency).diagonal_blocks(first, large.nonzero().flatten())
        codes_NQ[rows, :STEPS] += _returns(matrix, degree_N[rows], number_N[rows] - start)
    return codes_NQ


def _returns(matrix: SparseMatrix, degree_N: Tensor, start_N: Tensor) -> Tensor:
    """Computes probabilities of a return after 1 to 16 steps, `[N, 16]`, by the adjacency and degrees of nodes.

    Number `start_N` of the walks in its graph begins at a node; where it is not 0 to 63, none does, and all are zero.
    """
    share_N1 = degree_N.float().clamp_min(1).reciprocal()[:, None]
    begins = ((start_N >= 0) & (start_N < STARTS)).nonzero().flatten()
    place = begins, start_N[begins]
    reached_NS = share_N1.new_zeros(len(start_N), STARTS)
    reached_NS[place] = 1
    chance_NS = share_N1.new_zeros(len(start_N), STEPS)
    for step in range(STEPS):
        reached_NS = matrix @ (share_N1 * reached_NS)
        chance_NS[begins, step] = reached_NS[place]
    return chance_NS
