"""Which clients take part in a round, and in which cells."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.algorithms.client import ClientInfo, ClientTable
from shoal.algorithms.protocol import Tree, only_trains
from shoal.algorithms.rng import key
from shoal.engine.config.sections import ParticipationOptions
from shoal.engine.messages.cell import Cell, Kept
from shoal.engine.messages.trainers import BATCHED
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import NOT_READ, load_npy, reason

if TYPE_CHECKING:
    # Few runs are not synchronous.
    from shoal.engine.simulation.events import Asynchronous

# Sizes by name: a share of the clients that are visited, of a host's where they train one by one, and the most clients.
ONE_BY_ONE, IN_BATCHES, SMALL_IN_BATCHES = "auto", "auto, in batches", "auto, small clients in batches"
AUTOMATIC = {ONE_BY_ONE: (3, 16), IN_BATCHES: (8, 128), SMALL_IN_BATCHES: (4, 64)}
# Of the clients of a host that train one by one: those in large cells, and how many small cells make a large one.
IN_LARGE_CELLS, SMALL_CELLS = 0.75, 4


def cell_size_of(size: int | str, trainers: Sequence[str]) -> int | str:
    """The size of cells as `Plan` has it, larger where clients are trained in batches on a processor."""
    return SMALL_IN_BATCHES if size == ONE_BY_ONE and BATCHED in trainers else size


def draw_cohort(
    clients: int, options: ParticipationOptions, seed: int, round_number: int, online: np.ndarray | None = None
) -> list[int]:
    """`count`, or max(1, floor(clients * ratio)) clients, uniform without replacement among those online, ascending.

    Keyed by (seed, round); rounds count from 1. Fewer clients online than asked for are all drawn, fewer than
    `at_least` none. `online` is bool `[rounds, clients]`, repeated from its start; None: everybody is.
    """
    size = options.count or max(1, int(clients * options.ratio + 1e-9))
    present = np.arange(clients)
    if online is not None:
        present = np.flatnonzero(online[(round_number - 1) % len(online)])
    if len(present) < options.at_least:
        return []
    if size >= len(present):
        return present.tolist()
    rng = np.random.default_rng(key(seed, round_number, "cohort"))
    return sorted(rng.choice(present, size=size, replace=False).tolist())


def require_cohorts(options: ParticipationOptions, clients: int, rounds: int, online: np.ndarray | None = None) -> None:
    """Raises a ShoalError, which names the key: more clients are asked for than there are, or in no round is any.

    `online` is as in `draw_cohort`.
    """
    if options.count is not None and options.count > clients:
        raise ShoalError("participation.count", f"{options.count} of {clients} clients; choose from 1 to {clients}")
    # A single client takes part whatever the ratio.
    if options.count is None and clients > 1 and not int(clients * options.ratio + 1e-9):
        raise ShoalError(
            "participation.ratio",
            f"{options.ratio:g} of {clients} clients is less than one; take {1 / clients:.2g} or more, or "
            "participation.count",
        )
    if online is None:
        return
    most = int(online[:rounds].sum(1).max())
    if most < options.at_least:
        key = "participation.at_least" if options.at_least > 1 else "participation.trace"
        raise ShoalError(
            key,
            f"no round would take place: {options.at_least} clients must be online, and of {clients} there are {most} "
            f"at most in the first {min(rounds, len(online))} rounds of {options.trace}; change one of them",
        )


def require_sample(evaluated: int | str, clients: int) -> None:
    """Raises a ShoalError, which names the key: more clients are to be evaluated than there are."""
    if isinstance(evaluated, int) and evaluated > clients:
        raise ShoalError(
            "evaluation.clients", f"{evaluated} of {clients} clients; choose from 1 to {clients}, or all, or cohort"
        )


def read_trace(file: str, clients: int) -> np.ndarray:
    """Reads `participation.trace`, a `.npy` of 0 and 1, `[rounds, clients]`; raises a ShoalError if it is none."""
    try:
        trace = load_npy(file)
    except NOT_READ as error:
        raise ShoalError(file, f"participation.trace cannot be read ({reason(error)}); give an .npy array") from error
    if (
        trace.dtype.kind not in "fiub"
        or trace.ndim != 2
        or trace.shape[1] != clients
        or not len(trace)
        or not np.isin(trace, (0, 1)).all()
    ):
        raise ShoalError(
            file,
            f"participation.trace must hold 0 or 1 for every round and all {clients} clients, "
            f"found {trace.dtype} {list(trace.shape)}",
        )
    return trace.astype(bool)


@dataclass(frozen=True)
class Plan:
    """What the round loop needs of a config.

    Attributes:
        cell_size: Clients of a cell, see `form_cells`.
        online: Who is online in which round, bool `[rounds, clients]`; None: everybody.
        keep_records: Whether evaluated rounds come with what the method records for a report.
        evaluated: Clients of an evaluation before the last round: `all`, those of the round (`cohort`), or how many.
        asynchronous: Of a run that is not synchronous.
    """

    rounds: int
    participation: ParticipationOptions
    evaluate_every: int
    cell_size: int | str
    online: np.ndarray | None = None
    keep_records: bool = False
    evaluated: int | str = "all"
    asynchronous: "Asynchronous | None" = None


class Schedule:
    """The cohorts and evaluations of a run: they depend on its seed and plan alone, so that any round is known now."""

    def __init__(self, plan: Plan, clients: int, seed: int) -> None:
        """Of a plan for so many clients."""
        self._plan, self._clients, self._seed = plan, clients, seed
        # The last of the drawn rounds from `first` to `drawn` in which a client takes part, none behind `end`.
        self._last_visits: dict[int, int] = {}
        self._first = self._drawn = self._end = 0

    def cohort(self, round_number: int) -> list[int]:
        """The clients of a round, ascending."""
        return draw_cohort(self._clients, self._plan.participation, self._seed, round_number, self._plan.online)

    def needed_after(self, round_number: int) -> list[int]:
        """Rounds before the next one with whose models clients still train, or will."""
        return []

    def columns(self, round_number: int, cohort: Sequence[int]) -> dict[str, Any]:
        """What the line of a round has beside its costs; clients that failed are not in the cohort."""
        return {}

    def evaluates(self, round_number: int) -> bool:
        """Whether a round ends with an evaluation."""
        return round_number == self._next_evaluation(round_number)

    def sample(self, round_number: int) -> list[int] | None:
        """The clients that are evaluated at the end of a round, ascending, keyed by (seed, round); None: all."""
        which = self._plan.evaluated
        if which in ("all", self._clients) or round_number == self._plan.rounds:
            return None
        if which == "cohort":
            return self.cohort(round_number)
        rng = np.random.default_rng(key(self._seed, round_number, "evaluation"))
        return sorted(rng.choice(self._clients, size=int(which), replace=False).tolist())

    def is_last_visit(self, client: int, round_number: int) -> bool:
        """Whether a client takes no part in a later round up to the next evaluation."""
        end = self._next_evaluation(round_number)
        if end != self._end or round_number < self._first:
            self._last_visits, self._first, self._drawn, self._end = {}, round_number, round_number, end
        # Later cohorts are drawn as far as one has the client.
        while self._last_visits.get(client, 0) <= round_number and self._drawn < end:
            self._drawn += 1
            self._last_visits.update(dict.fromkeys(self.cohort(self._drawn), self._drawn))
        return self._last_visits.get(client, 0) <= round_number

    def _next_evaluation(self, round_number: int) -> int:
        every = self._plan.evaluate_every
        return min(-(-round_number // every) * every, self._plan.rounds)


def evaluation_cell(
    round_number: int,
    ids: Sequence[int],
    states: Mapping[int, Tree],
    inboxes: Mapping[int, Tree],
    cost: float = 0.0,
    kept: Mapping[int, Kept] | None = None,
) -> Cell:
    """A cell of clients to evaluate as they stand; optimizer moments, which no evaluation reads, stay behind."""
    models = {i: {name: t for name, t in states[i].items() if not only_trains(name)} for i in ids if i in states}
    elsewhere = {i: kept[i] for i in ids if i in kept} if kept else {}
    return Cell(
        round_number,
        ids,
        phase="",
        up={},
        train=False,
        private={},
        states=models,
        inboxes={i: inboxes[i] for i in ids if i in inboxes},
        score=frozenset(ids),
        cost=cost,
        kept={i: one for i, one in elsewhere.items() if not all(map(only_trains, one.names))},
    )


class Group(NamedTuple):
    """Clients of a cell, ascending, and their places; the last cell of a model has the empty ones behind it, too."""

    ids: list[int]
    places: range


def form_cells(
    clients: Sequence[int], infos: Sequence[ClientInfo], cell_size: int | str, hosts: int = 1
) -> list[Group]:
    """Groups ascending clients of one model, by a size or a name of `AUTOMATIC`, for so many hosts.

    Places depend on the clients only: those of a model follow each other, from a multiple of a power of two on that has
    room for any model's clients.
    """
    large, small = (cell_size,) * 2 if isinstance(cell_size, int) else automatic_sizes(cell_size, len(clients), hosts)
    id_B = np.array(clients, dtype=np.int64)
    model_B = ClientTable.of(infos).model[id_B]
    of_models = [id_B[model_B == model].tolist() for model in np.unique(model_B)]
    room = 1 << (max(map(len, of_models), default=1) - 1).bit_length()
    cells = []
    for number, ids in enumerate(of_models):
        places, end = range(number * room, (number + 1) * room), 0
        while end < len(ids):
            start = end
            end += large if start + large <= IN_LARGE_CELLS * len(ids) else small
            cells.append(Group(ids[start:end], places[start : end if end < len(ids) else room]))
    return cells


def automatic_sizes(name: str, clients: int, hosts: int) -> tuple[int, int]:
    """Clients of the first cells and of the last ones, powers of two, so that a cell sends one sum.

    A cell whose clients train in a batch has last bits of its own, so that it depends on the clients alone. Of others
    every host has some large ones, and small ones so that hosts end together.
    """
    cells, most = AUTOMATIC[name]
    if name != ONE_BY_ONE:
        size = 1 << round(math.log2(min(max(clients // cells, 1), most)))
        return size, size
    large, small = (min(max(clients // (share * hosts), 1), most) for share in (cells, SMALL_CELLS * cells))
    return 1 << large.bit_length() - 1, 1 << small.bit_length() - 1
