"""Who takes part in a round to its end: the selected clients that neither drop out nor come too late.

Simulated times follow from formulas before any client trains, so clients that would not count are not trained, as if
they had been offline. Axes: B all clients, C those drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.participation.sampling import Drawn, Plan, draw_cohort
from shoal.engine.participation.selection import KEY, OURS, Known, own_selection
from shoal.engine.simulation.schedule import schedule
from shoal.engine.simulation.work import work_of
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

# In what the server knows of every client, float64 `[B]`: its last training loss, and the round of that.
LOSS, ROUND = "last loss", "last round"


class Participation:
    """Draws the rounds of a run."""

    def __init__(self, plan: Plan, job: Job, store: Store, algorithm: Algorithm, models: Sequence[BuiltModel]) -> None:
        """Raises a ShoalError: a model's work is not known, no client can meet the deadline, or a selection is none."""
        self._plan, self._options, self._seed = plan, plan.participation, job.seed
        self._items = np.array([info.train for info in job.infos(job.open_training(store))])
        self._clients = np.arange(len(self._items))
        self._members = np.delete(self._clients, plan.newcomers)
        self._alone = np.ones(len(self._items))
        self._deadline = math.inf if self._options.deadline is None else self._options.deadline
        if plan.fleet is not None:
            work, how = work_of(job, store, algorithm, models, "participation.devices"), job.stages.get("communication")
            plain = plan.fleet.seconds(work.train) + plan.fleet.seconds(work.upload)
            self._compute = plain, plain + plan.fleet.seconds(work.evaluate)
            parameters = np.array([float(len(built.flat.w)) for built in models])[list(job.model_of)]
            # A message is one model, and `local` sends none.
            self._down = 4 * parameters * (job.method.name != "local")
            self._up = self._down * (1 if how is None else 2 * how.ratio if how.upload == "topk" else 0.25)
            self._alone = plain + schedule(plan.fleet, self._clients, self._down, self._up, plain).moving
        if self._alone.min() > self._deadline:
            raise ShoalError(
                "participation.deadline",
                f"no client can meet {self._deadline:g} s: the fastest takes {self._alone.min():.4g} s alone; raise it",
            )
        kind = self._options.selection
        self._select = own_selection(plan.own[kind]) if kind in plan.own else OURS.get(kind)

    def draw(self, number: int, known: Tree, scored: bool) -> Drawn:
        """The clients of a round that take part to its end, keyed by (seed, round).

        Of the drawn ones some drop out and some are late; of the others the first to finish take part, as many as are
        asked for. The round ends with the last of these, or with the deadline, should they be fewer.
        """
        options, fleet, online = self._options, self._plan.fleet, self._plan.online
        size, present = options.size(len(self._members)), self._members
        if online is not None:
            present = present[online[(number - 1) % len(online)][present]]
        drawn, state = self._drawn(present, math.ceil(size * options.over_selection - 1e-9), number, known)
        lost = np.random.default_rng(key(self._seed, number, "dropout")).random(len(self._clients))[drawn]
        lost = lost < options.dropout
        finished = np.zeros(len(drawn))
        if fleet is not None:
            up, compute = np.where(lost, 0.0, self._up[drawn]), self._compute[scored][drawn]
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

    def _drawn(self, present: np.ndarray, count: int, number: int, known: Tree) -> tuple[np.ndarray, Tree]:
        """The drawn clients, ascending, and what the server knows then, with what the user's selection keeps."""
        options, online = self._options, self._plan.online
        if self._select is None or len(present) < options.at_least:
            asked = replace(options, count=count, without=())
            drawn = draw_cohort(len(self._clients), asked, self._seed, number, online, self._plan.newcomers)
            return np.array(drawn, dtype=np.int64), known
        state = {name: t.clone() for name, t in known.items()}
        loss, last = state.pop(LOSS).numpy(), state.pop(ROUND).numpy()
        of = Known(number, present, self._items, loss, last, self._alone, options.candidates, state)
        rng = np.random.default_rng(key(self._seed, number, KEY))
        found = self._select(of, min(count, len(present)), rng)
        return np.sort(np.array(list(found), dtype=np.int64)), known | state


def unknown(clients: int) -> Tree:
    """What the server knows before the first round."""
    return {LOSS: torch.full((clients,), math.inf, dtype=torch.float64), ROUND: torch.zeros(clients).double()}


def noted(known: Tree, losses: Mapping[int, float], cohort: Sequence[int], number: int) -> Tree:
    """The same after a round, with the losses of its cohort; 0 where a client reports none."""
    found = {name: t.clone() for name, t in known.items()}
    for client in cohort:
        loss = losses.get(client, 0.0)
        found[LOSS][client], found[ROUND][client] = loss if math.isfinite(loss) else 0.0, number
    return found
