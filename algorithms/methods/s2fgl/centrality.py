"""Nodes by how near training labels are to them in a client's graph (S2FGL)."""

import math

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

# Random walks from so many training nodes are followed at a time.
WALKERS = 256
# The share of walkers that is still on the way when the sum of powers ends.
REST = 1e-8


def label_centrality(indptr: np.ndarray, indices: np.ndarray, train: np.ndarray, restart: float) -> np.ndarray:
    """Computes max over j of S_ij + restart * sum over j of S_ij for all nodes i, float64 `[N]`; j are training nodes.

    S = sum over k of ((1 - restart) D^-1 A)^k, personalised PageRank but for the factor restart. N times the number
    of training nodes are computed, `WALKERS` columns at a time.
    """
    nodes, degree = len(indptr) - 1, np.diff(indptr)
    share = np.repeat((1 - restart) / np.maximum(degree, 1), degree)
    walk = sp.csr_array((share, indices, indptr), (nodes, nodes))
    powers = math.ceil(math.log(REST) / math.log(1 - restart))
    largest, total = np.zeros(nodes), np.zeros(nodes)
    for start in range(0, len(train), WALKERS):
        part = train[start : start + WALKERS]
        power = np.zeros((nodes, len(part)))
        power[part, np.arange(len(part))] = 1
        sums = power.copy()
        for _ in range(powers):
            power = walk @ power
            sums += power
        np.maximum(largest, sums.max(1), out=largest)
        total += sums.sum(1)
    return largest + restart * total


def central_nodes(
    indptr: np.ndarray, indices: np.ndarray, train: np.ndarray, restart: float, share: float, most: int | None = None
) -> Tensor:
    """Lists a share of the nodes, those of the largest centrality, ascending, int64; one at least, `most` at most.

    Of equally central ones the lowest number comes first.
    """
    # Nodes that lie alike differ by rounding.
    score = label_centrality(indptr, indices, train, restart).round(6)
    count = max(int(share * len(score)), 1)
    chosen = np.argsort(-score, kind="stable")[: count if most is None else min(count, most)]
    return torch.from_numpy(np.sort(chosen).astype(np.int64))
