"""How well scores rank the rows of a class above all others: the exact area under the ROC curve, in whole numbers."""

import numpy as np
from torch import Tensor


def twice_wins(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Twice the Mann-Whitney U of every class against all others, int64 `[C]`.

    Of all pairs of a row of the class and another row, one whose first row is more probably of the class counts 2, a
    tie counts 1. Rows are compared by the logit of the class's softmax probability p in float64,
    log p - log(1 - p) = s_c - log sum_{j != c} exp(s_j): the order of p, without its rounding near 0 and 1.

    Args:
        scores_NC: Scores of N rows, the largest of each finite.
        label_N: Their classes, int64.
    """
    scores_NC, label = scores_NC.detach().double().cpu(), label_N.cpu().numpy()
    classes = scores_NC.shape[1]
    positive_C = np.bincount(label, minlength=classes)
    twice_C = np.zeros(classes, dtype=np.int64)
    for c in np.flatnonzero((positive_C > 0) & (positive_C < len(label))).tolist():
        others_NC = scores_NC[:, [j for j in range(classes) if j != c]]
        margin = (scores_NC[:, c] - others_NC.logsumexp(1)).numpy()
        above, below = margin[label == c], np.sort(margin[label != c])
        twice_C[c] = np.searchsorted(below, above, "left").sum() + np.searchsorted(below, above, "right").sum()
    return twice_C


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
