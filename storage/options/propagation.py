"""Stored hops and their computation: the section `propagation` of a config."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.storage.options.types import CLOSED, Number, Whole

# After far fewer steps all rows of a connected graph are nearly equal.
MOST_HOPS = 1000


@dataclass(frozen=True, config=CLOSED)
class PropagationOptions:
    """Stored hops and their computation: the section `propagation` of a config.

    Attributes:
        hops: Number of hops K beyond the features themselves, 0 to 1000.
        r: Exponent of the normalisation, in [0, 1]: 0.5 is symmetric, 0 averages over a node and its
            neighbours, 1 divides what a node sends by its degree.
        dtype: How a hop is stored, `float32` or `float16`; sums are always float32.
        rows: Which rows are kept, `all` or `labelled`. With the latter a client sees its labelled nodes, their
            neighbours and the edges among these only: label propagation is limited to them, hops are not.

    Raises:
        ValueError: A value is out of its bounds.
    """

    # Whether they run over edges between clients.
    crosses: ClassVar[bool] = False

    hops: Annotated[Whole, Field(ge=0, le=MOST_HOPS)] = 3
    r: Annotated[Number, Field(ge=0, le=1)] = 0.5
    dtype: Literal["float32", "float16"] = "float32"
    rows: Literal["all", "labelled"] = "all"

    @property
    def name(self) -> str:
        """Folder of these hops inside a store, such as `r0.5-k3-float32`."""
        return f"r{self.r}-k{self.hops}-{self.dtype}" + ("" if self.rows == "all" else f"-{self.rows}")

    @property
    def stored(self) -> bool:
        """Whether anything is stored: the features themselves are in the shards."""
        return self.hops > 0 or self.rows != "all"


def propagation_of(name: str) -> PropagationOptions:
    """The kernel of a name; the inverse of `PropagationOptions.name`."""
    own, _, cross = name.partition("-cross-")
    if cross:
        from shoal.storage.options.cross_edges import over_cross_edges

        return over_cross_edges(propagation_of(own), cross)
    found = re.fullmatch(r"r(.+)-k(\d+)-(float32|float16)(-labelled)?", name)
    assert found is not None, name
    r, hops, dtype, labelled = found.groups()
    return PropagationOptions(
        int(hops), float(r), "float16" if dtype == "float16" else "float32", "labelled" if labelled else "all"
    )
