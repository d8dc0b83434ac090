"""Cells out to the hosts and outcomes back into the draft of the state: one phase of a method, or an evaluation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Ask, Replies, Tree
from shoal.engine.messages.cell import Cell, Outcome, evaluation_cell, form_cells
from shoal.engine.rounds.costs import Meter
from shoal.engine.rounds.pool import Pool
from shoal.engine.rounds.reduction import Sums, combine
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError


class Exchange:
    """What one round has to do with clients.

    Attributes:
        cohort: Clients of the round, ascending; those that fail are taken out.
        draft: The state that the round works on.
    """

    def __init__(
        self,
        infos: Sequence[ClientInfo],
        cell_size: int | str,
        pool: Pool,
        before: FederationState,
        next_state: FederationState,
        cohort: Sequence[int],
        meter: Meter,
    ) -> None:
        """Of one round.

        Args:
            infos: Sizes of all clients, and of whole graphs that are evaluated.
            cell_size: Clients of a cell, see `shoal.engine.messages.cell.form_cells`.
            pool: Where cells run.
            before: The state that the round started from.
            draft: A copy that the round changes.
            cohort: Clients of the round.
            meter: Counts.
        """
        self._infos, self._cell_size, self._pool, self._before = infos, cell_size, pool, before
        self.next_state, self.cohort, self._meter = next_state, list(cohort), meter

    def ask(self, ask: Ask, is_last_visit: Callable[[int], bool]) -> tuple[Replies, Tree]:
        """Runs one phase; gives what the server sees, and what the engine holds for mixing.

        Args:
            ask: What the method asks for.
            is_last_visit: Whether a client does not train again before the next evaluation, so that it is evaluated
                now, as it is after its last local step.

        Raises:
            ShoalError: No client answered.
        """
        next_state = self.next_state
        ids = sorted(set(self.cohort if ask.to is None else ask.to) - self._meter.failures.keys())
        score = frozenset(i for i in ids if ask.train and ask.score and is_last_visit(i))
        cells = [
            Cell(
                next_state.round,
                cell,
                ask.phase,
                ask.up,
                ask.train,
                private=_pick(ask.private, cell),
                states=_pick(next_state.clients, cell),
                inboxes=_pick(next_state.inboxes, cell),
                score=score & frozenset(cell),
                cost=self._cost(cell),
                score_with=ask.score_with if score & frozenset(cell) else {},
            )
            for cell in form_cells(ids, self._infos, self._cell_size)
        ]
        self._meter.sent(ask, ids)
        outcomes, sums = self._run(cells, ask.shared)
        for outcome in outcomes:
            next_state.clients.update(outcome.states)
            next_state.touched.update({i: i in outcome.scores for i in outcome.ids})
            trained = next_state.scores.setdefault("trained", {})
            if ask.train:
                # Those that come back are evaluated then; should they fail, no older counts stand for this training.
                for i in outcome.ids:
                    trained.pop(i, None)
                self._meter.trained(outcome)
            trained.update(outcome.scores)
        answered = [outcome for outcome in outcomes if outcome.ids]
        if ids and not answered:
            line, detail = next(iter(outcomes[0].failures.values()))
            raise ShoalError(f"no client of the cohort answered; the first: {line}", detail)
        return combine(answered, [i for outcome in answered for i in outcome.ids], ask.up, sums)

    def score(self, ids: Sequence[int], download: Tree, fresh: bool = False) -> dict[int, Any]:
        """Counts of some clients after a download; `fresh` ones bring nothing of their own."""
        states = {} if fresh else self.next_state.clients
        inboxes = {} if fresh else self.next_state.inboxes
        cells = [
            evaluation_cell(self.next_state.round, cell, states, inboxes, self._cost(cell))
            for cell in form_cells(ids, self._infos, self._cell_size)
        ]
        outcomes, _ = self._run(cells, download)
        return {i: counts for outcome in outcomes for i, counts in outcome.scores.items()}

    def _run(self, cells: Sequence[Cell], shared: Tree) -> tuple[list[Outcome], Sums]:
        outcomes: dict[int, Outcome] = {}
        sums = Sums()
        self._meter.expect(sum(len(cell.ids) for cell in cells))
        with self._meter.waiting() as pause:
            for position, outcome in self._pool.run_cells(cells, shared):
                outcomes[position] = outcome
                with pause.working():
                    sums.take(position, outcome)
                self._meter.ran(len(cells[position].ids), outcome)
        for outcome in outcomes.values():
            for client, failure in outcome.failures.items():
                self._leave_out(client, failure)
        return [outcomes[position] for position in range(len(cells))], sums

    def _leave_out(self, client: int, failure: tuple[str, str]) -> None:
        """A client that fails takes no further part in the round and is as it was before it."""
        self._meter.failures[client] = failure
        if client in self.cohort:
            self.cohort.remove(client)
        self.next_state.restore(client, self._before)

    def _cost(self, ids: Sequence[int]) -> float:
        infos = [self._infos[i] for i in ids]
        return float(sum(info.nodes + 10 * info.train * info.nodes / max(info.items, 1) for info in infos))


def _pick(trees: Mapping[int, Tree], ids: Sequence[int]) -> dict[int, Tree]:
    return {i: trees[i] for i in ids if i in trees}
