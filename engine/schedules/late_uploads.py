"""Rounds that do not wait for one another: their uploads come from clients that began with models of earlier rounds.

Who trains from which model is known ahead: when a round needs an upload that is not there, all train that have begun,
one by one, so that no bit depends on who trains together. What they give waits in memory and is no part of the state:
after a resume it is made again. State and counts of a client are taken with its upload.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from shoal.algorithms.protocol import Ask, Mix, Reduce, Replies, Tree, Upload
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.rounds.reduction import Sums, combine, merge, reduce_cell
from shoal.engine.rounds.sampling import Schedule, form_cells
from shoal.storage.errors import ShoalError

KEY = "schedule.name"


class Visits:
    """The visits of a run whose clients are known ahead: who trains from the model of which round, and for which."""

    def __init__(
        self, client: Sequence[np.ndarray], start: Sequence[np.ndarray], unfinished: np.ndarray | Sequence[int] = ()
    ) -> None:
        """Takes the clients of each round, int64 `[m]`, and the rounds from whose models they train, int64 `[m]`.

        `unfinished` are such rounds of visits for a round behind the last.
        """
        rounds, starts = len(client), np.concatenate(start)
        self._client = np.concatenate(client)
        self._round = np.repeat(np.arange(rounds) + 1, [len(ids) for ids in client])
        self._by_start = np.argsort(starts, kind="stable")
        self._bounds = np.searchsorted(starts[self._by_start], np.arange(rounds + 2))
        # Each round has the last one with an upload from its model; behind the last, of those who are not finished.
        self._last = np.zeros(rounds + 1, dtype=np.int64)
        np.maximum.at(self._last, starts, self._round)
        self._last[np.asarray(unfinished, dtype=np.int64)] = rounds + 1

    def needed_after(self, number: int) -> list[int]:
        """Returns the rounds up to this one from whose models clients train for later ones."""
        return np.flatnonzero(self._last[: number + 1] > number).tolist()

    def under_way(self, number: int) -> Iterator[tuple[int, dict[int, int]]]:
        """Yields who began before a round and uploads in it or later, each with that round, by ascending start."""
        for start in self.needed_after(number - 1):
            place = self._by_start[slice(*self._bounds[start : start + 2])]
            both = sorted(zip(self._client[place].tolist(), self._round[place].tolist()))
            yield start, {i: at for i, at in both if at >= number}


def staleness_of(starts: Mapping[int, int], number: int, cohort: Sequence[int]) -> dict[str, Any]:
    """Returns what the line of a round has of the rounds since its clients began; some client took part."""
    stale = [number - 1 - starts[i] for i in cohort]
    return {"staleness": {"mean": sum(stale) / len(stale), "max": max(stale), "of_clients": stale}}


class LateExchange(Exchange):
    """The exchange of a round with clients of which some began before the last round."""

    def __init__(
        self, schedule: Schedule, visits: Visits, method: str, trained: dict[int, Outcome], *args: Any
    ) -> None:
        """Prepares a round; `trained` is kept from round to round, and has what waits for its round.

        The rest is as of `Exchange`; errors name `method`.
        """
        super().__init__(*args)
        self._schedule, self._visits, self._method, self._trained = schedule, visits, method, trained
        self._asked = False

    def ask(self, ask: Ask, is_last_visit: Callable[[int], bool]) -> Replies:
        """Takes the uploads of a round, and reduces them as they count for the newest model.

        Raises a ShoalError: the method does not average one model, once a round, or the state lacks a model.
        """
        averages = dict(ask.up) == {"w": Reduce.MEAN} and ask.shared.keys() == {"w"} and not ask.private
        if self._asked or not averages or not ask.train or ask.to is not None or ask.score_with:
            raise self._refusal()
        self._asked, ids, number = True, list(self.cohort), self.next_state.round
        if number == 1 and 0 in self._schedule.needed_after(1):
            self.next_state.downloads[0] = {"w": ask.shared["w"].clone()}
        phase = self._before(ask, ids)
        if any(i not in self._trained for i in ids):
            self._train(ask)
        self.meter.count_downloads(ask, ids)
        outcome = merge([self._trained.pop(i) for i in ids])
        self.meter.count_uploads(outcome)
        self._take(ask, ids, [outcome])
        return self._after(self._reduce(ask, ids, outcome), phase, [outcome])

    def mix(self, mix: Mix) -> Tensor | None:
        """Raises a ShoalError: such rounds take means alone."""
        raise self._refusal()

    def _refusal(self) -> ShoalError:
        name = self._schedule.name
        return ShoalError(KEY, f"{name} is for methods that average one model, once a round, unlike {self._method}")

    def _train(self, ask: Ask) -> None:
        """Trains all who have begun and have not trained; draws of a visit are those of the round after its start."""
        number, cells = self.next_state.round, list[Cell]()
        for start, rounds in self._visits.under_way(number):
            ids = [i for i in rounds if i not in self._trained]
            score = frozenset(i for i in ids if ask.score and self._schedule.is_last_visit(i, rounds[i]))
            again = next((i for i in ids if self._federation.repeats and number == 1 and self._infos[i].train), None)
            private = {} if start == number - 1 else dict.fromkeys(ids, self._model_of(start))
            for group in form_cells(ids, self._infos, 1):
                cell = self._cell(replace(ask, private=private), start + 1, group, score, again)
                cells.append(replace(cell, stages=replace(cell.stages, rows=True)))
        self._ahead = True
        outcomes, _, _ = self._run(cells, ask.shared)
        self._ahead = False
        for outcome in outcomes:
            # Tensors that stay after the round must not hold memory of the object store.
            outcome.tensors = {entry: t.clone() for entry, t in outcome.tensors.items()}
            outcome.lists = {entry: [t.clone() for t in tensors] for entry, tensors in outcome.lists.items()}
            self._trained[outcome.ids[0]] = outcome

    def _model_of(self, start: int) -> Tree:
        if start not in self.next_state.downloads:
            reason = f"{self._method} gives no global_model, or a fork changed the schedule"
            raise ShoalError(KEY, f"clients train from the model of round {start}, which the state lacks: {reason}")
        return self.next_state.downloads[start]

    def _reduce(self, ask: Ask, ids: Sequence[int], outcome: Outcome) -> Replies:
        """Returns the mean of uploads as they count for the newest model, added up as those of a round."""
        schedule, number, newest = self._schedule, self.next_state.round, ask.shared
        starts, uploads = schedule.starts(number), list[Upload]()
        for i, w, weight in zip(outcome.ids, outcome.tensors["w"], outcome.lists["w"]):
            base = newest if starts[i] == number - 1 else self._model_of(starts[i])
            upload = Upload({"w": w}, {"w": weight if weight.dim() else float(weight)})
            uploads.append(schedule.counted(upload, base, newest, number - 1 - starts[i]))
        (group,) = form_cells(ids, self._infos, len(ids))
        reduce_cell(uploads, self._cell(ask, number, group, frozenset(), None), outcome)
        sums = Sums()
        for places, part in outcome.sums.items():
            sums.take(places, part)
        replies = combine([outcome], outcome.ids, ask.up, sums)[0]
        extras = self.next_state.extras
        kept = dict(extras.get(schedule.name, {}))
        replies = schedule.after(number, replies, newest, kept)
        if kept:
            extras[schedule.name] = kept
        return replies
