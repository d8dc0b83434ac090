import pytest

from partition.options import PartitionOptions
from storage.errors import ShoalError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", 2**31),
        ("resolution", 0.0),
        ("resolution", float("nan")),
        ("resolution", float("inf")),
        ("imbalance", 1.0),
        ("imbalance", float("nan")),
        ("balance", "edges"),
    ],
)
def test_a_value_out_of_bounds_is_one_line_that_names_the_key(key, value):
    with pytest.raises(ShoalError, match=rf"^partition\.{key} .*choose [^\n]*$"):
        PartitionOptions("metis", 2, **{key: value})


def test_the_bounds_themselves_are_allowed():
    PartitionOptions("metis", 2, seed=2**31 - 1, resolution=1e-9, imbalance=1.001, balance="labelled")
