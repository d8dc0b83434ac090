"""The clients that take part in a round to its end, where a feature chooses among them, or has some miss the end.

Features plug in by `Section.selects` and `Section.attends`. Axes: B all clients, C those drawn.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Tree
from shoal.engine.config.config import Config
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.rounds.sampling import Drawn, Plan, Schedule, draw_cohort
from shoal.engine.sections.sections import options_of
from shoal.storage.store.store import Store


@dataclass(frozen=True)
class Ended:
    """The end of a round.

    Attributes:
        first: Clients that take part to the end, ascending, int64.
        missing: Clients that do not, by what became of them, int64.
        seconds: Simulated time of the end; None: time is not simulated.
    """

    first: np.ndarray
    missing: Mapping[str, np.ndarray] = field(default_factory=dict)
    seconds: float | None = None


class Attendance:
    """The part of a schedule that says which clients take part to the end of a round; all of these do, at once.

    Attributes:
        alone: Seconds of a round of each client alone, float64 `[B]`.
    """

    def __init__(self, clients: int) -> None:
        """Prepares rounds of so many clients."""
        self.alone = np.ones(clients)

    def count(self, size: int) -> int:
        """Counts the clients to draw, of which so many take part."""
        return size

    def end(self, drawn: np.ndarray, size: int, number: int, evaluates: bool) -> Ended:
        """Ends a round of drawn clients, ascending, of which `size` may take part; keyed by (seed, round)."""
        return Ended(drawn, dict.fromkeys(("dropped", "late", "surplus"), drawn[:0]))


class Selects(Protocol):
    """The part of a schedule that chooses the clients of a round from what the server knows of them."""

    def begin(self, known: Tree) -> Tree:
        """Returns what is known before a round; nothing is before the first."""

    def choose(self, number: int, present: np.ndarray, count: int, known: Tree) -> tuple[np.ndarray, Tree]:
        """Returns `count` of the clients online, or fewer, ascending, and what is known then."""

    def note(self, number: int, known: Tree, losses: Mapping[int, float], cohort: Sequence[int]) -> Tree:
        """Returns what is known after a round, with the losses of its cohort."""


# On the server they take the job, its store, and seconds of each client alone; or all that makes a schedule.
MakeSelection = Callable[[Job, Store, np.ndarray], Selects]
MakeAttendance = Callable[[Job, Store, Algorithm, Sequence[BuiltModel]], Attendance]


class Participation(Schedule):
    """A schedule of rounds that some clients do not finish, or whose clients are selected."""

    def __init__(
        self,
        selects: MakeSelection | None,
        attends: MakeAttendance | None,
        plan: Plan,
        job: Job,
        store: Store,
        algorithm: Algorithm,
        models: Sequence[BuiltModel],
    ) -> None:
        """Prepares rounds with the parts of features, where there are any; raises as they do."""
        super().__init__(plan, store.clients, job.seed)
        self._attendance = Attendance(self.clients) if attends is None else attends(job, store, algorithm, models)
        self._selection = None if selects is None else selects(job, store, self._attendance.alone)
        self.foreseen = self._selection is None

    def draw(self, number: int, known: Tree) -> Drawn:
        """Draws the clients of a round that take part to its end, keyed by (seed, round)."""
        options, online, attendance = self._plan.participation, self._plan.online, self._attendance
        size, present = options.size(len(self._members)), self._members
        if online is not None:
            present = present[online[(number - 1) % len(online)][present]]
        drawn, state = self._choose(present, attendance.count(size), number, known)
        ended = attendance.end(drawn, size, number, self.evaluates(number))
        counts = {"online": present, "drawn": drawn, **ended.missing}
        numbers: dict[str, float] = {name: len(those) for name, those in counts.items()}
        if ended.seconds is not None:
            numbers["seconds"] = ended.seconds
        absent = {name: those.tolist() for name, those in ended.missing.items()}
        cohort = ended.first[~np.isin(ended.first, options.without)]
        return Drawn(cohort.tolist(), numbers, state, absent)

    def _choose(self, present: np.ndarray, count: int, number: int, knowledge: Tree) -> tuple[np.ndarray, Tree]:
        """Returns the drawn clients, ascending, and what the server then knows."""
        options = self._plan.participation
        if self._selection is not None:
            knowledge = self._selection.begin(knowledge)
            if len(present) >= options.at_least:
                return self._selection.choose(number, present, count, knowledge)
        asked = replace(options, count=count, without=())
        drawn = draw_cohort(self.clients, asked, self.seed, number, self._plan.online, self._plan.absent)
        return np.array(drawn, dtype=np.int64), knowledge

    def note(self, number: int, known: Tree, losses: Mapping[int, float], cohort: Sequence[int]) -> Tree:
        return known if self._selection is None else self._selection.note(number, known, losses, cohort)


def count_drawn(config: Config, size: int) -> int:
    """Counts the clients to draw for a round in which so many are to take part to the end."""
    availability = options_of(config, "availability")
    return size if availability is None else math.ceil(size * availability.over_selection - 1e-9)


def is_whole(value: object) -> bool:
    """Returns whether a value is an integer of Python, NumPy or torch, and no truth value."""
    if isinstance(value, Tensor):
        return value.ndim == 0 and not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
