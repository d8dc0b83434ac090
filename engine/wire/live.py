"""What a driver sees of a round while it waits for it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Live:
    """A round at work.

    Attributes:
        round: Its number.
        served: Visits to clients so far, for training and for evaluation.
        asked: Visits that are known to be needed so far.
        bytes_up: Sent by clients so far.
        bytes_down: Sent to clients so far.
        hosts: Hosts that serve, of how many.
        retries: Tasks lost with their host in this round.
    """

    round: int
    served: int
    asked: int
    bytes_up: int
    bytes_down: int
    hosts: tuple[int, int]
    retries: int


Watch = Callable[[Live], None]


def unwatched(live: Live) -> None:
    """Nobody looks."""
