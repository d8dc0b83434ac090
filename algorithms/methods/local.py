"""Local training: every client for itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shoal.algorithms.base import Algorithm, Ask, ClientModels, Context, Requests, Tree


@dataclass(frozen=True)
class Local(Algorithm):
    """No communication: the control of every federated result.

    A client trains its own model on its own graph, keeps it and its optimizer, and sends nothing.
    """

    client_models: ClassVar[ClientModels] = "heterogeneous"

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        yield Ask("train", up={})


@dataclass(frozen=True)
class Global(Local):
    """The whole graph with all its edges as one client: the row "Global" of FedGTA's Table 3.

    Trains rounds x epochs on the union of the clients' training nodes, so that it bounds the same task.
    """

    centralized = True
    client_models = "personal"
