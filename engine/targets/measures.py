"""Metrics of targets that are no classes, of one client's items of a part. Axes: N items, T targets."""

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from shoal.engine.scores.counts import join_parts, kept_of_own

# A number, not negative or NaN, of a target's scores and its numbers or labels `[n]`, none missing.
Kept = Callable[[np.ndarray, np.ndarray], float]


def make_measure(metric: str) -> Callable[[Tensor, Tensor], np.ndarray]:
    """Returns what keeps a metric of scores and targets, `[N, T]`, int64 `[T]`: see `Section.make_measure`."""
    if metric in OF_CLUSTERS:
        return partial(_keep_of_clusters, OF_CLUSTERS[metric])
    return _keep_r2 if metric == "r2" else partial(_keep, KEPT[metric])


def _keep(kept: Kept, scores_NT: Tensor, target_NT: Tensor) -> np.ndarray:
    return _of_each(kept, scores_NT, target_NT).view(np.int64)


def _keep_r2(scores_NT: Tensor, target_NT: Tensor) -> np.ndarray:
    """Keeps mean squared errors and variances, 0 of a target without a number."""
    parts_T, wholes_T = (
        _of_each(kept, scores_NT, target_NT) for kept in (_squares, lambda _, number_n: number_n.var())
    )
    return join_parts(np.nan_to_num(parts_T), np.nan_to_num(wholes_T))


def _keep_of_clusters(compute: Callable[[np.ndarray], float], clusters_NC: Tensor, label_N: Tensor) -> np.ndarray:
    """Keeps a number of clusters, a one each in `[N, C]`, and classes, int64 `[N]`."""
    classes = clusters_NC.shape[1]
    pair = clusters_NC.argmax(1).cpu().numpy() * classes + label_N.cpu().numpy()
    return kept_of_own(compute(np.bincount(pair, minlength=classes**2).reshape(classes, classes)), classes)


def assigned_accuracy(count_KC: np.ndarray) -> float:
    """Computes the share of items whose cluster is assigned to their class, by the best assignment of one to another.

    `count_KC` has the items of every cluster and class, here and below. Source: Kuhn, The Hungarian method, 1955.
    """
    from scipy.optimize import linear_sum_assignment

    return float(count_KC[linear_sum_assignment(count_KC, maximize=True)].sum() / count_KC.sum())


def normalized_information(count_KC: np.ndarray) -> float:
    """Computes mutual information of clusters and classes over the mean of both entropies; 1 where both are 0.

    Source: Strehl & Ghosh, Cluster ensembles, JMLR 2002; the mean is arithmetic, as scikit-learn's.
    """
    total = count_KC.sum()
    entropies = [_entropy(count_KC.sum(axis) / total) for axis in (0, 1)]
    information = sum(entropies) - _entropy(count_KC.ravel() / total)
    return float(max(2 * information / sum(entropies), 0.0)) if sum(entropies) > 0 else 1.0


def adjusted_rand(count_KC: np.ndarray) -> float:
    """Computes the adjusted Rand index (Hubert & Arabie, Comparing partitions, 1985, eq. 5); 1 of one item."""
    together, of_clusters, of_classes = (_pairs(count) for count in (count_KC, count_KC.sum(1), count_KC.sum(0)))
    expected = of_clusters * of_classes / max(_pairs(count_KC.sum()), 1)
    most = (of_clusters + of_classes) / 2
    return float((together - expected) / (most - expected)) if most != expected else 1.0


def _entropy(share: np.ndarray) -> float:
    share = share[share > 0]
    return float(-(share * np.log(share)).sum())


def _pairs(count: np.ndarray) -> float:
    """Counts pairs of items that are in one group."""
    return float((count * (count - 1) // 2).sum())


def _of_each(kept: Kept, scores_NT: Tensor, target_NT: Tensor) -> np.ndarray:
    """Computes a number of every target, float64 `[T]`; NaN where it has no value."""
    score_NT, label_NT = scores_NT.detach().double().cpu().numpy(), target_NT.double().cpu().numpy()
    given_NT = label_NT >= 0 if not target_NT.is_floating_point() else ~np.isnan(label_NT)
    value_T = np.full(label_NT.shape[1], np.nan)
    for t in np.flatnonzero(given_NT.any(0)):
        given = given_NT[:, t]
        value_T[t] = kept(score_NT[given, t], label_NT[given, t])
    return value_T


def _squares(score_n: np.ndarray, number_n: np.ndarray) -> float:
    return float(((score_n - number_n) ** 2).mean())


def _area(score_n: np.ndarray, label_n: np.ndarray) -> float:
    """Computes the area under the ROC curve; a tie counts half."""
    of_label, others = score_n[label_n == 1], np.sort(score_n[label_n == 0])
    if not len(of_label) or not len(others):
        return float("nan")
    twice = np.searchsorted(others, of_label, "left").sum() + np.searchsorted(others, of_label, "right").sum()
    return float(twice / (2 * len(of_label) * len(others)))


def _precision(score_n: np.ndarray, label_n: np.ndarray) -> float:
    """Computes average precision, the mean over items of the label of the precision down to their score."""
    count = int(label_n.sum())
    if not count:
        return float("nan")
    order = np.argsort(-score_n, kind="stable")
    falling, right = score_n[order], np.cumsum(label_n[order])
    last = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))
    return float((np.diff(right[last], prepend=0) * right[last] / (last + 1)).sum() / count)


def _f1(score_n: np.ndarray, label_n: np.ndarray) -> float:
    """Computes F1 of the label, stated where its logit is above 0; NaN if it neither occurs nor is stated."""
    stated = score_n > 0
    both = int(stated.sum() + label_n.sum())
    return float(2 * label_n[stated].sum() / both) if both else float("nan")


KEPT: dict[str, Kept] = {
    "rmse": lambda score_n, number_n: float(np.sqrt(_squares(score_n, number_n))),
    "mae": lambda score_n, number_n: float(np.abs(score_n - number_n).mean()),
    "mse": _squares,
    "label_roc_auc": _area,
    "label_average_precision": _precision,
    "label_f1": _f1,
}
OF_CLUSTERS = {"cluster_accuracy": assigned_accuracy, "nmi": normalized_information, "ari": adjusted_rand}
