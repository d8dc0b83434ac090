"""How many classes labels make, and which labels make more than there can be."""

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.graph.from_arrays import class_count


@pytest.mark.parametrize(
    ("y", "classes"), [([0], 1), ([-1, 5], 6), ([1023, -1], 1024), (np.arange(3000), 3000), ([0, 2, -1, 1], 3)]
)
def test_one_more_than_the_largest(y: list[int], classes: int) -> None:
    assert class_count(np.array(y), "y.npy") == classes


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([0, 1, 2**31 - 1, 1], "row 2 has label 2147483647, which makes 2147483648 classes, but 4 nodes"),
        ([1024], "row 0 has label 1024"),
        (np.append(np.arange(2000), 3000), "row 2000 has label 3000"),
        (np.full(2**17 + 1, 2**17), "row 0 has label 131072"),
        ([0, -2], "row 1 is -2"),
        ([-1, -1], "no node has a label"),
        ([], "no node has a label"),
    ],
)
def test_absurd_labels(y: list[int], says: str) -> None:
    with refused("y.npy", says=says):
        class_count(np.array(y, dtype=np.int64), "y.npy")
