"""Asynchronous rounds: FedAsync (Xie et al., 2019) and FedBuff (Nguyen et al., AISTATS 2022), in front of a method.

A round is a step of the server. Its uploads come from clients that began with the model w_v of some earlier step, and
stand for changes of the newest model w: an upload w_i counts as w + s (w_i - w_v), with FedAsync as w + s (w_i - w),
where s is the weight of its staleness. The method sees their mean as ever, so that one that averages a single model
needs no other server part. An upload that is not stale is taken as it is.

Who trains from which model is known ahead. When a step needs an upload that is not there yet, all clients train that
have begun, on all hosts at once. What they give waits in memory and is no part of the state: after a resume it is made
again. State and counts of a client are taken with its upload.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Ask, Mix, Reduce, Replies, Tree, Upload
from shoal.engine.config.sections import FEDASYNC
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.rounds.reduction import Sums, combine, merge, reduce_cell
from shoal.engine.rounds.sampling import Plan, Schedule, form_cells
from shoal.engine.rounds.server import Exchange
from shoal.engine.simulation.events import Asynchronous, timeline, weight
from shoal.engine.simulation.work import work_of
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

KEY = "schedule.name"
# Bytes of a number, and of the weight of an upload.
FLOAT = 4


class Visits(Schedule):
    """The visits of a run that is not synchronous: the cohort of a round are those whose uploads its step takes."""

    def __init__(
        self,
        plan: Plan,
        asked: Asynchronous,
        job: Job,
        store: Store,
        method: Algorithm,
        models: Sequence[BuiltModel],
    ) -> None:
        """Orders all of them. Raises ShoalError: the work of a client is not known, or the network has no server."""
        super().__init__(plan, store.clients, job.seed)
        self.options = asked.options
        work, fleet = work_of(job, store, method, models, KEY), asked.fleet(store.clients)
        compute = fleet.seconds(work.train) + fleet.seconds(work.upload)
        size = FLOAT * len(models[0].flat.w)
        self._time = timeline(self.options, plan.rounds, fleet, compute, (size, size + FLOAT), job.seed)
        starts = self._time.start.ravel()
        self._by_start = np.argsort(starts, kind="stable")
        self._bounds = np.searchsorted(starts[self._by_start], np.arange(plan.rounds + 2))
        # The last step that has an upload from the model of a step; behind the last, of those who are not finished.
        self._last = np.zeros(plan.rounds + 1, dtype=np.int64)
        np.maximum.at(self._last, self._time.start, 1 + np.arange(plan.rounds)[:, None])
        self._last[self._time.unfinished] = plan.rounds + 1

    def cohort(self, round_number: int) -> list[int]:
        return self._time.client[round_number - 1].tolist()

    def starts(self, round_number: int) -> dict[int, int]:
        """The clients of a step with the step whose model they trained from."""
        return dict(zip(self.cohort(round_number), self._time.start[round_number - 1].tolist()))

    def needed_after(self, round_number: int) -> list[int]:
        return np.flatnonzero(self._last[: round_number + 1] > round_number).tolist()

    def begun(self, round_number: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Who began before a step and gives an upload to it or a later one, with that one, ascending by start."""
        for start in self.needed_after(round_number - 1):
            place = self._by_start[slice(*self._bounds[start : start + 2])]
            step = 1 + place // self._time.client.shape[1]
            both = sorted(zip(self._time.client.ravel()[place].tolist(), step.tolist()))
            yield start, {i: at for i, at in both if at >= round_number}

    def columns(self, round_number: int, cohort: Sequence[int]) -> dict[str, Any]:
        starts = self.starts(round_number)
        stale = [round_number - 1 - starts[i] for i in cohort]
        mean = sum(stale) / max(len(stale), 1)
        return {
            "simulated": float(self._time.seconds[round_number - 1]),
            "staleness": {"mean": mean, "max": max(stale, default=0), "of_clients": stale},
        }


