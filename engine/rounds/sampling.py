"""The choice of the clients of a round, and of their cells."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import ClientInfo, ClientTable
from shoal.algorithms.protocol import Replies, Tree, Upload, only_trains
from shoal.algorithms.rng import key
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.cell import Cell, Kept
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.messages.trainers import BATCHED
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

# It makes a schedule from the plan, the job, its store, the method, and the models that clients train.
MakeSchedule = Callable[["Plan", Job, Store, Algorithm, Sequence[BuiltModel]], "Schedule"]
# A size by name has a share of the clients that are visited, of a host's where they train one by one, and a maximum.
ONE_BY_ONE, IN_BATCHES, SMALL_IN_BATCHES = "auto", "auto, in batches", "auto, small clients in batches"
AUTOMATIC = {ONE_BY_ONE: (3, 16), IN_BATCHES: (8, 128), SMALL_IN_BATCHES: (4, 64)}
# A host whose clients train one by one has this share of them in large cells, and so many small cells make a large one.
IN_LARGE_CELLS, SMALL_CELLS = 0.75, 4


def cell_size_of(size: int | str, trainers: Sequence[str]) -> int | str:
    """Returns the size of cells as `Plan` has it, larger where clients are trained in batches on a processor."""
    return SMALL_IN_BATCHES if size == ONE_BY_ONE and BATCHED in trainers else size


def draw_cohort(
    clients: int,
    options: ParticipationOptions,
    seed: int,
    round_number: int,
    online: np.ndarray | None = None,
    absent: Sequence[int] = (),
    count: int | None = None,
) -> list[int]:
    """Draws `count`, or max(1, floor(clients * ratio)) clients, uniform without replacement among those online.

    With `options.draw: poisson` each takes part with the probability of such a cohort. With `cyclic` each is in one
    group, keyed by the seed alone, and groups take part by turns: each client once in any `options.groups` rounds.

    Clients that never take part (`absent`) are none of these. Of those that are drawn, `options.without` are left out.

    `count` is the size of such a cohort where it is known; None: it follows from the options.

    Returns them ascending. Keyed by (seed, round); rounds count from 1. Fewer clients online than asked for are all
    drawn, fewer than `at_least` none. `online` is bool `[rounds, clients]`, repeated from its start; None: all are.
    """
    size, present = count or options.size(clients - len(absent)), np.arange(clients)
    if online is not None:
        present = np.flatnonzero(online[(round_number - 1) % len(online)])
    if absent:
        present = present[~np.isin(present, absent)]
    if len(present) < options.at_least:
        return []
    drawn = present
    if options.draw == "poisson":
        rng = np.random.default_rng(key(seed, round_number, "cohort"))
        drawn = present[rng.random(len(present)) < size / (clients - len(absent))]
    elif options.draw == "cyclic":
        groups = options.groups(clients - len(absent))
        order = np.random.default_rng(key(seed, "groups")).permutation(present)
        # The cohort of the first round, by which runs are checked, is one of the smallest.
        drawn = np.sort(order[-round_number % groups :: groups])
    elif size < len(present):
        drawn = np.sort(
            np.random.default_rng(key(seed, round_number, "cohort")).choice(present, size=size, replace=False)
        )
    return (drawn[~np.isin(drawn, options.without)] if options.without else drawn).tolist()


def require_cohorts(options: ParticipationOptions, clients: int) -> None:
    """Raises a ShoalError, which names the key: more than the `clients` that may take part are asked for, or less than
    one.
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


def require_without(without: Sequence[int], clients: int) -> None:
    """Raises a ShoalError, which names the key: a client that is left out is none, or all are."""
    absent = set(without) & set(range(clients))
    if len(absent) == clients or absent != set(without):
        raise ShoalError(
            "participation.without",
            f"{', '.join(map(str, without))} of clients 0 to {clients - 1}; leave out some of them, not all",
        )


def require_sample(evaluated: int | str, clients: int) -> None:
    """Raises a ShoalError, which names the key: more clients are to be evaluated than there are."""
    if isinstance(evaluated, int) and evaluated > clients:
        raise ShoalError(
            "evaluation.clients", f"{evaluated} of {clients} clients; choose from 1 to {clients}, or all, or cohort"
        )


def require_evaluated(last: str, every: int, rounds: int) -> None:
    """Raises a ShoalError, which names the key: no round of a run is evaluated."""
    if last == "none" and rounds < every:
        raise ShoalError(
            "evaluation.last",
            f"none, and no round is evaluated: rounds is {rounds}, evaluation.every {every}; lower that, or set all",
        )


