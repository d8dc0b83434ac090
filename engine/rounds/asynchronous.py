"""Asynchronous rounds in front of a method: FedAsync (Xie et al., 2019), FedBuff (Nguyen et al., AISTATS 2022) and the
tiers of FedAT (Chai et al., SC 2021).

A round is a step of the server. Its uploads come from clients that began with the model w_v of some earlier step, and
stand for changes of the newest model w: an upload w_i counts as w + s (w_i - w_v), with FedAsync as w + s (w_i - w),
where s is the weight of its staleness. The method sees their mean as ever, so that one that averages a single model
needs no other server part. An upload of weight 1 that is not stale is taken as it is.

With tiers a step takes the uploads of a cohort of one tier, all of one model w_v, as they are. Their mean is the tier's
model, and the method sees the mean of all tiers' models, with the weights of `tier_weights`; a tier without a step has
the initial one.

Who trains from which model is known ahead: when a step needs an upload that is not there, all train that have begun,
one by one, so that no bit depends on who trains together. What they give waits in memory and is no part of the state:
after a resume it is made again. State and counts of a client are taken with its upload.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from shoal.algorithms.protocol import MODEL, Ask, Mix, Reduce, Replies, Tree, Upload
from shoal.engine.config.round_sections import FEDASYNC, TIERS, ScheduleOptions
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.participation.sampling import Drawn, Plan, Schedule, form_cells
from shoal.engine.rounds.costs import SIMULATED
from shoal.engine.rounds.reduction import Sums, combine, merge, reduce_cell
from shoal.engine.rounds.server import Exchange, Server
from shoal.engine.simulation.events import Timeline, tier_weights, timeline, weight
from shoal.engine.simulation.work import work_of
from shoal.storage.errors import ShoalError

KEY = "schedule.name"
# Bytes of a number, and of the weight of an upload.
FLOAT = 4


class AsynchronousServer(Server):
    """A server that steps as uploads come."""

    def __init__(self, *args: Any) -> None:
        """As of `Server`. Raises ShoalError also: the work of a client is not known, or the network has no server."""
        super().__init__(*args)
        job, asked, models = self.job, self.plan.asynchronous, self._built[MODEL]
        assert asked is not None
        store, options, steps = job.open_store(), asked.options, self.plan.rounds
        work, fleet = work_of(job, store, self.algorithm, models, KEY), asked.fleet(store.clients)
        size = FLOAT * len(models[0].flat.w)
        compute = fleet.seconds(work.train) + fleet.seconds(work.upload)
        time = timeline(options, steps, fleet, compute, (size, size + FLOAT), job.seed, self.plan.participation)
        self.schedule = visits = Visits(self.plan, store.clients, job.seed, time)
        self._exchange = partial(StepExchange, visits, options, type(self.algorithm).__name__, {})


class Visits(Schedule):
    """The visits of such a run: the cohort of a round are the clients of its step."""

    def __init__(self, plan: Plan, clients: int, seed: int, time: Timeline) -> None:
        """Of a plan for so many clients, and the order of their visits."""
        super().__init__(plan, clients, seed)
        assert plan.asynchronous is not None
        own = plan.asynchronous.options
        # 0: without tiers.
        self._tiers = own.tiers if own.name == TIERS else 0
        self._time, starts = time, np.concatenate(time.start)
        # All visits in the order of their steps: clients, and steps.
        self._client, sizes = np.concatenate(time.client), [len(ids) for ids in time.client]
        self._step = np.repeat(np.arange(plan.rounds) + 1, sizes)
        self._by_start = np.argsort(starts, kind="stable")
        self._bounds = np.searchsorted(starts[self._by_start], np.arange(plan.rounds + 2))
        # The last step that has an upload from the model of a step; behind the last, of those who are not finished.
        self._last = np.zeros(plan.rounds + 1, dtype=np.int64)
        np.maximum.at(self._last, starts, self._step)
        self._last[time.unfinished] = plan.rounds + 1

    def draw(self, round_number: int, known: Tree | None = None) -> Drawn:
        return Drawn(self._time.client[round_number - 1].tolist(), {}, {}, {})

    def starts(self, round_number: int) -> dict[int, int]:
        """The clients of a step, each with the step after which it began."""
        return dict(zip(self.cohort(round_number), self._time.start[round_number - 1].tolist()))

    def needed_after(self, round_number: int) -> list[int]:
        return np.flatnonzero(self._last[: round_number + 1] > round_number).tolist()

    def begun(self, round_number: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Who began before a step and gives an upload to it or a later one, with that one, ascending by start."""
        for start in self.needed_after(round_number - 1):
            place = self._by_start[slice(*self._bounds[start : start + 2])]
            both = sorted(zip(self._client[place].tolist(), self._step[place].tolist()))
            yield start, {i: at for i, at in both if at >= round_number}

    def columns(self, round_number: int, cohort: Sequence[int]) -> dict[str, Any]:
        starts = self.starts(round_number)
        stale = [round_number - 1 - starts[i] for i in cohort]
        found = {"mean": sum(stale) / len(stale), "max": max(stale), "of_clients": stale}
        tier = {"tier": int(self._time.group[round_number - 1]) + 1} if self._tiers else {}
        return {SIMULATED: float(self._time.seconds[round_number - 1]), "staleness": found, **tier}

    def tier(self, round_number: int) -> tuple[int, np.ndarray]:
        """The tier of a step, from 0, and the steps of every tier so far, with this one, int64 `[M]`."""
        so_far = self._time.group[:round_number]
        return int(so_far[-1]), np.bincount(so_far, minlength=self._tiers)


