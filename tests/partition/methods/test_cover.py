import numpy as np
import pytest

from shoal.partition.methods.cover import assert_cover, fill_empty


def test_empty_clients_take_the_last_nodes_of_the_largest():
    # Client 1 has four nodes, then three; client 0 has three all along, and is the first of equals.
    given = np.array([0, 1, 1, 0, 1, 1, 0], dtype=np.int32)
    filled = fill_empty(given, 4)
    assert filled.tolist() == [0, 1, 1, 0, 1, 2, 3]
    assert given.tolist() == [0, 1, 1, 0, 1, 1, 0]


def test_a_cover_is_left_alone():
    given = np.array([1, 0, 2], dtype=np.int32)
    assert fill_empty(given, 3) is given


@pytest.mark.parametrize(
    "bad",
    [
        np.array([0, 1], dtype=np.int32),
        np.array([0, 1, 1], dtype=np.int64),
        np.array([0, 1, 2], dtype=np.int32),
        np.array([0, 1, -2], dtype=np.int32),
        np.array([1, 1, 1], dtype=np.int32),
    ],
    ids=["short", "dtype", "too large", "negative", "empty client"],
)
def test_what_is_no_cover_is_caught(bad):
    with pytest.raises(AssertionError):
        assert_cover(bad, 3, 2)
