"""What is left to do in a phase: a queue for every host, its largest piece last, and what a host takes next."""

import math
from collections.abc import Callable, Iterable, Sequence

from engine.hosts.pieces import Piece

# Cells that take less are sent together: a call costs milliseconds.
SECONDS_OF_A_CALL = 0.5
# Of a queue; small enough that hosts end together, large enough for few calls.
SHARE_OF_A_CALL = 0.5


class Queues:
    """The pieces of a phase that wait for a host."""

    def __init__(self, hosts: int, pace: Callable[[Piece], float]) -> None:
        """Starts empty.

        Args:
            hosts: Number of hosts.
            pace: Seconds that a piece may take; infinite where nobody knows yet.
        """
        self._queues: list[list[Piece]] = [[] for _ in range(hosts)]
        self._pace = pace

    def fill(self, pieces: Sequence[Piece], places: Sequence[int]) -> None:
        """Puts pieces into the queues of their hosts, the largest last: it is taken first."""
        for piece, host in sorted(zip(pieces, places), key=lambda pair: (pair[0].cell.cost, -pair[0].position)):
            self._queues[host].append(piece)

    def add(self, host: int, pieces: Iterable[Piece]) -> None:
        """Puts pieces behind all others, where they are taken first."""
        self._queues[host].extend(pieces)

    def add_to_shortest(self, hosts: Sequence[int], piece: Piece) -> None:
        """Puts a piece where the least waits, among some hosts."""
        self._queues[min(hosts, key=lambda host: len(self._queues[host]))].append(piece)

    def replace(self, host: int, by: Callable[[Piece], Iterable[Piece]]) -> None:
        """Replaces every piece of a host's queue."""
        self._queues[host] = [new for piece in self._queues[host] for new in by(piece)]

    def clients(self) -> set[int]:
        """All clients that wait."""
        return {i for queue in self._queues for piece in queue for i in piece.cell.ids}

    def take(self, host: int, sees: frozenset[int], alone: bool, never_lost: bool) -> list[Piece]:
        """Pieces for one call: so many that it takes a while, and few enough that the hosts end together.

        Args:
            host: The host.
            sees: Clients whose data it has.
            alone: No other host is at work.
            never_lost: Only pieces that were not lost before: these run alone, so that the next loss can only be
                their own doing.
        """
        most = len(self._queues[host]) or max(map(len, self._queues))
        share = most if alone else math.ceil(SHARE_OF_A_CALL * most)
        pieces: list[Piece] = []
        seconds = 0.0
        while len(pieces) < share and seconds < SECONDS_OF_A_CALL:
            piece = self._next(host, sees, never_lost or bool(pieces))
            if piece is None:
                break
            pieces.append(piece)
            seconds += math.inf if piece.losses else self._pace(piece)
        return pieces

    def _next(self, host: int, sees: frozenset[int], never_lost: bool) -> Piece | None:
        """The host's largest piece, or one of the fullest queue if its own has none for it."""
        others = sorted((queue for queue in self._queues if queue), key=len, reverse=True)
        for queue in [self._queues[host], *others]:
            for piece in reversed(queue):
                if not (never_lost and piece.losses) and sees.issuperset(piece.cell.ids):
                    queue.remove(piece)
                    return piece
        return None
