"""Ranges of clients are the sets that they stand for, and as few bytes as there are ranges."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.cluster.client_ranges import ClientRanges

BOUNDS = st.tuples(st.integers(0, 30), st.integers(0, 8))
RANGES = st.lists(BOUNDS.map(lambda each: range(each[0], each[0] + each[1])), max_size=6)


@given(RANGES, RANGES, st.lists(st.integers(-2, 45)))
def test_ranges_are_as_sets(one: list[range], other: list[range], asked: list[int]) -> None:
    sets = [frozenset(client for each in ranges for client in each) for ranges in (one, other)]
    found = [ClientRanges(ranges) for ranges in (one, other)]
    assert found == sets
    assert sets == found
    assert list(map(len, found)) == list(map(len, sets))
    assert [list(each) for each in found] == [sorted(each) for each in sets]
    assert found[0] & found[1] == sets[0] & sets[1]
    assert found[0] | found[1] == sets[0] | sets[1]
    assert [client in found[0] for client in asked] == [client in sets[0] for client in asked]
    assert found[0].missing(asked) == set(asked) - sets[0]
    assert [found[0].issuperset(some) for some in (asked, asked[:1], sets[1])] == [
        sets[0].issuperset(some) for some in (asked, asked[:1], sets[1])
    ]
    assert (found[0] == found[1]) == (sets[0] == sets[1])
    if found[0] == found[1]:
        assert hash(found[0]) == hash(found[1])
    assert pickle.loads(pickle.dumps(found[0])) == sets[0]


def test_what_a_host_sends_of_a_million_clients_is_small() -> None:
    packs = [range(first, first + 1000) for first in range(0, 10**6, 1000)]
    everyone = ClientRanges(reversed(packs))
    assert everyone.ranges == [range(10**6)]
    assert len(pickle.dumps(everyone)) < 200
    assert everyone.missing(range(10**6 + 2)) == {10**6, 10**6 + 1}
