"""Metrics of targets that are no classes, of one client's items of a part. Axes: N items, T targets."""

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import Tensor

from shoal.engine.scores.counts import join_parts

# A number, not negative or NaN, of a target's scores and its numbers or labels `[n]`, none missing.
Kept = Callable[[np.ndarray, np.ndarray], float]


def make_measure(metric: str) -> Callable[[Tensor, Tensor], np.ndarray]:
    """Returns what keeps a metric of scores and targets, `[N, T]`, int64 `[T]`: see `Section.make_measure`."""
    return _keep_r2 if metric == "r2" else partial(_keep, KEPT[metric])


def _keep(kept: Kept, scores_NT: Tensor, target_NT: Tensor) -> np.ndarray:
    return _of_each(kept, scores_NT, target_NT).view(np.int64)


def _keep_r2(scores_NT: Tensor, target_NT: Tensor) -> np.ndarray:
    """Keeps mean squared errors and variances, 0 of a target without a number."""
    parts_T, wholes_T = (
        _of_each(kept, scores_NT, target_NT) for kept in (_squares, lambda _, number_n: number_n.var())
    )
    return join_parts(np.nan_to_num(parts_T), np.nan_to_num(wholes_T))


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
