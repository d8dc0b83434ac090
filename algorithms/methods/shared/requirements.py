"""Checks of a run's models and tasks that several methods share."""

from shoal.algorithms.base import Context
from shoal.algorithms.client import FlatModel
from shoal.algorithms.context import ModelInfo
from shoal.storage.errors import ShoalError


def require_body(model: FlatModel, kind: ModelInfo, because: str) -> None:
    """Refuses a model that is nothing but a classifier.

    Raises:
        ShoalError: It is; the line says `because` of what.
    """
    if not model.has_body:
        raise ShoalError(
            "model.layers", f"{because}, and a {kind.name} of one layer is nothing else; take 2 layers, or fedavg"
        )


def require_weight(model: FlatModel, kind: ModelInfo, because: str) -> None:
    """Refuses a classifier that is more than a weight and a bias.

    Raises:
        ShoalError: It is; the line says `because` of what.
    """
    if not model.classifies_by_weight:
        raise ShoalError(
            "model.head",
            f"{because}, and a {kind.name} with head: conv has more than one; take head: linear, or fedavg",
        )


def require_nodes(ctx: Context) -> None:
    """Refuses `algorithm.rows: all` where items are small graphs or pairs.

    Of nodes training sees all that `data.inductive` does not hide; no client sees graphs and pairs of the
    test before they are scored.

    Raises:
        ShoalError: Items are no nodes.
    """
    if not all(info.items_are_rows for info in ctx.clients):
        raise ShoalError(
            "algorithm.rows", "all is for nodes, and would take in the small graphs or pairs of the test; set train"
        )
