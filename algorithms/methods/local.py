"""Local training: every client for itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shoal.algorithms.base import Algorithm, Ask, ClientModels, Context, Requests, Tree


@dataclass(frozen=True)
class Local(Algorithm):
    """No communication: a client trains and keeps its own model, the control of every federated result."""

    client_models: ClassVar[ClientModels] = "heterogeneous"

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        yield Ask("train", up={})


@dataclass(frozen=True)
class Global(Local):
    """The whole graph, with the edges and training nodes of all, as one client: "Global" in FedGTA's Table 3."""

    centralized = True
    client_models = "personal"
