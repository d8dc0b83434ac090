"""How well scores rank the rows of a class above all others: areas under the ROC curve, and average precision."""

import math
from collections.abc import Iterator

import numpy as np
from torch import Tensor


def twice_wins(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Twice the Mann-Whitney U of every class against all others, int64 `[C]`: exact areas, in whole numbers.

    Of all pairs of a row of the class and another row, one whose first row is more probably of the class counts 2, a
    tie counts 1. Rows are compared by the logit of the class's softmax probability p in float64,
    log p - log(1 - p) = s_c - log sum_{j != c} exp(s_j): the order of p, without its rounding near 0 and 1.

    Args:
        scores_NC: Scores of N rows, the largest of each finite.
        label_N: Their classes, int64.
    """
    twice_C = np.zeros(scores_NC.shape[1], dtype=np.int64)
    for c, margin_N, own_N in _margins(scores_NC, label_N):
        above, below = margin_N[own_N], np.sort(margin_N[~own_N])
        twice_C[c] = np.searchsorted(below, above, "left").sum() + np.searchsorted(below, above, "right").sum()
    return twice_C


def average_precisions(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Average precision of every class against all others, float64 `[C]`; 0 where all rows are of it, or none.

    AP = sum_k (R_k - R_{k-1}) P_k over the distinct margins of rows (as for `twice_wins`) from the highest down, where
    P_k is the share of the class among rows down to the k-th margin and R_k the share of its rows that are among them.
    Rows that tie come together, as in scikit-learn's `average_precision_score`. The sum is rounded once, so that it
    has the same bits everywhere.

    Args:
        scores_NC: Scores of N rows, the largest of each finite.
        label_N: Their classes, int64.
    """
    average_C = np.zeros(scores_NC.shape[1])
    for c, margin_N, own_N in _margins(scores_NC, label_N):
        order = np.argsort(margin_N)[::-1]
        falling_N, found_N = margin_N[order], np.cumsum(own_N[order])
        last_K = np.flatnonzero(np.append(falling_N[1:] != falling_N[:-1], True))
        found_K = found_N[last_K]
        average_C[c] = math.fsum(np.diff(found_K, prepend=0) * (found_K / (last_K + 1))) / int(found_K[-1])
    return average_C


def mean_auc(support_C: np.ndarray, twice_C: np.ndarray) -> float | None:
    """Mean over classes of the area under the ROC curve of the class against all others (Hanley & McNeil, 1982).

    Args:
        support_C: Rows of every class, int64.
        twice_C: What `twice_wins` gave.

    Returns:
        Over the classes that some rows are of and some are not; None if there is none.
    """
    pairs_C = support_C * (support_C.sum() - support_C)
    ranked = pairs_C > 0
    return float((twice_C[ranked] / (2 * pairs_C[ranked])).mean()) if ranked.any() else None


def _margins(scores_NC: Tensor, label_N: Tensor) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Every class that some rows are of and some are not, with rows' margins, float64 `[N]`, and which are of it."""
    scores_NC, label = scores_NC.detach().double().cpu(), label_N.cpu().numpy()
    classes = scores_NC.shape[1]
    positive_C = np.bincount(label, minlength=classes)
    for c in np.flatnonzero((positive_C > 0) & (positive_C < len(label))).tolist():
        others_NC = scores_NC[:, [j for j in range(classes) if j != c]]
        yield c, (scores_NC[:, c] - others_NC.logsumexp(1)).numpy(), label == c
