"""Who takes part in which round, and which rounds end with an evaluation."""

from dataclasses import dataclass

import numpy as np

from engine.rounds.sampling import draw_cohort
from engine.settings.sections import ParticipationOptions


@dataclass(frozen=True)
class Plan:
    """What the round loop needs of a config.

    Attributes:
        rounds: Number of rounds.
        participation: How many clients a cohort has.
        evaluate_every: Rounds between evaluations of all clients.
        cell_size: Clients of a cell, see `engine.wire.cell.form_cells`.
        online: Who is online in which round, bool `[rounds, clients]`; None: everybody.
        keep_records: Whether evaluated rounds come with what the method records for a report.
    """

    rounds: int
    participation: ParticipationOptions
    evaluate_every: int
    cell_size: int | str
    online: np.ndarray | None = None
    keep_records: bool = False


class Schedule:
    """The cohorts and evaluations of a run: they depend on its seed and plan alone, so that any round is known now."""

    def __init__(self, plan: Plan, clients: int, seed: int) -> None:
        """Of a plan for so many clients."""
        self._plan, self._clients, self._seed = plan, clients, seed
        self._last_visits: dict[int, dict[int, int]] = {}

    def cohort(self, round_number: int) -> list[int]:
        """The clients of a round, ascending."""
        return draw_cohort(self._clients, self._plan.participation, self._seed, round_number, self._plan.online)

    def evaluates(self, round_number: int) -> bool:
        """Whether a round ends with an evaluation of all clients."""
        return round_number == self._next_evaluation(round_number)

    def is_last_visit(self, client: int, round_number: int) -> bool:
        """Whether a client takes no part in a later round up to the next evaluation."""
        end = self._next_evaluation(round_number)
        if end not in self._last_visits:
            every = self._plan.evaluate_every
            rounds = range((round_number - 1) // every * every + 1, end + 1)
            self._last_visits = {end: {client: later for later in rounds for client in self.cohort(later)}}
        return self._last_visits[end].get(client, round_number) <= round_number

    def _next_evaluation(self, round_number: int) -> int:
        every = self._plan.evaluate_every
        return min(-(-round_number // every) * every, self._plan.rounds)
