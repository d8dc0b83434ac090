"""Options of a split into training, validation and test items."""

import hashlib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator
from pydantic.dataclasses import dataclass

from shoal.storage.errors import ShoalError
from shoal.storage.options.split_codes import CODES, TEST, TRAIN, UNASSIGNED
from shoal.storage.options.types import CLOSED, FilePath, Number, Seed

if TYPE_CHECKING:
    import numpy as np


def _shares(fractions: tuple[float, float, float]) -> tuple[float, float, float]:
    # The small constant: 0.7 + 0.2 + 0.1 and its like may end just above 1.
    if any(share < 0 for share in fractions) or not 0 < sum(fractions) <= 1 + 1e-9:
        raise ValueError("must not be negative and must sum to at most 1")
    return fractions


@dataclass(frozen=True, config=CLOSED)
class SplitOptions:
    """Split of nodes, or graphs: keys of the section `data` of a config.

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
            return "file-" + hashlib.sha256(read_split_file(self.split_file).tobytes()).hexdigest()[:8]
        return self.split


def read_split_file(file: str | None) -> "np.ndarray":
    """Reads the array of the `file` protocol; a ShoalError says that it is missing or of another form."""
    # NumPy takes a while to load, and reading a config does not need it.
    import numpy as np

    from shoal.storage.files.bounded_npy import NOT_READ, load_npy, reason

    if file is None:
        raise ShoalError(
            "data.split_file", "needed where data.split is `file`; give a .npy with 0, 1, 2, 3 for every node"
        )
    try:
        array = load_npy(file)
    except NOT_READ as error:
        raise ShoalError(
            file, f"data.split_file cannot be read ({reason(error)}); give a .npy with 0, 1, 2, 3 for every node"
        ) from error
    rule = f"{file}: data.split_file must be integers 0 to 3, one a node; found"
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ShoalError(f"{rule} {array.dtype} {list(array.shape)}")
    invalid = np.flatnonzero((array < UNASSIGNED) | (array > TEST))
    if len(invalid):
        raise ShoalError(f"{rule} {array[invalid[0]]} at node {invalid[0]}")
    require_both_parts(file, array)
    return array.astype(np.int8)


def require_both_parts(where: str, codes: "np.ndarray") -> None:
    """Raises a ShoalError if a split has no item for training or none for test, as one of other codes has."""
    present = [code for code in range(UNASSIGNED, TEST + 1) if (codes == code).any()]
    for code, name in ((TRAIN, "training"), (TEST, "test")):
        if code not in present:
            has = ", ".join(map(str, present))
            raise ShoalError(where, f"the split has codes {has} and so no {name} item; {CODES}")