class StepExchange(Exchange):
    """The exchange of a step with the clients that it takes uploads of."""

    def __init__(
        self, visits: Visits, options: ScheduleOptions, method: str, trained: dict[int, Outcome], *args: Any
    ) -> None:
        """With what visits gave to earlier steps that wait for theirs; the rest is as of `Exchange`."""
        super().__init__(*args)
        self._visits, self._options, self._method, self._trained = visits, options, method, trained
        self._asked = False

    def ask(self, ask: Ask, is_last_visit: Callable[[int], bool]) -> Replies:
        """What the server sees of the uploads of a step; a ShoalError: the method does not average one model, once."""
        one = dict(ask.up) == {"w": Reduce.MEAN} and ask.shared.keys() == {"w"} and not ask.private
        if self._asked or not one or not ask.train or ask.to is not None or ask.score_with:
            raise self._refused()
        self._asked, ids, number = True, list(self.cohort), self.next_state.round
        if number == 1 and 0 in self._visits.needed_after(1):
            self.next_state.downloads[0] = {"w": ask.shared["w"].clone()}
        if number == 1 and self._options.name == TIERS:
            self.next_state.tiers = {tier: {"w": ask.shared["w"].clone()} for tier in range(self._options.tiers)}
        phase = self._before(ask, ids)
        if any(i not in self._trained for i in ids):
            self._train(ask)
        self.meter.sent(ask, ids)
        found = merge([self._trained.pop(i) for i in ids])
        self.meter.uploaded(found)
        self._take(ask, ids, [found])
        return self._after(self._reduced(ask, ids, found), phase, [found])

    def mix(self, mix: Mix) -> Tensor | None:
        raise self._refused()

    def _refused(self) -> ShoalError:
        name = self._options.name
        return ShoalError(KEY, f"{name} is for methods that average one model, once a round, unlike {self._method}")

    def _train(self, ask: Ask) -> None:
        """Trains all who have begun and have not trained; draws of a visit are those of the round after its start."""
        number, cells = self.next_state.round, list[Cell]()
        for start, steps in self._visits.begun(number):
            ids = [i for i in steps if i not in self._trained]
            score = frozenset(i for i in ids if ask.score and self._visits.is_last_visit(i, steps[i]))
            again = next((i for i in ids if self._repeats and number == 1 and self._infos[i].train), None)
            private = {} if start == number - 1 else dict.fromkeys(ids, self._model_of(start))
            for group in form_cells(ids, self._infos, 1):
                made = self._cell(replace(ask, private=private), start + 1, group, score, again)
                cells.append(replace(made, stages=replace(made.stages, rows=True)))
        self._ahead = True
        outcomes, _, _ = self._run(cells, ask.shared)
        self._ahead = False
        for outcome in outcomes:
            # What stays after the round must not hold memory of the object store.
            outcome.tensors = {entry: t.clone() for entry, t in outcome.tensors.items()}
            outcome.lists = {entry: [t.clone() for t in of] for entry, of in outcome.lists.items()}
            self._trained[outcome.ids[0]] = outcome

    def _model_of(self, start: int) -> Tree:
        if start not in self.next_state.downloads:
            reason = f"{self._method} gives no global_model, or a fork changed the schedule"
            raise ShoalError(KEY, f"clients train from the model of round {start}, which the state lacks: {reason}")
        return self.next_state.downloads[start]

    def _reduced(self, ask: Ask, ids: Sequence[int], found: Outcome) -> Replies:
        """The mean of uploads as they count for the newest model, added up as those of a round."""
        options, number = self._options, self.next_state.round
        starts, newest, uploads = self._visits.starts(number), ask.shared["w"], []
        for i, w, of in zip(found.ids, found.tensors["w"], found.lists["w"]):
            counts = w if options.name == TIERS else self._counted(w, newest, starts[i])
            uploads.append(Upload({"w": counts}, {"w": of if of.dim() else float(of)}))
        (group,) = form_cells(ids, self._infos, len(ids))
        reduce_cell(uploads, self._cell(ask, number, group, frozenset(), None), found)
        sums = Sums()
        for places, part in found.sums.items():
            sums.take(places, part)
        replies = combine([found], found.ids, ask.up, sums)[0]
        return self._of_tiers(replies) if options.name == TIERS and replies.weights["w"] > 0 else replies

    def _counted(self, w: Tensor, newest: Tensor, start: int) -> Tensor:
        """What an upload of a client that began after a step counts as, by its staleness."""
        options, last = self._options, self.next_state.round - 1
        base = newest if options.name == FEDASYNC or start == last else self._model_of(start)["w"]
        s = weight(options, last - start)
        return w if base is newest and s == 1 else newest + s * (w - base)

    def _of_tiers(self, replies: Replies) -> Replies:
        """Keeps the mean as the model of its tier, and gives that of all tiers."""
        (tier, updates), tiers = self._visits.tier(self.next_state.round), self.next_state.tiers
        tiers[tier] = {"w": replies.entries["w"]}
        first, *others = (float(s) * tiers[m]["w"].double() for m, s in enumerate(tier_weights(updates)))
        return replace(replies, entries={"w": sum(others, first).float()})
