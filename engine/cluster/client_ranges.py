"""A set of client numbers as ranges: the clients that a host can read are few ranges, however many there are."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Set
from typing import Any

import numpy as np


class ClientRanges(Set[int]):
    """Client numbers as ranges that neither meet nor touch, ascending; equal to a set of the same numbers."""

    def __init__(self, ranges: Iterable[range]) -> None:
        """Takes ranges of step 1 in any order, which may be empty, or overlap."""
        first: list[int] = []
        stop: list[int] = []
        for part in sorted((part for part in ranges if part), key=lambda part: part.start):
            if stop and part.start <= stop[-1]:
                stop[-1] = max(stop[-1], part.stop)
            else:
                first.append(part.start)
                stop.append(part.stop)
        self._first, self._stop = tuple(first), tuple(stop)

    @property
    def ranges(self) -> list[range]:
        """The ranges."""
        return list(map(range, self._first, self._stop))

    def missing(self, clients: Iterable[int]) -> set[int]:
        """Returns those of some clients that are not in the set."""
        number_B = np.fromiter(clients, dtype=np.int64)
        if not self._first:
            return set(number_B.tolist())
        place_B = np.searchsorted(self._first, number_B, side="right") - 1
        inside_B = (place_B >= 0) & (number_B < np.array(self._stop)[place_B])
        return set(number_B[~inside_B].tolist())

    def issuperset(self, clients: Collection[int]) -> bool:
        """Returns whether all of some clients are in the set, at once where one range has them."""
        if not clients:
            return True
        place = bisect_right(self._first, min(clients)) - 1
        return (place >= 0 and max(clients) < self._stop[place]) or not self.missing(clients)

    def __contains__(self, client: object) -> bool:
        if not isinstance(client, int | np.integer):
            return False
        place = bisect_right(self._first, client) - 1
        return place >= 0 and bool(client < self._stop[place])

    def __iter__(self) -> Iterator[int]:
        return (client for part in self.ranges for client in part)

    def __len__(self) -> int:
        return sum(self._stop) - sum(self._first)

    def __and__(self, other: Any) -> "ClientRanges":
        """Returns the numbers that are in both sets of ranges."""
        if not isinstance(other, ClientRanges):
            return NotImplemented
        mine, theirs = self.ranges[::-1], other.ranges[::-1]
        both: list[range] = []
        while mine and theirs:
            both.append(range(max(mine[-1].start, theirs[-1].start), min(mine[-1].stop, theirs[-1].stop)))
            (mine if mine[-1].stop < theirs[-1].stop else theirs).pop()
        return ClientRanges(both)

    def __or__(self, other: Any) -> "ClientRanges":
        """Returns the numbers that are in any of two sets of ranges."""
        if not isinstance(other, ClientRanges):
            return NotImplemented
        return ClientRanges([*self.ranges, *other.ranges])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClientRanges):
            return (self._first, self._stop) == (other._first, other._stop)
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash((self._first, self._stop))

    def __repr__(self) -> str:
        return f"ClientRanges({self.ranges})"
