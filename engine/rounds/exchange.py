"""An exchange: the phases of one round on clients, and what the next state gets of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from shoal.algorithms.client import ClientTable
from shoal.algorithms.protocol import Ask, Mix, Replies, Tree
from shoal.engine.messages.cell import NO_STAGES, Cell, OfStages, Outcome, Training
from shoal.engine.rounds.costs import Meter, Pool, working_clock
from shoal.engine.rounds.reduction import Sums, Uploads, combine, require_finite
from shoal.engine.rounds.sampling import Group, evaluation_cell, form_cells
from shoal.engine.rounds.stage import Phase, Round, SkipRound, Stage, ToHosts
from shoal.engine.rounds.state import FederationState
from shoal.engine.scores.table import IN_BLOCK, ScoreTable
from shoal.storage.errors import ShoalError

TreeT = TypeVar("TreeT")
# A prediction has scope, client, part, and predicted classes and labels `[2, items]`.
Predicted = tuple[str, int, str, np.ndarray]


@dataclass(frozen=True)
class Federation:
    """The clients of a run, as the exchanges of all its rounds reach them.

    Attributes:
        infos: Sizes of all clients, and of whole graphs that are evaluated.
        cell_size: Clients of a cell, see `form_cells`.
        pool: Runs cells.
        batched: Whether clients train in batches.
        repeats: Whether one visit in each phase of round 1 is made twice, and compared.
        stages: What acts on uploads, in its order.
    """

    infos: ClientTable
    cell_size: int | str
    pool: Pool
    batched: bool = False
    repeats: bool = False
    stages: Sequence[Stage] = ()


class Exchange:
    """An exchange, which runs phases and evaluations of a round, and keeps what the next state gets of clients.

    Attributes:
        cohort: Clients of the round, ascending; those that fail are taken out.
        reply: What the method's last request gave; None before the first.
        predicted: What clients predicted, where a callback asks for it.
        columns: What stages add to the line of the round.
        unread: Clients that answered in vain, of a round that a stage skips.
        meter: Counts the round.
        epochs: Of local training; None: as the job has them.
    """

    epochs: int | None = None

    def __init__(
        self,
        federation: Federation,
        before: FederationState,
        next_state: FederationState,
        cohort: Sequence[int],
        meter: Meter,
        missing: frozenset[int] = frozenset(),
    ) -> None:
        """Prepares phases of one round; `before` is the state it started from, `next_state` a copy that it changes.

        Clients that were drawn and take no part to the end are `missing`.
        """
        self._federation, self._missing = federation, missing
        self._infos, self._pool, self._stages = federation.infos, federation.pool, federation.stages
        self._whole = next((stage for stage in self._stages if stage.whole), None)
        # The flag says whether uploads wait for a later step.
        self._ahead = False
        self._start = before
        self.next_state, self.cohort, self.meter = next_state, list(cohort), meter
        self.reply: Replies | Tensor | None = None
        # Uploads of `Reduce.MIX` are held until a later one replaces them by its name. None: clients have the product.
        self._held: dict[str, Uploads | None] = {}
        self.predicted: list[Predicted] = []
        self.columns: dict[str, Any] = {}
        self.unread: list[int] = []
        # These are of the phase that runs, with the exchanges of the round so far.
        self._of_stages, self._exchanges = NO_STAGES, 0

    def begin(self) -> None:
        """Shows the round to the stages; raises SkipRound."""
        if self._stages:
            round = Round(self.next_state.round, self.cohort, self._missing)
            for stage in self._stages:
                stage.begin(round)

    def ask(self, ask: Ask, is_last_visit: Callable[[int], bool]) -> Replies:
        """Runs one phase, and returns what the server sees of it; entries of `Reduce.MIX` are held.

        A client that does not train again before the next evaluation (`is_last_visit`) is evaluated now, as it is after
        its last local step.

        Raises:
            ShoalError: No client answered, or a stage does not take such uploads.
            SkipRound: A stage cannot answer.
        """
        next_state = self.next_state
        ids = sorted(set(self.cohort if ask.to is None else ask.to) - self.meter.failures.keys())
        # Whoever trains first in a phase of round 1 does so twice, if it is code of the user's.
        able = [i for i in ids if self._infos[i].train] if self._federation.repeats and ask.train else []
        again = able[0] if able and next_state.round == 1 else None
        score = frozenset(i for i in ids if ask.train and ask.score and is_last_visit(i))
        groups = form_cells(ids, self._infos, self._federation.cell_size, self._pool.hosts[1])
        phase = self._before(ask, ids)
        cells = [self._cell(ask, next_state.round, group, score, again) for group in groups]
        self.meter.count_downloads(ask, ids)
        outcomes, sums, _ = self._run(cells, ask.shared)
        answered = self._take(ask, ids, outcomes)
        if self._whole is not None and answered:
            phase.kept = next_state.extras.setdefault(self._whole.name, {})
            return self._after(self._whole.reduce(answered, phase), phase, outcomes)
        from_clients = [i for outcome in answered for i in outcome.ids]
        if answered and self._of_stages.adder is not None:
            self._of_stages.adder.read(sums.whole, from_clients)
        replies, held = combine(answered, from_clients, cells[0].entries if cells else ask.up, sums)
        self._held.update(held)
        return self._after(replies, phase, outcomes)

    def _before(self, ask: Ask, ids: Sequence[int]) -> Phase:
        """Asks the stages what they send along with a phase; raises as they do."""
        self._exchanges += bool(ask.up and ids)
        state, lost = self.next_state, self._missing | self.meter.failures.keys()
        phase = Phase(ask, state.round, self.cohort, ids, lost, self._exchanges, self.reply is None, {}, self.columns)
        if self._stages:
            wanted = dict[str, ToHosts]()
            for stage in self._stages:
                phase.kept = state.extras.setdefault(stage.name, {})
                if (wants := stage.before(phase)) is not None:
                    wanted[stage.name] = wants
            self._of_stages = OfStages(
                {name: wants.note for name, wants in wanted.items() if wants.note is not None},
                {entry: how for wants in wanted.values() for entry, how in wants.added.items()},
                next((wants.adder for wants in wanted.values() if wants.adder is not None), None),
                self._whole is not None,
            )
        return phase

    def _after(self, replies: Replies, phase: Phase, outcomes: Sequence[Outcome]) -> Replies:
        """Gives the stages what came back; returns what the method sees."""
        phase.outcomes = outcomes
        for stage in reversed(self._stages):
            phase.kept = self.next_state.extras.setdefault(stage.name, {})
            replies = stage.after(replies, phase)
        return replies

    def skip(self, skipped: SkipRound) -> FederationState:
        """Undoes all that the round did; returns the state before it as that of this round."""
        self.unread, self.columns = list(self.cohort), skipped.columns
        self.next_state = self._start.next_state(self.next_state.round)
        self.cohort.clear()
        self.predicted = []
        self.meter.discard()
        return self.next_state

    def _cell(self, ask: Ask, number: int, group: Group, score: frozenset[int], again: int | None) -> Cell:
        """Makes the cell of clients to ask in round `number`; `score` are evaluated, and `again` is visited twice."""
        next_state, ids = self.next_state, group.ids
        training = Training(self._federation.batched, self.epochs) if ask.train else None
        return Cell(
            number, ids, ask.phase, ask.up, training, _pick(ask.private, ids), _pick(next_state.clients, ids),
            _pick(next_state.inboxes, ids), score & frozenset(ids), self._cost(ids),
            score_with=ask.score_with if score & frozenset(ids) else {}, again=again,
            first_loss=next_state.first_losses.get(ask.phase, math.inf),
            kept=_pick(next_state.kept, ids), places=group.places, stages=self._of_stages,
        )  # fmt: skip

    def _take(self, ask: Ask, ids: Sequence[int], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Takes states, counts and losses; gives the outcomes of clients that answered, a ShoalError if none did."""
        next_state = self.next_state
        for outcome in outcomes:
            next_state.keep(outcome.states, outcome.kept)
            next_state.touched.update({i: i in outcome.scores for i in outcome.ids})
            if ask.train:
                self.meter.keep_losses(outcome)
        with self.meter.scoring():
            for outcome in outcomes:
                if not outcome.scores and "trained" not in next_state.scores:
                    continue
                trained = next_state.scores.setdefault("trained", ScoreTable())
                # Those that come back are evaluated then; should they fail, no older counts stand for this training.
                trained.change(dict.fromkeys(outcome.ids) if ask.train else {})
                trained.change(outcome.scores)
            self._take_predicted("trained", outcomes)
        if losses := [loss for outcome in outcomes for loss in outcome.losses if math.isfinite(loss)]:
            next_state.first_losses.setdefault(ask.phase, max(losses))
        answered = [outcome for outcome in outcomes if outcome.ids]
        if ids and not answered:
            line, detail = self.meter.failures[ids[0]]
            raise ShoalError(f"no client of the cohort answered; the first: {line}", detail=detail)
        return answered

    def mix(self, mix: Mix) -> Tensor | None:
        """Multiplies a matrix with held uploads, `[rows, …]`; rows of clients go to their inboxes instead.

        Raises:
            ShoalError: No client uploaded the entry, the matrix does not fit those that did, or it holds NaN.
        """
        if mix.entry not in self._held:
            raise ShoalError(f"Mix({mix.entry!r}) before any Ask uploaded it as Reduce.MIX")
        held = self._held[mix.entry]
        if held is None:
            raise ShoalError(f"Mix({mix.entry!r}) after clients were given its product; mix for the server first")
        rows = mix.rows.to(held.dtype)
        require_finite({mix.entry: rows}, "the matrix of Mix")
        if rows.shape[-1] != held.clients or (mix.dst is not None and rows.shape[:-1] != (len(mix.dst),)):
            wanted = [held.clients] if mix.dst is None else [len(mix.dst), held.clients]
            raise ShoalError(f"the matrix of Mix({mix.entry!r}) is {list(rows.shape)}, expected {wanted}")
        if mix.dst is None:
            product = held.product(rows.reshape(-1, held.clients))
            require_finite({mix.entry: product}, "the result of Mix")
            return product.reshape((*rows.shape[:-1], *held.shape))
        self._held[mix.entry] = None
        parts = held.give(rows)
        for part in parts:
            # Hosts look at what they multiply.
            require_finite({mix.entry: part} if isinstance(part, Tensor) else {}, "the result of Mix")
        for client, part in zip(mix.dst, parts):
            self.next_state.put_into_inbox(client, mix.entry, part)
            self.meter.count_download(client, part.nbytes)
        return None

    def score(
        self, ids: Sequence[int], download: Tree, fresh: bool = False, private: Mapping[int, Tree] | None = None
    ) -> ScoreTable:
        """Counts how clients predict after a download, and a private one; `fresh` ones have neither state nor inbox."""
        state = FederationState() if fresh else self.next_state
        cells = [
            evaluation_cell(
                self.next_state.round,
                cell.ids,
                state.clients,
                state.inboxes,
                self._cost(cell.ids),
                state.kept,
                private or {},
            )
            for cell in form_cells(ids, self._infos, self._federation.cell_size, self._pool.hosts[1])
        ]
        outcomes, _, tables = self._run(cells, download)
        self._take_predicted("global" if fresh else "deployed", outcomes)
        return ScoreTable().with_counts(*tables)

    def _run(self, cells: Sequence[Cell], shared: Tree) -> tuple[list[Outcome], Sums, list[ScoreTable]]:
        """Runs cells: returns their outcomes and sums, and of mere evaluations the counts, which are in no outcome
        then.
        """
        outcomes: dict[int, Outcome] = {}
        sums, tables, counts = Sums(self._of_stages.adder), list[ScoreTable](), dict[int, np.ndarray]()
        self.meter.expect(sum(len(cell.ids) for cell in cells), any(not cell.phase for cell in cells))
        asked = working_clock()
        for position, outcome in self._pool.run_cells(cells, shared):
            self.meter.waited += working_clock() - asked
            outcomes[position] = outcome
            if not cells[position].phase:
                # Scores may be of many clients, maybe all, so they are not kept twice.
                counts.update(outcome.scores)
                outcome.scores = {}
                if len(counts) >= IN_BLOCK:
                    tables.append(ScoreTable(counts))
                    counts = {}
            for places, part in outcome.sums.items():
                sums.take(places, part)
            outcome.sums = {}
            if not self._ahead:
                self.meter.count_uploads(outcome)
            self.meter.count_cell(len(cells[position].ids), outcome)
            asked = working_clock()
        self.meter.waited += working_clock() - asked
        for outcome in outcomes.values():
            for client, failure in outcome.failures.items():
                self._leave_out(client, failure)
        if counts:
            tables.append(ScoreTable(counts))
        return [outcomes[position] for position in range(len(cells))], sums, tables

    def _take_predicted(self, scope: str, outcomes: Sequence[Outcome]) -> None:
        by_client = {i: of_parts for outcome in outcomes for i, of_parts in outcome.predicted.items()}
        self.predicted += [(scope, i, part, both) for i in sorted(by_client) for part, both in by_client[i].items()]

    def _leave_out(self, client: int, failure: tuple[str, str]) -> None:
        """Leaves a client that fails out of the rest of the round; it stays as it was before."""
        self.meter.failures[client] = failure
        if client in self.cohort:
            self.cohort.remove(client)
        self.next_state.restore(client, self._start)

    def _cost(self, ids: Sequence[int]) -> float:
        return float(self._infos.cost[np.array(ids)].sum())


def _pick(trees: Mapping[int, TreeT], ids: Sequence[int]) -> dict[int, TreeT]:
    return {i: trees[i] for i in ids if i in trees}
