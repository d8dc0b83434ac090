"""Checks of runs that predict other targets than classes, and what is said of them."""

from collections.abc import Sequence

from shoal.algorithms.base import Algorithm, takes_targets
from shoal.algorithms.methods.registry.load import methods_for_targets
from shoal.engine.config.config import Config
from shoal.engine.config.sections import OF_FEATURES
from shoal.engine.sections.sections import options_of
from shoal.engine.targets.section import LABELS, NUMBERS, TARGET
from shoal.storage.errors import ShoalError
from shoal.storage.options.target_names import MULTILABEL, REGRESSION
from shoal.storage.options.types import is_own

METRIC_KEY = "evaluation.metrics"


def require_method(config: Config, algorithm: Algorithm) -> None:
    """Refuses what needs classes: a method with a loss or messages of these, their metrics, trainers, clients by class,
    gradients of rows, and several graphs; and a scale of numbers that privacy of clients does not hide.
    """
    if not takes_targets(algorithm):
        raise ShoalError(
            "algorithm.name",
            f"{config.algorithm.name} is for classes, found target {TARGET.of(config).kind}; "
            f"take a method on parameters ({', '.join(methods_for_targets(config.task))})",
        )
    kind, metrics = TARGET.of(config).kind, config.evaluation.metrics
    fitting = [metric.name for metric in (NUMBERS if kind == REGRESSION else LABELS)]
    for name in metrics:
        if name not in fitting and not is_own(name):
            raise ShoalError(METRIC_KEY, f"{name} is not for target {kind}; take some of {', '.join(fitting)}")
    if is_own(metrics[0]) or OF_FEATURES[metrics[0]].in_units:
        raise ShoalError(
            METRIC_KEY,
            f"the first one chooses rounds by its largest value, and {metrics[0]} cannot; begin with {fitting[0]}",
        )
    if config.partition.method == "dirichlet":
        raise ShoalError("partition.method", f"dirichlet divides by classes, found target {kind}; take another method")
    if not isinstance(config.data.dataset, str):
        raise ShoalError("data.dataset", f"several graphs are for classes, found target {kind}; join them to one")
    if config.engine.trainer in ("batched", "analytic"):
        raise ShoalError("engine.trainer", f"{config.engine.trainer} is for classes, found target {kind}; set auto")
    privacy = options_of(config, "privacy")
    if privacy is not None and privacy.unit == "client" and TARGET.of(config).scale == "federation":
        raise ShoalError(
            "target.scale",
            "federation tells sums of the numbers of all clients, which no noise hides; set client or none",
        )
    if privacy is not None and privacy.unit == "node":
        raise ShoalError("privacy.unit", f"node clips gradients of classes, found target {kind}; take client")


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what is predicted, and by which scale training sees numbers."""
    target = TARGET.of(config)
    if target.kind == MULTILABEL:
        return {"target": "several labels an item, each by binary cross-entropy"}
    seen = {
        "federation": "standardised over the training items of all clients",
        "client": "standardised over the training items of each client",
        "none": "as they are",
    }[target.scale]
    return {"target": f"regression by squared errors; training sees numbers {seen}, scores are in their units"}