class StepExchange(Exchange):
    """The exchange of a step with the clients whose uploads it takes."""

    def __init__(self, visits: Visits, trained: dict[int, Outcome], method: str, *args: Any) -> None:
        """With what visits of earlier steps gave that wait for theirs; the rest is as of `Exchange`."""
        super().__init__(*args)
        self._visits, self._trained, self._method = visits, trained, method
        self._asked = self._ahead = False

    def ask(self, ask: Ask, is_last_visit: Callable[[int], bool]) -> Replies:
        """What the server sees of the uploads of a step, each as it counts for the newest model.

        Raises:
            ShoalError: The method does not average one model in one phase, or no client answered.
        """
        one = dict(ask.up) == {"w": Reduce.MEAN} and ask.shared.keys() == {"w"} and not ask.private
        if self._asked or not one or not ask.train or ask.to is not None or ask.score_with:
            raise self._refused()
        self._asked, ids, number = True, list(self.cohort), self.next_state.round
        if 0 in self._visits.needed_after(number) and number == 1:
            self.next_state.downloads[0] = {name: t.clone() for name, t in ask.shared.items()}
        if any(i not in self._trained for i in ids):
            self._train(ask)
        self._meter.sent(ask, ids)
        found = merge([self._trained.pop(i) for i in ids])
        self._meter.uploaded(found)
        self._take(ask, ids, [found])
        return self._reduced(ask, ids, found)

    def mix(self, mix: Mix) -> Tensor | None:
        raise self._refused()

    def _refused(self) -> ShoalError:
        name = self._visits.options.name
        return ShoalError(KEY, f"{name} is for methods that average one model, once a round, unlike {self._method}")

    def _train(self, ask: Ask) -> None:
        """Trains all who have begun and have not trained; draws of a visit are those of the round after its start."""
        number, cells = self.next_state.round, list[Cell]()
        for start, steps in self._visits.begun(number):
            ids = [i for i in steps if i not in self._trained]
            score = frozenset(i for i in ids if ask.score and self._visits.is_last_visit(i, steps[i]))
            again = next((i for i in ids if self._repeats and number == 1 and self._infos[i].train), None)
            private = {} if start == number - 1 else dict.fromkeys(ids, self._model_of(start))
            # Of clients in one batch the last bits would depend on who has trained before a resume.
            size = 1 if self._batched else self._cell_size
            for group in form_cells(ids, self._infos, size, self._pool.hosts[1]):
                made = self._cell(replace(ask, private=private), start + 1, group, score, again)
                cells.append(replace(made, rows=True))
        self._ahead = True
        outcomes, _, _ = self._run(cells, ask.shared)
        self._ahead = False
        for outcome in outcomes:
            self._trained.update((i, _of_client(outcome, place)) for place, i in enumerate(outcome.ids))

    def _model_of(self, start: int) -> Tree:
        if start not in self.next_state.downloads:
            raise self._refused()
        return self.next_state.downloads[start]

    def _ran(self, visits: int, outcome: Outcome) -> None:
        if self._ahead:
            self._meter.ran(visits, outcome)
        else:
            super()._ran(visits, outcome)

    def _reduced(self, ask: Ask, ids: Sequence[int], found: Outcome) -> Replies:
        """The mean of uploads as they count for the newest model, added up as those of a round."""
        options, starts, number = (
            self._visits.options,
            self._visits.starts(self.next_state.round),
            self.next_state.round,
        )
        newest, uploads = ask.shared["w"], []
        for i, w, of in zip(found.ids, found.tensors["w"], found.lists["w"]):
            base = newest if options.name == FEDASYNC or starts[i] == number - 1 else self._model_of(starts[i])["w"]
            s = weight(options, number - 1 - starts[i])
            counts = w if base is newest and s == 1 else newest + s * (w - base)
            uploads.append(Upload({"w": counts}, {"w": of if of.dim() else float(of)}))
        (group,) = form_cells(ids, self._infos, len(ids))
        reduce_cell(uploads, self._cell(ask, number, group, frozenset(), None), found)
        sums = Sums()
        for places, part in found.sums.items():
            sums.take(places, part)
        return combine([found], found.ids, ask.up, sums)[0]


def _of_client(outcome: Outcome, place: int) -> Outcome:
    """The part of one client of an outcome that keeps rows, without times; its tensors belong to it."""
    i = outcome.ids[place]
    found = Outcome(
        [i],
        losses=outcome.losses[place : place + 1],
        bytes_up=outcome.bytes_up[place : place + 1],
        tensors={entry: t[place : place + 1].clone() for entry, t in outcome.tensors.items()},
        lists={entry: [of[place]] for entry, of in outcome.lists.items()},
    )
    for name in ("states", "kept", "scores", "predicted", "digests"):
        of = getattr(outcome, name)
        getattr(found, name).update({i: of[i]} if i in of else {})
    return found
