"""The numbers kept of scores for metrics that counts do not tell: of rankings, and of functions of the user's own.

Such a function is of one client's items of a part: `def ECE(logits, labels) -> float`.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from shoal.algorithms.method_errors import describe
from shoal.engine.config.sections import AVERAGE_PRECISION, ROC_AUC
from shoal.engine.scores.counts import Measure, kept_of_own, metrics_beyond_counts, precision_bits, twice_wins
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import SECTIONS
from shoal.storage.user_code.user_code import UserCode

KEY = "evaluation.metrics"
OURS: Mapping[str, Measure] = {ROC_AUC: twice_wins, AVERAGE_PRECISION: precision_bits}


def measures_of(metrics: Sequence[str], own: Mapping[str, UserCode]) -> dict[str, Measure]:
    """Returns what is kept for the metrics that counts do not tell, by their names, in their order.

    Metrics of stages are not among them: these score clients themselves. Raises as `own_metric`.
    """
    places = {metric.name: feature.make_measure for feature in SECTIONS for metric in feature.measures}
    made: dict[str, Measure] = {}
    for metric in metrics_beyond_counts(metrics):
        if metric in own:
            made[metric] = own_metric(own[metric])
        elif metric in OURS:
            made[metric] = OURS[metric]
        elif metric in places:
            made[metric] = load(places[metric])(metric)
    return made


def own_metric(code: UserCode) -> Measure:
    """Makes a measure of the user's function. Raises ShoalError: it is none, or takes other arguments."""
    function, name = code.function(KEY, "logits", "labels"), code.name.rpartition(":")[2]

    def measure(scores_NC: Tensor, label_N: Tensor) -> np.ndarray:
        # The function gets copies, as it may write into what it is given.
        with code.at_work(KEY):
            value = function(scores_NC.detach().float().clone(), label_N.clone())
        number = math.nan if value is None else _number(value)
        if number is None or (value is not None and not math.isfinite(number)):
            given = number or describe(value)
            raise code.fault(KEY, f"{name} gives {given}, expected a finite number, or None where it is not defined")
        return kept_of_own(number, scores_NC.shape[1])

    return measure


def _number(value: Any) -> float | None:
    """Converts a number, or a tensor or array without axes, to a float; None: it is neither."""
    if getattr(value, "shape", None) == ():
        value = value.item()
    return float(value) if isinstance(value, Real) else None
