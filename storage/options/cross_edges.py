"""Edges between clients in hops: keys `data.cross_edges` and `data.cross_…` of a config, and the name of such hops."""

import re
from dataclasses import field, fields
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.options.types import CLOSED, Number, Positive, Seed


@dataclass(frozen=True, config=CLOSED)
class CrossEdges:
    """Which edges between clients hops run over.

    Attributes:
        share: Share of the undirected edges between clients that are kept; what a smaller share keeps a larger one
            keeps, too.
        seed: Of what is kept.
        min_neighbours: A client gets the sum over the neighbours that a node has at another client if these are so
            many or more; fewer count as cut. A sum over one is that neighbour's row.
    """

    share: Annotated[Number, Field(gt=0, le=1)] = 1.0
    seed: Seed = 0
    min_neighbours: Positive = 1

    @property
    def name(self) -> str:
        """Folder of the files of these edges inside a store, such as `share0.5-seed0-min1`."""
        return f"share{self.share}-seed{self.seed}-min{self.min_neighbours}"


@dataclass(frozen=True, config=CLOSED)
class CrossPropagation(PropagationOptions):
    """Hops that run over edges between clients, too."""

    crosses: ClassVar[bool] = True

    cross: CrossEdges = field(default_factory=CrossEdges)

    @property
    def name(self) -> str:
        """Folder of these hops inside a store."""
        return f"{super().name}-cross-{self.cross.name}"


def over_cross_edges(own: PropagationOptions, name: str) -> CrossPropagation:
    """Hops that run over edges between clients, too, of a choice of these by its name."""
    share, seed, least = re.fullmatch(r"share(.+)-seed(\d+)-min(\d+)", name).groups()  # type: ignore[union-attr]
    edges = CrossEdges(float(share), int(seed), int(least))
    return CrossPropagation(**{each.name: getattr(own, each.name) for each in fields(own)}, cross=edges)
