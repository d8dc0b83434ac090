"""The clients that take part in a round to its end: the selected ones that neither drop out nor come too late.

Simulated times follow from formulas before any client trains, so clients that would not count are not trained, as if
they had been offline. Axes: B all clients, C those drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.names import own_among
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.rounds.sampling import Drawn, MakeSchedule, Plan, Schedule, draw_cohort
from shoal.engine.schedules.selection import KEY, OURS, Known, own_selection
from shoal.engine.simulation.schedule import DEVICES, NETWORKS, Fleet, read_classes, schedule
from shoal.engine.simulation.work import work_of
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store
from shoal.storage.user_code.user_code import UserCode

# The server knows of every client, float64 `[B]`, its last training loss, and the round of that.
LOSS, ROUND = "last loss", "last round"


class Participation(Schedule):
    """A schedule of rounds that some clients do not finish, or whose clients are selected."""

    def __init__(
        self,
        fleet: Fleet | None,
        own: UserCode | None,
        plan: Plan,
        job: Job,
        store: Store,
        algorithm: Algorithm,
        models: Sequence[BuiltModel],
    ) -> None:
        """Prepares rounds on devices and links, where there are any, with the user's selection, where there is one.

        Raises a ShoalError: a model's work is not known, no client can meet the deadline, or a selection is none.
        """
        super().__init__(plan, store.clients, job.seed)
        self._options, self._fleet = plan.participation, fleet
        self._items = np.array([info.train for info in job.infos(job.open_training(store))])
        self._alone = np.ones(self.clients)
        self._deadline = math.inf if self._options.deadline is None else self._options.deadline
        if fleet is not None:
            work, how = work_of(job, store, algorithm, models, "participation.devices"), job.stages.get("communication")
            plain = fleet.seconds(work.train) + fleet.seconds(work.upload)
            self._compute = plain, plain + fleet.seconds(work.evaluate)
            parameters = np.array([float(len(built.flat.w)) for built in models])[list(job.model_of)]
            # A message is one model, and `local` sends none.
            self._down = 4 * parameters * (job.method.name != "local")
            self._up = self._down * (1 if how is None else 2 * how.ratio if how.upload == "topk" else 0.25)
            self._alone = plain + schedule(fleet, np.arange(self.clients), self._down, self._up, plain).moving
        if self._alone.min() > self._deadline:
            raise ShoalError(
                "participation.deadline",
                f"no client can meet {self._deadline:g} s: the fastest takes {self._alone.min():.4g} s alone; raise it",
            )
        kind = self._options.selection
        self._select = OURS.get(kind) if own is None else own_selection(own)
        self.foreseen = self._select is None

    def draw(self, number: int, known: Tree) -> Drawn:
        """Draws the clients of a round that take part to its end, keyed by (seed, round).

        Of the drawn ones some drop out and some are late; of the others the first to finish take part, as many as are
        asked for. The round ends with the last of these, or with the deadline, should they be fewer.
        """
        options, fleet, online = self._options, self._fleet, self._plan.online
        size, present = options.size(len(self._members)), self._members
        if online is not None:
            present = present[online[(number - 1) % len(online)][present]]
        drawn, state = self._choose(present, math.ceil(size * options.over_selection - 1e-9), number, known)
        lost = np.random.default_rng(key(self.seed, number, "dropout")).random(self.clients)[drawn]
        lost = lost < options.dropout
        finished = np.zeros(len(drawn))
        if fleet is not None:
            up, compute = np.where(lost, 0.0, self._up[drawn]), self._compute[self.evaluates(number)][drawn]
            finished = schedule(fleet, drawn, self._down[drawn], up, compute).finished
        late = ~lost & (finished > self._deadline)
        in_time = np.flatnonzero(~lost & ~late)
        first = in_time[np.argsort(finished[in_time], kind="stable")][:size]
        missing = {"dropped": drawn[lost], "late": drawn[late], "surplus": np.setdiff1d(drawn[in_time], drawn[first])}
        counts = {"online": present, "drawn": drawn, **missing}
        numbers: dict[str, float] = {name: len(those) for name, those in counts.items()}
        if fleet is not None:
            waits = len(first) < min(size, len(drawn)) and self._deadline < math.inf
            numbers["seconds"] = self._deadline if waits else float(finished[first].max(initial=0.0))
        cohort = drawn[np.sort(first)]
        absent = {name: those.tolist() for name, those in missing.items()}
        return Drawn(cohort[~np.isin(cohort, options.without)].tolist(), numbers, state, absent)

    def _choose(self, present: np.ndarray, count: int, number: int, knowledge: Tree) -> tuple[np.ndarray, Tree]:
        """Returns the drawn clients, ascending, and what the server then knows, and the user's selection keeps."""
        options, online = self._options, self._plan.online
        if self._select is not None:
            knowledge = knowledge or initial_knowledge(self.clients)
        if self._select is None or len(present) < options.at_least:
            asked = replace(options, count=count, without=())
            drawn = draw_cohort(self.clients, asked, self.seed, number, online, self._plan.absent)
            return np.array(drawn, dtype=np.int64), knowledge
        state = {name: t.clone() for name, t in knowledge.items()}
        loss, last = state.pop(LOSS).numpy(), state.pop(ROUND).numpy()
        what = Known(number, present, self._items, loss, last, self._alone, options.candidates, state)
        rng = np.random.default_rng(key(self.seed, number, KEY))
        selected = self._select(what, min(count, len(present)), rng)
        return np.sort(np.array(list(selected), dtype=np.int64)), knowledge | state

    def note(self, number: int, known: Tree, losses: Mapping[int, float], cohort: Sequence[int]) -> Tree:
        """Returns what a selection knows, with the losses of the round's cohort; 0 where a client reports none."""
        noted = {name: t.clone() for name, t in known.items()}
        for client in cohort if noted else ():
            loss = losses.get(client, 0.0)
            noted[LOSS][client], noted[ROUND][client] = loss if math.isfinite(loss) else 0.0, number
        return noted


def initial_knowledge(clients: int) -> Tree:
    """Returns what the server knows before the first round."""
    return {LOSS: torch.full((clients,), math.inf, dtype=torch.float64), ROUND: torch.zeros(clients).double()}


def make_participation(config: Config, participation: ParticipationOptions) -> MakeSchedule:
    """Reads devices, links and the user's selection, and returns what makes the schedule.

    Raises ShoalError: a file of these is wrong.
    """
    fleet = None
    if participation.devices is not None and participation.network is not None:
        devices = read_classes(participation.devices, "devices", DEVICES)
        links = read_classes(participation.network, "networks", NETWORKS)
        fleet = Fleet.of(devices, links, config.partition.clients, participation.seed)
    selection = participation.selection
    return partial(Participation, fleet, own_among(KEY, [selection]).get(selection))
