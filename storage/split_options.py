"""How nodes, or graphs, are divided into training, validation and test items, as a config says it."""

import hashlib
from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from storage.option_types import CLOSED, FilePath, Number, Seed


def _shares(fractions: tuple[float, float, float]) -> tuple[float, float, float]:
    # The small constant: 0.7 + 0.2 + 0.1 and its like may end just above 1.
    if any(share < 0 for share in fractions) or not 0 < sum(fractions) <= 1 + 1e-9:
        raise ValueError("must not be negative and must sum to at most 1")
    return fractions


@dataclass(frozen=True, config=CLOSED)
class SplitOptions:
    """How nodes, or graphs, are divided: keys of the section `data` of a config.

    Attributes:
        split: The protocol: `stratified` (per client and class), `per_client` (per client, ignoring classes), `public`
            (the dataset's own), `file` (from an array of the user's).
        split_seed: Seed of the two random protocols.
        split_file: `.npy` of the `file` protocol: int8, one a node or graph: 0 none, 1 train, 2 validation, 3 test.
        fractions: Shares of training, validation and test items of the two random protocols.

    Raises:
        ValueError: A value is out of its bounds.
    """

    split: Literal["stratified", "per_client", "public", "file"] = "stratified"
    split_seed: Seed = 0
    split_file: FilePath | None = None
    fractions: Annotated[tuple[Number, Number, Number], AfterValidator(_shares)] = (0.2, 0.4, 0.4)

    @property
    def split_name(self) -> str:
        """Folder of this split inside a store; two options with one name give the same split."""
        if self.split in ("stratified", "per_client"):
            shares = "-".join(f"{100 * share:.15g}" for share in self.fractions)
            return f"{self.split}-{shares}-seed{self.split_seed}"
        if self.split == "file":
            # Needs NumPy, which reading a config does not.
            from storage.split_file import read_split_file

            return "file-" + hashlib.sha256(read_split_file(self.split_file).tobytes()).hexdigest()[:8]
        return self.split
