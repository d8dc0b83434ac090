"""What a driver sees of a round while it waits for it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Live:
    """A round at work.

    Attributes:
        round: Its number.
        visits: Visits to clients so far, for training and for evaluation.
        expected: Visits that are known to be needed so far.
        bytes_up: Sent by clients so far.
        bytes_down: Sent to clients so far.
        hosts: Hosts at work, of how many.
        retries: Cells lost with their host in this round.
    """

    round: int
    visits: int
    expected: int
    bytes_up: int
    bytes_down: int
    hosts: tuple[int, int]
    retries: int


Watch = Callable[[Live], None]


def unwatched(live: Live) -> None:
    """Nobody looks."""
