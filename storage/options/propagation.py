"""Stored hops and their computation: the section `propagation` of a config."""

import re
from dataclasses import field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.storage.options.types import CLOSED, Flag, Number, Positive, Seed, Whole

# All rows of a connected graph are nearly equal after far fewer steps.
MOST_HOPS = 1000


@dataclass(frozen=True, config=CLOSED)
class PropagationOptions:
    """Stored hops and their computation: the section `propagation` of a config.

    Attributes:
        hops: Number of hops K beyond the features themselves, 0 to 1000.
        r: Exponent of the normalisation, in [0, 1]: 0.5 is symmetric, 0 averages over a node and its
            neighbours, 1 divides what a node sends by its degree.
        dtype: How a hop is stored, `float32` or `float16`; sums are always float32.
        rows: Which rows a client sees, `all` or `labelled`. With the latter it sees its labelled nodes, their
            neighbours and the edges among these only: label propagation is limited to them, hops are not.
        keep: What lies on disk: hops of `all` rows that a client sees, of `labelled` rows alone, or `none`. Others are
            computed when a visit reads them, to the same bits, and cached. It changes no number.
        max_degree: Most edges of a node that hops run over; see `bound_degrees` in `shoal.storage.graph.propagation`.
            null: all.
        relations: Hops are means over the senders of each relation, K of each, instead of over all neighbours; see
            `shoal.storage.graph.edges.relation_hops`.

    Raises:
        ValueError: A value is out of its bounds.
    """

    hops: Annotated[Whole, Field(ge=0, le=MOST_HOPS)] = 3
    r: Annotated[Number, Field(ge=0, le=1)] = 0.5
    dtype: Literal["float32", "float16"] = "float32"
    rows: Literal["all", "labelled"] = "all"
    keep: Literal["all", "labelled", "none"] = "all"
    max_degree: Positive | None = None
    relations: Flag = False

    @property
    def name(self) -> str:
        """Name of these hops, such as `r0.5-k3-float32`."""
        rows = "" if self.rows == "all" else f"-{self.rows}"
        most = "" if self.max_degree is None else f"-degree{self.max_degree}"
        most += "-relations" if self.relations else ""
        return f"r{self.r}-k{self.hops}-{self.dtype}{most}{rows}" + (f"-keep-{self.keep}" if self.computed else "")

    def stored(self, relations: int) -> int:
        """Counts the hops beyond the features, of a graph with so many relations."""
        return self.hops * relations if self.relations else self.hops

    @property
    def boundaries(self) -> str | None:
        """Name of the edges between clients that they run over; None: over none."""
        return None

    @property
    def first_layer(self) -> str | None:
        """The form in which a coupled model's first layer reads all clients' neighbours (`CrossPropagation.form`)."""
        return None

    @property
    def used(self) -> bool:
        """Whether there are any: the features themselves are in the shards."""
        return self.hops > 0 or self.rows != "all"

    @property
    def computed(self) -> bool:
        """Whether hops of some rows are computed when they are read."""
        return self.hops > 0 and self.keep != "all"

    @property
    def folder(self) -> str | None:
        """Folder, inside a store, of what lies on disk of these hops; None: nothing does."""
        if not self.used or (self.computed and self.keep == "none"):
            return None
        # Hops of labelled rows are the same whatever else a client sees.
        return (replace(self, rows="all") if self.computed else self).name


@dataclass(frozen=True, config=CLOSED)
class CrossEdges:
    """The choice of edges between clients that hops run over.

    Attributes:
        share: Share of the undirected edges between clients that are kept; what a smaller share keeps a larger one
            keeps, too.
        seed: Of what is kept.
        min_neighbours: A client gets the sum over the neighbours that a node has at another client if these are so
            many or more; fewer count as cut. A sum over one is that neighbour's row.
        hidden: A client gets the sum over the neighbours that a node has at all other clients, as secure aggregation
            would give it; these are what is counted.
    """

    share: Annotated[Number, Field(gt=0, le=1)] = 1.0
    seed: Seed = 0
    min_neighbours: Positive = 1
    hidden: Flag = False

    @property
    def name(self) -> str:
        """Folder of the files of these edges inside a store, such as `share0.5-seed0-min1`."""
        hidden = "-hidden" if self.hidden else ""
        return f"share{self.share}-seed{self.seed}-min{self.min_neighbours}{hidden}"


@dataclass(frozen=True, config=CLOSED)
class CrossPropagation(PropagationOptions):
    """Hops that run over edges between clients, too.

    Attributes:
        form: `hops` for decoupled models. Else one hop is the sums of the first layer of a coupled model: `gcn`, `mean`
            over neighbours alone, or `two_hop`: those of `gcn`, and of neighbours at other clients, too.
    """

    cross: CrossEdges = field(default_factory=CrossEdges)
    form: Literal["hops", "gcn", "mean", "two_hop"] = "hops"

    @property
    def boundaries(self) -> str:
        return self.cross.name

    @property
    def first_layer(self) -> str | None:
        return None if self.form == "hops" else self.form

    @property
    def name(self) -> str:
        """Folder of these hops inside a store."""
        return f"{super().name}-cross-{self.cross.name}" + ("" if self.form == "hops" else f"-{self.form}")


def over_cross_edges(own: PropagationOptions, name: str) -> CrossPropagation:
    """Makes hops that run over edges between clients, too, from the names of a choice of these and of a form."""
    match = re.fullmatch(r"share(.+)-seed(\d+)-min(\d+)(-hidden)?(?:-(gcn|mean|two_hop))?", name)
    share, seed, least, hidden, form = match.groups()  # type: ignore[union-attr]
    kept: Any = {field.name: getattr(own, field.name) for field in fields(own)} | {"form": form or "hops"}
    return CrossPropagation(**kept, cross=CrossEdges(float(share), int(seed), int(least), bool(hidden)))


def propagation_of(name: str) -> PropagationOptions:
    """Returns the kernel of a name; the inverse of `PropagationOptions.name`."""
    kernel, _, cross = name.partition("-cross-")
    if cross:
        return over_cross_edges(propagation_of(kernel), cross)
    beside = r"(?:-degree(\d+))?(-relations)?(-labelled)?(?:-keep-(labelled|none))?"
    match = re.fullmatch(rf"r(.+)-k(\d+)-(float32|float16){beside}", name)
    assert match is not None, name
    r, hops, dtype, most, relations, labelled, keep = match.groups()
    kept: Any = {"dtype": dtype, "relations": relations is not None, "rows": "labelled" if labelled else "all"}
    kept |= {"keep": keep or "all"}
    return PropagationOptions(int(hops), float(r), max_degree=int(most) if most else None, **kept)
