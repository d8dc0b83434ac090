"""Dynamic time warping: how far series of numbers are apart when one may run ahead of the other."""

import numpy as np


def warping_distances(series_NL: np.ndarray) -> np.ndarray:
    """Distances of all pairs of series, float64 `[N, N]`, symmetric and 0 from a series to itself.

    A path leads from the first numbers of both series to the last ones, and each step goes on by one in either or in
    both (Sakoe and Chiba, 1978, without a band). The distance is the root of the least sum of squared differences
    along a path, so that it is at most the Euclidean one.

    Args:
        series_NL: N series of L numbers; all pairs are worked on at once, in 2 L matrices of N x N numbers.
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
