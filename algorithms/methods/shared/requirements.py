"""Checks of a run's models and tasks that several methods share."""

from shoal.algorithms.base import Context
from shoal.algorithms.client import FlatModel
from shoal.algorithms.context import ModelInfo
from shoal.storage.errors import ShoalError


def require_body(model: FlatModel, kind: ModelInfo, because: str) -> None:
    """Raises a ShoalError for a model that is nothing but a classifier; the line says `because` of what."""
    if not model.has_body:
        raise ShoalError(
            "model.layers", f"{because}, and a {kind.name} of one layer is nothing else; take 2 layers, or fedavg"
        )


def require_weight(model: FlatModel, kind: ModelInfo, because: str) -> None:
    """Raises a ShoalError for a classifier that is more than a weight and a bias; the line says `because` of what."""
    if not model.classifies_by_weight:
        raise ShoalError(
            "model.head",
            f"{because}, and a {kind.name} with head: conv has more than one; take head: linear, or fedavg",
        )


def require_nodes(ctx: Context) -> None:
    """Raises a ShoalError for `algorithm.rows: all` where items are small graphs or pairs.

    Of nodes training sees all that `data.inductive` does not hide, but no graph or pair of the test.
    """
    if not all(info.items_are_rows for info in ctx.clients):
        raise ShoalError(
            "algorithm.rows", "all is for nodes, and would take in the small graphs or pairs of the test; set train"
        )
