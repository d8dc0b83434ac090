"""How a cluster divides: distances of series by dynamic time warping, and the minimum cut of a weighted graph."""

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


def warping_distances(series_NL: np.ndarray) -> np.ndarray:
    """Distances of all pairs of series, float64 `[N, N]`, symmetric and 0 from a series to itself.

    A path leads from the first numbers of both series to the last ones, and each step goes on by one in either or in
    both (Sakoe and Chiba, 1978, without a band). The distance is the root of the least sum of squared differences
    along a path, so that it is at most the Euclidean one.

    Args:
        series_NL: N series of L numbers; all pairs are computed in one pass, in 2 L matrices of N x N numbers.
    """
    count, length = series_NL.shape
    x_LN = series_NL.astype(np.float64).T
    nowhere_NN = np.full((count, count), np.inf)
    # least[j]: of the paths that end before number j of the second series.
    least = [np.zeros((count, count)), *[nowhere_NN] * length]
    for x_N in x_LN:
        row = [nowhere_NN]
        for y_N, both_NN, first_NN in zip(x_LN, least, least[1:]):
            before_NN = np.minimum(np.minimum(both_NN, first_NN), row[-1])
            row.append((x_N[:, None] - y_N) ** 2 + before_NN)
        least = row
    return np.sqrt(least[-1])
