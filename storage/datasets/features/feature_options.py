"""Options of made features: the section `data.features` of a config."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.storage.options.types import CLOSED, Positive, Seed, WithShortForm

GIVEN = "given"


@dataclass(frozen=True, config=CLOSED)
class MadeFeatures(WithShortForm):
    """Source of features: keys of `data.features` in a config, or its `kind` alone.

    Attributes:
        kind: `given`: the dataset's own. `degree`: one-hot degree, the last column for all degrees that have none of
            their own. `one-hot`: a column a node. `random`: standard normal numbers. `spectral`: eigenvectors of the
            normalised adjacency.
        width: Columns, but for `one-hot`.
        seed: Of `random`.
    """

    kind: Literal["given", "degree", "one-hot", "random", "spectral"] = "given"
    width: Annotated[Positive, Field(le=2**20)] = 64
    seed: Seed = 0

    @property
    def made(self) -> bool:
        """Whether they are not the dataset's own."""
        return self.kind != GIVEN

    @property
    def from_edges(self) -> bool:
        """Whether they are computed from edges."""
        return self.kind in ("degree", "spectral")

    @property
    def identity(self) -> dict[str, Any]:
        """Options that change features; empty if they are the dataset's own."""
        unused = {"one-hot": ("width", "seed"), "random": ()}.get(self.kind, ("seed",))
        return {key: value for key, value in asdict(self).items() if key not in unused} if self.made else {}


DATASET_FEATURES = MadeFeatures()
