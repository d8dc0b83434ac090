"""Seeds keyed by what they are for; a seed that moves changes every number of every run."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.rng import key

PARTS = st.lists(st.one_of(st.integers(-9, 9), st.text("ab1", max_size=3)), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("parts", "seed"),
    [
        ((0, "init"), 6767970929478544064),
        ((3, 17, 5, "train"), 2619537492269166922),
    ],
)
def test_seeds_stay_as_they_are(parts: tuple[int | str, ...], seed: int) -> None:
    """Written down once: runs that were made with them can be resumed."""
    assert key(*parts) == seed


@given(PARTS, PARTS)
def test_seeds_differ_where_parts_do(left: list[int | str], right: list[int | str]) -> None:
    assert (key(*left) == key(*right)) == ([str(part) for part in left] == [str(part) for part in right])


def test_parts_do_not_run_into_one_another() -> None:
    assert len({key(1, 23), key(12, 3), key(123), key(1, 2, 3), key("1,23"), key("1 23")}) == 6


def test_every_bit_of_63_is_used_and_no_other() -> None:
    seeds = [key(0, number, "train") for number in range(4000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    ones = Counter(bit for seed in seeds for bit in range(63) if seed >> bit & 1)
    # Half of 4000, by six deviations of about 32.
    assert all(abs(ones[bit] - 2000) < 190 for bit in range(63))
