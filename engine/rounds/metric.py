"""The metric of a run, where that is not accuracy: how well the items of class 1 are ranked above those of class 0.

Every client's items are ranked among themselves, by the difference of their two scores. What travels and is kept of a
part is one more row of its counts, int64 `[C]`, so that it has the same bits wherever a client is evaluated.
"""

import numpy as np
from torch import Tensor

from engine.rounds.ranking import average_precisions, twice_wins

ACCURACY, ROC_AUC, AVERAGE_PRECISION = "accuracy", "roc_auc", "average_precision"
# What is ranked, and how tables call it.
RANKINGS = {ROC_AUC: "ROC-AUC", AVERAGE_PRECISION: "average precision"}


def ranks(metric: str, scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """What is kept of the scores of a part, int64 `[C]`: what `twice_wins` gives, or the bits of `average_precisions`.

    Args:
        metric: `roc_auc` or `average_precision`.
        scores_NC: Scores of N rows, the largest of each finite.
        label_N: Their classes, int64.
    """
    if metric == ROC_AUC:
        return twice_wins(scores_NC, label_N)
    return average_precisions(scores_NC, label_N).view(np.int64)


def ranked(metric: str, support_B2: np.ndarray, ranks_B2: np.ndarray) -> np.ndarray:
    """The metric of every client, float64 `[B]`; NaN where not both classes occur.

    Args:
        metric: `roc_auc` or `average_precision`.
        support_B2: Rows of class 0 and 1, int64 `[B, 2]`.
        ranks_B2: What `ranks` gave, int64 `[B, 2]`.
    """
    pairs_B = support_B2[:, 0] * support_B2[:, 1]
    if metric == ROC_AUC:
        value_B = ranks_B2[:, 1] / np.maximum(2 * pairs_B, 1)
    else:
        value_B = ranks_B2[:, 1].copy().view(np.float64)
    return np.where(pairs_B > 0, value_B, np.nan)


def over_clients(value_B: np.ndarray, items_B: np.ndarray, rows_B: np.ndarray) -> dict[str, float | int | None]:
    """Weightings of a metric over the clients at which it is defined; None where it is at none.

    Args:
        value_B: Of every client, float64 `[B]`; NaN where it is not defined.
        items_B: How many items every client has, int64 `[B]`.
        rows_B: Rows of the part, int64 `[B]`.

    Returns:
        Weighted by all items (`nodes`), by evaluated rows (`rows`), the plain mean (`clients`), minimum, median,
        maximum, and the number of these clients (`ranked`).
    """
    defined = ~np.isnan(value_B)
    value, items, rows = value_B[defined], items_B[defined], rows_B[defined]
    if not len(value):
        return {**dict.fromkeys(("nodes", "rows", "clients", "min", "median", "max")), "ranked": 0}
    return {
        "nodes": float((items * value).sum() / items.sum()),
        "rows": float((rows * value).sum() / rows.sum()),
        "clients": float(value.mean()),
        "min": float(value.min()),
        "median": float(np.median(value)),
        "max": float(value.max()),
        "ranked": len(value),
    }
