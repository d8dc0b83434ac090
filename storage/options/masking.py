"""Options of masked data: the section `data.sparsity` of a config."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.storage.options.types import CLOSED, Number, Seed

Share = Annotated[Number, Field(ge=0, le=1)]


@dataclass(frozen=True, config=CLOSED)
class Sparsity:
    """Masked data of clients: keys of `data.sparsity` in a config.

    Attributes:
        features: Every value of every node's features is set to zero with this probability.
        edges: Every undirected edge is removed, in both directions, with this probability.
        labels: Share of each client's training items, rounded down, that are of no part any more. Validation and test
            items stay.
        seed: Of all three.
    """

    features: Share = 0.0
    edges: Share = 0.0
    labels: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    seed: Seed = 0

    @property
    def of_shards(self) -> dict[str, Any]:
        """Options that change shards: shares of features and edges, and the seed; empty if both shares are 0."""
        if not self.features and not self.edges:
            return {}
        return {"features": self.features, "edges": self.edges, "seed": self.seed}

    @property
    def of_split(self) -> str:
        """Suffix of the name of a split that lacks training items."""
        return f"-less{100 * self.labels:.15g}-seed{self.seed}" if self.labels else ""


TEXTS = {"features": "features", "edges": "edges", "labels": "training labels"}


def masks(shares: Mapping[str, Any]) -> str:
    """Describes the shares that are not 0, such as `30 % of features, 50 % of edges (seed 0)`; empty: none is."""
    parts = [f"{100 * shares[name]:g} % of {text}" for name, text in TEXTS.items() if shares.get(name)]
    return f"{', '.join(parts)} (seed {shares['seed']})" if parts else ""
