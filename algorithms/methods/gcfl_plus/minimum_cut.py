"""The minimum cut of a weighted graph: where it falls into two most easily."""

import numpy as np


def minimum_cut(weight_NN: np.ndarray) -> np.ndarray:
    """The side without node 0 of a cut of least weight, bool `[N]`, with a node on either side (Stoer and Wagner).

    N - 1 phases each add all nodes to a set, always the one with most weight to it; what the last one weighs is a cut,
    and the last two become one node (Journal of the ACM 44(4), 1997). Of equal choices the first is taken, so that each
    set begins with node 0. N^3 steps, N at a time: about a second for 500 nodes.

    Args:
        weight_NN: Weights of edges, symmetric and not negative; the diagonal is not read. At least two nodes.
    """
    weight_NN = weight_NN.astype(np.float64)
    np.fill_diagonal(weight_NN, 0)
    count = len(weight_NN)
    # Row i: the nodes that node i has become.
    merged_NN = np.eye(count, dtype=bool)
    there_N = np.ones(count, dtype=bool)
    least, side_N = np.inf, merged_NN[0]
    for left in range(count, 1, -1):
        # Of every node the weight to the set; those in the set are out of the question.
        reach_N = np.where(there_N, 0.0, -np.inf)
        last = 0
        for _ in range(left):
            before, last = last, int(reach_N.argmax())
            cut = reach_N[last]
            reach_N[last] = -np.inf
            reach_N += weight_NN[last]
        if cut < least:
            least, side_N = cut, merged_NN[last].copy()
        merged_NN[before] |= merged_NN[last]
        weight_NN[before] += weight_NN[last]
        weight_NN[:, before] = weight_NN[before]
        weight_NN[before, before] = 0
        there_N[last] = False
    return side_N
