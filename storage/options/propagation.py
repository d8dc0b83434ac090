"""Stored hops and their computation: the section `propagation` of a config."""

import re
from dataclasses import replace
from typing import Annotated, Any, Literal

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
        rows: Which rows a client sees, `all` or `labelled`. With the latter it sees its labelled nodes, their
            neighbours and the edges among these only: label propagation is limited to them, hops are not.
        keep: What lies on disk: hops of `all` rows that a client sees, of `labelled` rows alone, or `none`. Others are
            computed when a visit reads them, to the same bits, and cached. It changes no number.

    Raises:
        ValueError: A value is out of its bounds.
    """

    hops: Annotated[Whole, Field(ge=0, le=MOST_HOPS)] = 3
    r: Annotated[Number, Field(ge=0, le=1)] = 0.5
    dtype: Literal["float32", "float16"] = "float32"
    rows: Literal["all", "labelled"] = "all"
    keep: Literal["all", "labelled", "none"] = "all"

    @property
    def name(self) -> str:
        """Name of these hops, such as `r0.5-k3-float32`."""
        rows = "" if self.rows == "all" else f"-{self.rows}"
        return f"r{self.r}-k{self.hops}-{self.dtype}{rows}" + (f"-keep-{self.keep}" if self.computed else "")

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


def propagation_of(name: str) -> PropagationOptions:
    """The kernel of a name; the inverse of `PropagationOptions.name`."""
    found = re.fullmatch(r"r(.+)-k(\d+)-(float32|float16)(-labelled)?(?:-keep-(labelled|none))?", name)
    assert found is not None, name
    r, hops, dtype, labelled, keep = found.groups()
    kept: Any = {"dtype": dtype, "rows": "labelled" if labelled else "all", "keep": keep or "all"}
    return PropagationOptions(int(hops), float(r), **kept)
