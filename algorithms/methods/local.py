"""Local training: every client for itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from algorithms.base import Algorithm, Ask, Context, Steps, Tree


@dataclass(frozen=True)
class Local(Algorithm):
    """No communication: the control of every federated result.

    A client trains its own model on its own graph, keeps it and its optimizer, and sends nothing.
    """

    keeps_model: ClassVar[bool] = True
    mixed_models: ClassVar[bool] = True

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Steps:
        yield Ask("train", up={})