@dataclass(frozen=True)
class Drawn:
    """The clients of a round.

    Attributes:
        cohort: Those that take part to its end, ascending.
        numbers: What the line of the round has of them, by name.
        state: Tensors by name that the next draw gets as `known`; they are in checkpoints.
        missing: Clients that were drawn and take no part to the end, by what became of them: `dropped`, `late` or
            `surplus`.
    """

    cohort: list[int]
    numbers: Mapping[str, float] = field(default_factory=dict)
    state: Tree = field(default_factory=dict)
    missing: Mapping[str, list[int]] = field(default_factory=dict)


class Schedule:
    """A schedule: it says who takes part in each round, and from which model they train.

    This one draws uniformly, round by round.

    The server asks `draw` for the clients of a round. They train from the newest model, unless `exchange` makes
    rounds of another kind: then `starts` says from which model each trains, `needed_after` which models stay, `counted`
    what an upload counts as, and `after` what the method sees of their mean. `columns` go into the round's line.

    All bits of a run follow from the config, so a schedule reads no clock and draws with generators of its seed and the
    round's number. What it keeps for later rounds is in `Drawn.state`, or in `kept` of `after`.

    Attributes:
        name: Of the schedule in a config; under it `kept` is in the state.
        foreseen: Whether `draw` reads nothing of earlier rounds, so that any round is known now.
        exchange: Makes the exchanges of its rounds; None: clients of a round train from the newest model.
        clients: Number of all clients.
        count: Clients of a round where all are online, as `participation` has it.
        rounds: Rounds of the run; with a resume there may be more later.
        seed: Seed of the run.
    """

    name = "synchronous"
    foreseen = True
    exchange: Callable[..., Any] | None = None

    def __init__(self, plan: "Plan", clients: int, seed: int) -> None:
        """Prepares the schedule of a run with so many clients."""
        self._plan, self.clients, self.rounds, self.seed = plan, clients, plan.rounds, seed
        self._members = np.delete(np.arange(clients), plan.absent)
        self.count = plan.participation.size(len(self._members))
        # This is the newest round that was drawn, and what came of it.
        self._newest = 0, Drawn([])
        # Each client has the last drawn round from `first` to `reached` in which it takes part, none behind `end`.
        self._last_visits: dict[int, int] = {}
        self._first = self._reached = self._end = 0

    @classmethod
    def of(cls, plan: "Plan", job: Job, store: Store, algorithm: Algorithm, models: Sequence[BuiltModel]) -> "Schedule":
        """Makes the schedule of a job on its server; `models` are those that clients train."""
        return cls(plan, store.clients, job.seed)

    def draw(self, number: int, known: Tree) -> Drawn:
        """Draws the clients of a round; `known` is what the draw of the round before kept, empty at first."""
        plan = self._plan
        rest = plan.online, plan.absent, self.count
        return Drawn(draw_cohort(self.clients, plan.participation, self.seed, number, *rest))

    def starts(self, number: int) -> Mapping[int, int]:
        """Returns the clients of a round, each with the round whose model it trains from; 0: the initial one."""
        return dict.fromkeys(self.cohort(number), number - 1)

    def needed_after(self, number: int) -> Collection[int]:
        """Returns the rounds, this one or earlier ones, with whose models clients still train, or will."""
        return ()

    def counted(self, upload: Upload, base: Tree, newest: Tree, staleness: int) -> Upload:
        """Returns what an upload counts as in its round.

        Args:
            base: The model from which the client trained.
            newest: The server's model before the round.
            staleness: Rounds between these two models; 0: they are the same.
        """
        return upload

    def after(self, number: int, replies: Replies, newest: Tree, kept: Tree) -> Replies:
        """Returns what the method sees of the uploads of a round; changes `kept`, which is in checkpoints."""
        return replies

    def note(self, number: int, known: Tree, losses: Mapping[int, float], cohort: Sequence[int]) -> Tree:
        """Returns what the next draw gets as `known`, from what this one kept, and the losses of its clients."""
        return known

    def columns(self, number: int, cohort: Sequence[int]) -> dict[str, Any]:
        """Returns what the line of a round has beside its costs; clients that failed are not in the cohort."""
        return {}

    # The rest follows from these methods, and a schedule does not override it.

    def begin(self, number: int, known: Tree) -> Drawn:
        """Draws the next round, from what the server knows before it."""
        self._newest = number, self.draw(number, known)
        return self._newest[1]

    def cohort(self, number: int) -> list[int]:
        """Returns the clients of a round, ascending; where rounds are not foreseen, of the newest one alone."""
        return self._newest[1].cohort if number == self._newest[0] else self.draw(number, {}).cohort

    def evaluates(self, number: int) -> bool:
        """Returns whether a round ends with an evaluation."""
        return number == self._next_evaluation(number)

    def sample(self, number: int) -> list[int] | None:
        """Returns the clients that a round evaluates at its end, ascending, keyed by (seed, round); None: all."""
        which = self._plan.evaluated
        if which in ("all", len(self._members)) or (self._plan.last == "all" and number == self.rounds):
            return None
        if which == "cohort":
            return self.cohort(number)
        rng = np.random.default_rng(key(self.seed, number, "evaluation"))
        return sorted(rng.choice(self._members, size=int(which), replace=False).tolist())

    def is_last_visit(self, client: int, number: int) -> bool:
        """Returns whether a client takes no part again up to the next evaluation, or later rounds are not foreseen."""
        end = self._next_evaluation(number)
        if end > self.rounds:
            # No evaluation follows.
            return False
        if not self.foreseen:
            return True
        if end != self._end or number < self._first:
            self._last_visits, self._first, self._reached, self._end = {}, number, number, end
        # Later cohorts are drawn as far as one has the client.
        while self._last_visits.get(client, 0) <= number and self._reached < end:
            self._reached += 1
            self._last_visits.update(dict.fromkeys(self.cohort(self._reached), self._reached))
        return self._last_visits.get(client, 0) <= number

    def _next_evaluation(self, number: int) -> int:
        every = self._plan.evaluate_every
        due = -(-number // every) * every
        return due if self._plan.last == "none" else min(due, self.rounds)


@dataclass(frozen=True)
class Plan:
    """A plan: what the round loop needs of a config.

    Attributes:
        cell_size: Clients of a cell, see `form_cells`.
        online: Who is online in which round, bool `[rounds, clients]`; None: everybody.
        keep_records: Whether evaluated rounds come with what the method records for a report.
        keep_scores: Whether a backend gives the scores of every client with evaluated rounds.
        evaluated: Clients of an evaluation before the last round: `all`, those of the round (`cohort`), or how many.
        last: How the last round is evaluated: `all` clients, a `sample` as before, or `none`, as any other round.
        absent: Clients that never take part, ascending.
        schedule: Makes the schedule on the server, as `Schedule.of`.
    """

    rounds: int
    participation: ParticipationOptions
    evaluate_every: int
    cell_size: int | str
    online: np.ndarray | None = None
    keep_records: bool = False
    keep_scores: bool = False
    evaluated: int | str = "all"
    absent: tuple[int, ...] = ()
    last: str = "all"
    schedule: MakeSchedule = Schedule.of

    @property
    def never_train(self) -> tuple[int, ...]:
        """Lists clients that never take part, or never answer, ascending."""
        return tuple(sorted({*self.absent, *self.participation.without}))


def evaluation_cell(
    round_number: int,
    ids: Sequence[int],
    states: Mapping[int, Tree],
    inboxes: Mapping[int, Tree],
    cost: float = 0.0,
    kept: Mapping[int, Kept] | None = None,
    private: Mapping[int, Tree] = {},
) -> Cell:
    """Makes a cell of clients to evaluate as they stand; optimizer moments, which no evaluation reads, stay behind."""
    models = {i: {name: t for name, t in states[i].items() if not only_trains(name)} for i in ids if i in states}
    elsewhere = {i: kept[i] for i in ids if i in kept} if kept else {}
    return Cell(
        round_number,
        ids,
        phase="",
        up={},
        train=None,
        private={i: private[i] for i in ids if i in private},
        states=models,
        inboxes={i: inboxes[i] for i in ids if i in inboxes},
        score=frozenset(ids),
        cost=cost,
        kept={i: kept_state for i, kept_state in elsewhere.items() if not all(map(only_trains, kept_state.names))},
    )


class Group(NamedTuple):
    """The clients of a cell, ascending, and their places; a model's last cell has the empty ones behind it, too."""

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


def most_cells(plan: Plan, infos: Sequence[ClientInfo], trainers: Sequence[str]) -> int:
    """Counts the cells of the larger phase of a round, training or evaluation: so many hosts can be at work."""
    members, size = len(infos) - len(plan.absent), cell_size_of(plan.cell_size, trainers)
    cohort = plan.participation.size(members)
    evaluated = {"all": members, "cohort": cohort}.get(str(plan.evaluated), plan.evaluated)
    # Clients that train one by one are in smaller cells where there are more hosts.
    return max(len(form_cells(range(count), infos, size, count)) for count in (cohort, int(evaluated)))


def automatic_sizes(name: str, clients: int, hosts: int) -> tuple[int, int]:
    """Returns the sizes of the first cells and of the last ones, powers of two, so that a cell sends one sum.

    A cell whose clients train in a batch has last bits of its own, so that it depends on the clients alone. Of others
    every host has some large ones, and small ones so that hosts end together.
    """
    cells, most = AUTOMATIC[name]
    if name != ONE_BY_ONE:
        size = 1 << round(math.log2(min(max(clients // cells, 1), most)))
        return size, size
    large, small = (min(max(clients // (share * hosts), 1), most) for share in (cells, SMALL_CELLS * cells))
    return 1 << large.bit_length() - 1, 1 << small.bit_length() - 1
