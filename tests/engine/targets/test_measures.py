"""Metrics of targets are scikit-learn's, target by target, on what is given."""

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn import metrics

from shoal.engine.scores.counts import values_of
from shoal.engine.targets.measures import make_measure
from shoal.engine.targets.section import CLUSTERS, LABELS, NUMBERS

OF_NUMBERS = {
    "r2": metrics.r2_score,
    "rmse": lambda y, said: metrics.mean_squared_error(y, said) ** 0.5,
    "mae": metrics.mean_absolute_error,
    "mse": metrics.mean_squared_error,
}
OF_LABELS = {
    "label_roc_auc": metrics.roc_auc_score,
    "label_average_precision": metrics.average_precision_score,
    "label_f1": lambda y, said: metrics.f1_score(y, said > 0),
}


def value(metric: str, said_NT: np.ndarray, y: torch.Tensor) -> float:
    kept_T = make_measure(metric)(torch.from_numpy(said_NT), y)
    assert kept_T.dtype == np.int64
    assert (kept_T >= 0).all()
    return float(values_of(metric, np.ones((1, len(kept_T)), np.int64), kept_T[None])[0])


def mean(function: Callable[..., float], said_NT: np.ndarray, y_NT: np.ndarray, targets: list[int]) -> float:
    given = [~np.isnan(y_NT[:, t]) for t in targets]
    return float(np.mean([function(y_NT[rows, t], said_NT[rows, t]) for t, rows in zip(targets, given)]))


@pytest.mark.parametrize("metric", OF_NUMBERS)
def test_metrics_of_numbers(metric: str) -> None:
    rng = np.random.default_rng(0)
    y_NT = 100 + 7 * rng.standard_normal((60, 3)).astype(np.float32)
    said_NT = (y_NT + rng.standard_normal((60, 3))).astype(np.float32)
    y_NT[::4, 1] = np.nan
    assert value(metric, said_NT, torch.from_numpy(y_NT)) == pytest.approx(
        mean(OF_NUMBERS[metric], said_NT.astype(np.float64), y_NT.astype(np.float64), [0, 1, 2]), abs=1e-6
    )


@pytest.mark.parametrize("metric", OF_LABELS)
def test_metrics_of_labels_with_ties(metric: str) -> None:
    rng = np.random.default_rng(1)
    y_NT = (rng.random((80, 4)) < 0.4).astype(np.float64)
    said_NT = np.round(y_NT + 2 * rng.standard_normal((80, 4))).astype(np.float32)
    y_NT[::3, 0] = np.nan
    labels = torch.from_numpy(np.nan_to_num(y_NT, nan=-1)).to(torch.int8)
    assert value(metric, said_NT, labels) == pytest.approx(
        mean(OF_LABELS[metric], said_NT, y_NT, [0, 1, 2, 3]), abs=1e-9
    )


def test_what_is_not_defined_has_no_part() -> None:
    """Of one class alone there is no area, of equal numbers no R², of a target without a value nothing."""
    labels = torch.tensor([[1, 0, -1], [1, 1, -1]], dtype=torch.int8)
    said_NT = np.array([[0.5, 0.2, 9.0], [0.1, 0.6, 9.0]], np.float32)
    assert value("label_roc_auc", said_NT, labels) == 1.0
    numbers = torch.tensor([[2.0, 1.0], [2.0, 3.0]])
    assert value("r2", np.array([[1.0, 1.0], [1.0, 3.0]], np.float32), numbers) == 1.0
    assert np.isnan(value("r2", np.ones((2, 1), np.float32), torch.full((2, 1), 2.0)))


def assigned(y: np.ndarray, said: np.ndarray) -> float:
    """Accuracy by the best of all ways to give clusters to classes."""
    return max(float(np.mean(np.array(names)[said] == y)) for names in permutations(range(5)))


OF_CLUSTERS = {
    "nmi": metrics.normalized_mutual_info_score,
    "ari": metrics.adjusted_rand_score,
    "cluster_accuracy": assigned,
}


def value_of_clusters(metric: str, said: np.ndarray, y: np.ndarray) -> float:
    kept = make_measure(metric)(torch.eye(5)[torch.from_numpy(said)], torch.from_numpy(y))
    assert (kept >= 0).all()
    return float(values_of(metric, np.bincount(y, minlength=5)[None], kept[None])[0])


@pytest.mark.parametrize("metric", OF_CLUSTERS)
@pytest.mark.parametrize("kept", [0.0, 0.6, 1.0])
def test_metrics_of_clusters(metric: str, kept: float) -> None:
    rng = np.random.default_rng(3)
    for items in (1, 2, 7, 200):
        y = rng.integers(5, size=items)
        said = np.where(rng.random(items) < kept, (y + 1) % 5, rng.integers(5, size=items))
        for a, b in ((said, y), (np.zeros_like(y), y), (said, np.zeros_like(y))):
            assert value_of_clusters(metric, a, b) == pytest.approx(OF_CLUSTERS[metric](b, a), abs=1e-9)


def test_ari_may_be_negative() -> None:
    y, said = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    assert value_of_clusters("ari", said, y) == pytest.approx(-0.5)


def test_every_metric_is_compared() -> None:
    assert [metric.name for metric in (*NUMBERS, *LABELS, *CLUSTERS)] == [*OF_NUMBERS, *OF_LABELS, *OF_CLUSTERS]
