"""The section `target`: what is predicted of every item."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import Rule, one_of
from shoal.engine.sections.section import Metric, Section
from shoal.storage.options.target_names import CLASSIFICATION, CLUSTERING, MULTILABEL, REGRESSION, Target
from shoal.storage.options.types import CLOSED, WithShortForm

if TYPE_CHECKING:
    # A command that reads configs alone does without numpy.
    from shoal.storage.graph.targets import Scale


@dataclass(frozen=True, config=CLOSED)
class TargetOptions(WithShortForm):
    """The targets of all items; see `shoal.storage.graph.targets`. A kind alone stands for the section.

    Attributes:
        kind: `classification`: one class an item. `regression`: y are numbers, one or several an item. `multilabel`: y
            are labels 0 or 1, a column a label. NaN is a target that is missing, and has no part in loss and scores.
            `clustering`: items are clustered, as many clusters as there are classes; y are classes that score them.
        scale: Mean and spread by which training sees the numbers of a regression, of training items alone: those of the
            `federation`, which sums of counts, numbers and squares tell; of each `client`; or `none`, as they are.
    """

    kind: Target = CLASSIFICATION
    scale: Literal["federation", "client", "none"] = "federation"

    @property
    def clusters(self) -> bool:
        """Whether labels have no part in training."""
        return self.kind == CLUSTERING

    @property
    def of_data(self) -> Target:
        """Kind of the labels in the data."""
        return CLASSIFICATION if self.clusters else self.kind

    def of_views(self, federation: "Scale | None", hides: bool) -> "Scale | None":
        """Returns the scale by which clients see numbers, from that of the federation.

        `hides`: a bound on what a run tells of clients is kept, which the numbers of all would break.
        """
        if federation is None or self.kind != REGRESSION or self.scale == "none":
            return None
        if hides:
            federation = federation._replace(mean_T=0 * federation.mean_T, spread_T=0 * federation.spread_T + 1)
        return federation._replace(own=self.scale == "client")


NUMBERS = (
    Metric("r2", "R²", of_parts=True),
    Metric("rmse", "RMSE", in_units=True),
    Metric("mae", "MAE", in_units=True),
    Metric("mse", "MSE", in_units=True),
)
LABELS = (
    Metric("label_roc_auc", "ROC-AUC of labels"),
    Metric("label_average_precision", "average precision of labels"),
    Metric("label_f1", "F1 of labels"),
)
CLUSTERS = (
    Metric("nmi", "NMI", signed=True),
    Metric("ari", "ARI", signed=True),
    Metric("cluster_accuracy", "accuracy of clusters", signed=True),
)
# The first of these chooses rounds where a config names no metrics.
METRICS = {
    REGRESSION: ("r2", "rmse", "mae"),
    MULTILABEL: tuple(metric.name for metric in LABELS),
    CLUSTERING: tuple(metric.name for metric in CLUSTERS),
}


def usual_metrics(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Returns the metrics of a config that names none; None: those of classes."""
    given = values.get("target")
    kind = given.get("kind") if isinstance(given, dict) else given
    return METRICS.get(kind) if isinstance(kind, str) else None


def _are_classes(config: Any) -> bool:
    return bool(config.target.kind == CLASSIFICATION)


TARGET = Section(
    "target",
    TargetOptions,
    switch="kind",
    off=CLASSIFICATION,
    rules=(
        one_of("target.scale", "target.kind", REGRESSION),
        Rule(("target.kind",), "task", "node or graph", lambda c: c.task != "edge"),
        Rule(("attack.kind",), "target.kind", CLASSIFICATION, _are_classes, beside="attack"),
        Rule(("data.newcomers",), "target.kind", CLASSIFICATION, _are_classes, beside="newcomers"),
    ),
    checks_method="shoal.engine.targets.targets:require_method",
    says="shoal.engine.targets.targets:describe_run",
    measures=(*NUMBERS, *LABELS, *CLUSTERS),
    make_measure="shoal.engine.targets.measures:make_measure",
    usual_metrics=usual_metrics,
    called="targets",
)
