"""The first round in which two runs part: by their records, and rounds between checkpoints that are made again.

States at checkpoints of both are halved, so that the search reads a logarithm of their number. Only between two of them
are rounds made again, each once, and compared with the records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.bisect.differences import list_differences
from shoal.bisect.sides import Side, differing_keys, numbers_of_line
from shoal.bisect.tracing import Again, Program, points_of_state
from shoal.engine.records import inputs
from shoal.engine.rounds.costs import unwatched
from shoal.engine.rounds.state import FederationState
from shoal.engine.screen.progress import progress
from shoal.storage.errors import ShoalError

# Scores may flip by a last bit of what they are computed from.
SCORES = "scopes"


@dataclass
class Parting:
    """The first round after which two runs differ.

    Attributes:
        round: Its number.
        earliest: The first round that it may be, where neither records nor replays say more; else the same.
        before: States before it by side, None for the start; a side that is missing has none that is known.
        deviates: By side the first round whose replay is not as that side recorded it.
        visits: Visits of clients in rounds that were made again.
        reads: Pairs of checkpoints that were compared.
    """

    round: int
    earliest: int
    before: dict[str, FederationState | None] = field(default_factory=dict)
    deviates: dict[str, int] = field(default_factory=dict)
    visits: int = 0
    reads: int = 0


class Search:
    """The search for the first round in which two runs part.

    Attributes:
        common: Rounds that both have.
        visits: Visits of clients in rounds that were made again.
        reads: Pairs of checkpoints that were compared.
        seen_to: The last round up to which states are known to be equal.
    """

    def __init__(self, a: Side, b: Side, tolerance: float = 0.0) -> None:
        """Takes two runs; relative differences up to the tolerance are none."""
        self.sides, self._tolerance = (a, b), tolerance
        self.common = min(a.rounds, b.rounds)
        self.visits, self.reads, self.seen_to = 0, 0, 0

    def logged(self) -> int | None:
        """Returns the first round whose lines differ in cohort, loss, bytes or scores; None: there is none."""
        a, b = self.sides
        for number in range(1, self.common + 1):
            keys = differing_keys(a.numbers(number), b.numbers(number), self._tolerance)
            if any(key != SCORES or not self._tolerance for key in keys):
                return number
        return None

    def uploaded(self) -> int | None:
        """Returns the first round in which digests of uploads differ, where both kept them; None: there is none."""
        a, b = (side.digests for side in self.sides)
        rounds = sorted(number for number in a.keys() & b.keys() if number <= self.common)
        return None if self._tolerance else next((number for number in rounds if a[number] != b[number]), None)

    def find(self) -> Parting | None:
        """Finds the round. Returns None: the runs are equal in all that they recorded or that can be made again."""
        signs = [number for number in (self.logged(), self.uploaded()) if number is not None]
        last = min(signs, default=self.common + 1)
        equal, last = self._halve(last)
        parting = self._walk(equal, last)
        self.seen_to = min(parting.earliest - 1, self.common)
        return None if parting.round > self.common else parting

    def _halve(self, last: int) -> tuple[int, int]:
        """Returns the last checkpoint of both with equal states before a round, or 0, and the first one that differs,
        or that round.
        """
        a, b = self.sides
        shared = sorted(number for number in a.kept.keys() & b.kept.keys() if number < last)
        equal, low, high = 0, 0, len(shared)
        # The newest checkpoints tell at once of equal runs.
        middle = high - 1
        while low < high:
            number = shared[middle]
            states = a.recorded(number), b.recorded(number)
            if states[0] is None or states[1] is None:
                del shared[middle]
                high -= 1
            else:
                self.reads += 1
                if self._differ(*states):
                    last, high = number, middle
                else:
                    equal, low = number, middle + 1
            middle = (low + high) // 2
        return equal, last

    def _differ(self, a: FederationState | None, b: FederationState | None) -> bool:
        if a is None or b is None:
            return a is not b
        return bool(list_differences(points_of_state(a), points_of_state(b), self._tolerance))

    def _walk(self, equal: int, last: int) -> Parting:
        """Makes rounds behind a checkpoint with equal states again, up to one before `last`, and compares both sides.

        The last round, where the records differ, is left to who explains it.
        """
        a, b = self.sides
        parting = Parting(last, last)
        walks = {side.label: _Walk(side) for side in self.sides}
        for side in self.sides:
            walks[side.label].begin(equal)
        if last > self.common and equal == self.common:
            return parting
        numbers = range(equal + 1, min(last, self.common + 1))
        same = same_program(a, b)
        with progress("rounds made again", len(numbers), "rounds") as step:
            for number in numbers:
                recorded = [side.recorded(number) for side in self.sides]
                if same and recorded == [None, None]:
                    # Both run the same code from equal states.
                    lines = [walks["A"].step(number)] * 2
                    walks["B"].follow(walks["A"])
                else:
                    lines = []
                    for side, state in zip(self.sides, recorded):
                        lines.append(walks[side.label].step(number) if state is None else None)
                        if state is not None:
                            walks[side.label].take(number, state)
                step.advance()
                made = [(side, line) for side, line in zip(self.sides, lines) if line is not None]
                deviating = [side.label for side, line in made if self._deviates(side, number, line)]
                parting.deviates = dict.fromkeys(deviating, number)
                # A replay of equal programs tells which side has other records; else its states are those of neither.
                lost = deviating and not (same and len(deviating) == 1)
                if lost or any(walk.unknown for walk in walks.values()):
                    # What happens up to the first sign cannot be told.
                    parting.earliest = number
                    break
                states = [walks[side.label].state for side in self.sides]
                if deviating or self._differ(*states):
                    parting.round = parting.earliest = number
                    break
        self.visits = parting.visits = sum(walk.visits for walk in walks.values())
        parting.reads = self.reads
        for side in self.sides:
            walk = walks[side.label]
            if parting.earliest == parting.round and not walk.unknown:
                parting.before[side.label] = walk.before if parting.round <= walk.number else walk.state
        return parting

    def _deviates(self, side: Side, number: int, line: Mapping[str, Any]) -> bool:
        """Returns whether a round made again is not as a side logged it."""
        logged, made = side.numbers(number), numbers_of_line(line)
        keys = differing_keys(logged, made, self._tolerance)
        uploads = {(phase, i): digest for phase, i, digest in line.get("uploads", ())}
        recorded = side.digests.get(number)
        other = bool(uploads) and recorded is not None and uploads != recorded and not self._tolerance
        return other or any(key != SCORES or not self._tolerance for key in keys)


class _Walk:
    """A run that is made again round by round, or read where it has checkpoints.

    Attributes:
        number: The newest round whose state is known.
        state: That state; None: the start.
        before: The state before that round.
        unknown: Whether a round can neither be read nor made again.
        visits: Visits of clients so far.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self.number, self.unknown = 0, False
        self.state: FederationState | None = None
        self.before: FederationState | None = None
        self._again: Again | None = None
        self._visits = 0
        self._program: Program | None = None

    @property
    def visits(self) -> int:
        return self._visits + (0 if self._again is None else self._again.visits)

    def begin(self, number: int) -> None:
        """Begins after a round of which the side has a checkpoint; 0: before the first."""
        self.number = number
        self.state = self._side.recorded(number) if number else None

    def take(self, number: int, state: FederationState) -> None:
        """Goes on to the state of a checkpoint."""
        self.before, self.state, self.number = self.state, state, number

    def follow(self, other: "_Walk") -> None:
        """Goes on to where another walk is."""
        self.before, self.state, self.number, self.unknown = other.before, other.state, other.number, other.unknown

    def step(self, number: int) -> dict[str, Any] | None:
        """Makes the next round again, and returns its line; None: it cannot be made."""
        program = self._side.program(number)
        if program is None or self.unknown:
            self.unknown = True
            return None
        reached = None if self._again is None or program is not self._program else self._again.state().round
        if self._again is None or reached != self.number:
            self._visits = self.visits
            self._again, self._program = Again(program), program
        try:
            if reached != self.number:
                self._again.open(program.job, program.rounds, self.state)
            line = self._again.round(unwatched)
        except ShoalError as error:
            self._side.lost.append(f"round {number} cannot be made again: {error.line}")
            self.unknown = True
            return None
        self.before, self.state, self.number = self.state, self._again.state(), number
        return line


def same_program(a: Side, b: Side) -> bool:
    """Returns whether two runs train with equal keys and inputs, so that the same code makes equal rounds of both."""
    equal_keys = all(a.keys(number) == b.keys(number) for number in {1, min(a.rounds, b.rounds)})
    return equal_keys and not inputs.differences(a.read, b.read)
