"""Checks of runs that predict other targets than classes, and what is said of them."""

from collections.abc import Sequence

from shoal.algorithms.base import Algorithm, takes_clusters, takes_targets
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.registry.load import methods_for_clusters, methods_for_targets
from shoal.algorithms.models.build import backbone, build
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.names import BACKBONES, least_edge_features
from shoal.engine.config.config import Config
from shoal.engine.config.sections import OF_FEATURES
from shoal.engine.sections.sections import options_of
from shoal.engine.targets.section import CLUSTERS, LABELS, NUMBERS, TARGET
from shoal.storage.errors import ShoalError
from shoal.storage.options.target_names import CLUSTERING, MULTILABEL, REGRESSION
from shoal.storage.options.types import is_own

METRIC_KEY = "evaluation.metrics"


def require_method(config: Config, algorithm: Algorithm) -> None:
    """Refuses what needs classes: a method with a loss or messages of these, their metrics, trainers, clients by class,
    gradients of rows, and several graphs; and a scale of numbers that privacy of clients does not hide.
    """
    kind, metrics = TARGET.of(config).kind, config.evaluation.metrics
    if kind == CLUSTERING:
        require_without_labels(config, algorithm)
    if not takes_targets(algorithm):
        raise ShoalError(
            "algorithm.name",
            f"{config.algorithm.name} is for classes, found target {TARGET.of(config).kind}; "
            f"take a method on parameters ({', '.join(methods_for_targets(config.task))})",
        )
    fitting = [metric.name for metric in {REGRESSION: NUMBERS, MULTILABEL: LABELS, CLUSTERING: CLUSTERS}[kind]]
    for name in metrics:
        if name not in fitting and not is_own(name):
            raise ShoalError(METRIC_KEY, f"{name} is not for target {kind}; take some of {', '.join(fitting)}")
    if is_own(metrics[0]) or OF_FEATURES[metrics[0]].in_units:
        raise ShoalError(
            METRIC_KEY,
            f"the first one chooses rounds by its largest value, and {metrics[0]} cannot; begin with {fitting[0]}",
        )
    if (method := config.partition.method) in ("dirichlet", "homophily") and kind != CLUSTERING:
        raise ShoalError("partition.method", f"{method} divides by classes, found target {kind}; take another method")
    if not isinstance(config.data.dataset, str):
        raise ShoalError("data.dataset", f"several graphs are for classes, found target {kind}; join them to one")
    if config.engine.trainer in ("batched", "analytic"):
        raise ShoalError("engine.trainer", f"{config.engine.trainer} is for classes, found target {kind}; set auto")
    privacy = options_of(config, "privacy")
    if (
        privacy is not None
        and privacy.unit == "client"
        and kind == REGRESSION
        and TARGET.of(config).scale == "federation"
    ):
        raise ShoalError(
            "target.scale",
            "federation tells sums of the numbers of all clients, which no noise hides; set client or none",
        )
    if privacy is not None and privacy.unit == "node":
        raise ShoalError("privacy.unit", f"node clips gradients of classes, found target {kind}; take client")


def require_without_labels(config: Config, algorithm: Algorithm) -> None:
    """Refuses what needs labels in training: methods with these, masked ones, rows by label; and models that have no
    layer before the classifier, or of graphs no messages.
    """
    if not takes_clusters(algorithm):
        raise ShoalError(
            "algorithm.name",
            f"{config.algorithm.name} reads labels or takes models apart at the classifier, which clustering does not "
            f"train; take one of {', '.join(methods_for_clusters(config.task))}",
        )
    if config.data.sparsity.labels:
        raise ShoalError("data.sparsity.labels", "masks labels of training, and clustering reads none; set it to 0")
    for key in ("rows", "keep"):
        if getattr(config.propagation, key) == "labelled":
            raise ShoalError(f"propagation.{key}", "labelled leaves out items that clustering trains on; set all")
    for spec in config.models():
        if config.task == "graph" and not issubclass(backbone(spec.name, task="graph"), Coupled):
            coupled = ", ".join(name for name in sorted(BACKBONES) if issubclass(backbone(name), Coupled))
            raise ShoalError(
                "model.name", f"{spec.name} reads no altered graphs, which clustering compares; take one of {coupled}"
            )
        of_edges = least_edge_features([spec.name])
        hops = config.kernel().hops
        model = build(spec.name, 2, 2, hops, 0.0, spec.options, task=config.task, edge_features=of_edges)
        if not FlatModel(model).has_body:
            raise ShoalError(
                "model.layers",
                f"clustering trains embeddings, and {spec.name} has no layer before its classifier; take 2 layers",
            )


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what is predicted, and by which scale training sees numbers."""
    target = TARGET.of(config)
    if target.kind == CLUSTERING:
        learned = "views of graphs (GraphCL)" if config.task == "graph" else "edges (graph auto-encoder)"
        return {"target": f"clusters of each client's items by k-means; models learn {learned}, and see no label"}
    if target.kind == MULTILABEL:
        return {"target": "several labels an item, each by binary cross-entropy"}
    seen = {
        "federation": "standardised over the training items of all clients",
        "client": "standardised over the training items of each client",
        "none": "as they are",
    }[target.scale]
    return {"target": f"regression by squared errors; training sees numbers {seen}, scores are in their units"}
