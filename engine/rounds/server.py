"""The server: drives the method's generator through one round after another."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from algorithms.base import Algorithm, Context
from algorithms.protocol import Ask, Mix, Replies, Tree
from algorithms.training.local_training import MOMENTS
from engine.rounds.evaluation import summarize
from engine.rounds.reduction import Sums, combine, tree_bytes
from engine.rounds.sampling import draw_cohort
from engine.rounds.state import FederationState
from engine.settings.sections import ParticipationOptions
from engine.wire.cell import Outcome, Work, evaluation, form_cells
from engine.wire.job import Job
from engine.wire.live import Live, Watch, unwatched
from engine.wire.randomness import key
from storage.errors import ShoalError
from storage.store import Store

COLUMNS_AT_A_TIME = 2**20


class Pool(Protocol):
    """Where cells are served: hosts on Ray, or this process.

    Attributes:
        retried: How often a cell, or a client of one, was lost with its host, since the pool was made.
        hosts: Hosts that serve, of how many.
        transfer: Seconds this process spent on sending works and taking in outcomes, since the pool was made.
    """

    retried: int
    transfer: float

    @property
    def hosts(self) -> tuple[int, int]: ...

    def events(self) -> list[str]:
        """What happened to hosts since this was last asked, a line each."""
        ...

    def run(self, works: Sequence[Work], shared: Tree) -> Iterable[tuple[int, Outcome]]:
        """Serves cells in any order; yields the position of each with its outcome."""
        ...


@dataclass(frozen=True)
class Plan:
    """What the round loop needs of a config.

    Attributes:
        rounds: Number of rounds.
        participation: How many clients a cohort has.
        evaluate_every: Rounds between evaluations of all clients.
        cell_size: Clients of a cell, or `auto`.
        online: Who is online in which round, bool `[rounds, clients]`; None: everybody.
    """

    rounds: int
    participation: ParticipationOptions
    evaluate_every: int
    cell_size: int | str
    online: np.ndarray | None = None


class Server:
    """Aggregates; owns the federation's state between rounds."""

    def __init__(self, job: Job, plan: Plan, pool: Pool, state: FederationState | None = None) -> None:
        """Starts a run, or goes on from a state.

        Raises:
            ShoalError: The job does not fit its store.
        """
        store = Store(job.store_path)
        self.job, self.plan, self.pool = job, plan, pool
        self.algorithm: Algorithm = job.algorithm()
        self.infos = job.infos(store)
        self._nodes = {info.client: info.nodes for info in self.infos}
        models = job.build_models(store)
        self._parameters = [len(models[info.model].w) for info in self.infos]
        self._initial = job.initial(models, 0)
        self._last_visits: dict[int, dict[int, int]] = {}
        if state is None:
            state = FederationState(server=self.algorithm.setup(self._context(0)))
        self.state = state

    def _context(self, round_number: int) -> Context:
        return Context(
            self.infos,
            self.infos[0].classes,
            self._parameters,
            self._initial,
            round_number,
            self.plan.rounds,
            self.job.seed,
            partial(key, self.job.seed, round_number, "server"),
        )

    def cohort(self, round_number: int) -> list[int]:
        """The clients of a round, ascending."""
        return draw_cohort(len(self.infos), self.plan.participation, self.job.seed, round_number, self.plan.online)

    def next_evaluation(self, round_number: int) -> int:
        """The first round from this one on that ends with an evaluation."""
        every = self.plan.evaluate_every
        return min(-(-round_number // every) * every, self.plan.rounds)

    def last_visits(self, round_number: int) -> dict[int, int]:
        """The last round before the next evaluation, itself included, in which each client takes part."""
        end = self.next_evaluation(round_number)
        if end not in self._last_visits:
            rounds = range(round_number, end + 1)
            self._last_visits = {end: {client: later for later in rounds for client in self.cohort(later)}}
        return self._last_visits[end]

    def round(self, watch: Watch = unwatched) -> dict[str, Any]:
        """Runs and commits one round; if it raises, the state is as before.

        Args:
            watch: Called whenever a cell was served.

        Returns:
            The round's line of metrics.jsonl.
        """
        # OpenMP keeps this number for every thread apart, and an actor may call from any.
        torch.set_num_threads(self.job.threads)
        number = self.state.round + 1
        work = _Round(self, number, watch)
        self.state = work.run()
        return work.report()


class _Round:
    """One round at work on a draft of the state."""

    def __init__(self, server: Server, number: int, watch: Watch) -> None:
        self.server, self.number, self.watch = server, number, watch
        self.algorithm = server.algorithm
        self.draft = server.state.draft()
        self.draft.round = number
        self.cohort = server.cohort(number)
        self.held: Tree = {}
        self.losses: dict[int, float] = {}
        self.notes: dict[str, float] = {}
        self.failures: dict[int, tuple[str, str]] = {}
        self.bytes_up = 0
        self.bytes_down = 0
        self.served = self.asked = 0
        self.retried_before = server.pool.retried
        self.transfer_before = server.pool.transfer
        self.began = time.perf_counter()
        self.seconds = dict.fromkeys(("train", "upload", "evaluate", "aggregate", "wait"), 0.0)
        self.waited = 0.0
        self.last_visits = server.last_visits(number)

    @property
    def evaluates(self) -> bool:
        return self.number == self.server.next_evaluation(self.number)

    def run(self) -> FederationState:
        # 1. The method's part: ask, mix, ask again. A round without a cohort changes nothing.
        if self.cohort:
            self._drive_method()
        # 2. The cohort is served the new model, where there is one.
        if served := self.algorithm.serve(self.draft.server):
            self.draft.downloads[self.number] = {name: t.clone() for name, t in served.items()}
            self.draft.newest.update(dict.fromkeys(self.cohort, self.number))
            self.draft.touched.update(dict.fromkeys(self.cohort, False))
            used = set(self.draft.newest.values())
            self.draft.downloads = {r: tree for r, tree in self.draft.downloads.items() if r in used}
        # 3. Evaluation of all clients whose model changed.
        if self.evaluates:
            self._evaluate(bool(served))
        return self.draft

    def _drive_method(self) -> None:
        context = self.server._context(self.number)
        self.notes = context.notes
        steps = self.algorithm.round(self.draft.server, context, self.cohort)
        reply: Replies | Tensor | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration:
                return
            reply = self._ask(step) if isinstance(step, Ask) else self._mix(step)

    def _ask(self, ask: Ask) -> Replies:
        ids = sorted(set(self.cohort if ask.to is None else ask.to) - self.failures.keys())
        cells = form_cells(ids, self.server.infos, self.server.plan.cell_size)
        scored = ask.fit if ask.scored is None else ask.scored
        # Not those that train again before they are evaluated.
        score = frozenset(i for i in ids if scored and self.last_visits.get(i, self.number) <= self.number)
        works = [
            Work(
                self.number,
                cell,
                ask.phase,
                ask.up,
                ask.fit,
                private=_pick(ask.private, cell),
                states=_pick(self.draft.clients, cell),
                inboxes=_pick(self.draft.inboxes, cell),
                score=score & frozenset(cell),
                cost=self._cost(cell),
            )
            for cell in cells
        ]
        for i in ids:
            self.bytes_down += tree_bytes({**ask.shared, **ask.private.get(i, {})})
        outcomes, sums = self._serve(works, ask.shared)
        for outcome in outcomes:
            self.draft.clients.update(outcome.states)
            self.draft.touched.update({i: i in outcome.scores for i in outcome.ids})
            self.draft.scores.setdefault("trained", {}).update(outcome.scores)
            if ask.fit:
                self.losses.update(zip(outcome.ids, outcome.losses))
        answered = [outcome for outcome in outcomes if outcome.ids]
        if ids and not answered:
            line, detail = next(iter(outcomes[0].failures.values()))
            raise ShoalError(f"no client of the cohort answered; the first: {line}", detail)
        replies, held = combine(answered, [i for outcome in answered for i in outcome.ids], ask.up, sums)
        self.held.update(held)
        return replies

    def _mix(self, mix: Mix) -> Tensor:
        if mix.entry not in self.held:
            raise ShoalError(f"round(): Mix({mix.entry!r}) before any Ask uploaded it as How.MIX")
        held = self.held[mix.entry]
        flat = held.reshape(len(held), -1)
        rows = mix.rows.to(flat.dtype)
        result = torch.empty(*rows.shape[:-1], flat.shape[1])
        for start in range(0, flat.shape[1], COLUMNS_AT_A_TIME):
            result[..., start : start + COLUMNS_AT_A_TIME] = rows @ flat[:, start : start + COLUMNS_AT_A_TIME]
        result = result.reshape(*rows.shape[:-1], *held.shape[1:])
        for row, client in enumerate(mix.dst or ()):
            inbox = self.draft.inboxes.setdefault(client, {})
            # A copy, so that a client's inbox does not hold the whole product in memory.
            inbox[mix.entry] = result[row].clone()
            self.bytes_down += inbox[mix.entry].nbytes
            self.draft.touched[client] = False
        return result

    def _serve(self, works: Sequence[Work], shared: Tree) -> tuple[list[Outcome], Sums]:
        began, adding = time.perf_counter(), 0.0
        outcomes: dict[int, Outcome] = {}
        sums = Sums()
        self.asked += sum(len(work.ids) for work in works)
        for position, outcome in self.server.pool.run(works, shared):
            outcomes[position] = outcome
            adding -= time.perf_counter()
            sums.take(position, outcome)
            adding += time.perf_counter()
            self.served += len(works[position].ids)
            self.bytes_up += sum(outcome.bytes_up)
            self.watch(self._live())
        self.waited += time.perf_counter() - began - adding
        for outcome in outcomes.values():
            for client, failure in outcome.failures.items():
                self._leave_out(client, failure)
            for part, spent in outcome.seconds.items():
                self.seconds[part] += spent
        return [outcomes[position] for position in range(len(works))], sums

    def _live(self) -> Live:
        return Live(
            self.number, self.served, self.asked, self.bytes_up, self.bytes_down, self.server.pool.hosts, self.retries
        )

    @property
    def retries(self) -> int:
        return self.server.pool.retried - self.retried_before

    def _leave_out(self, client: int, failure: tuple[str, str]) -> None:
        """A client that fails takes no further part in the round and is as it was before it."""
        self.failures[client] = failure
        if client in self.cohort:
            self.cohort.remove(client)
        before = self.server.state.clients
        if client in before:
            self.draft.clients[client] = before[client]
        else:
            self.draft.clients.pop(client, None)

    def _cost(self, cell: Sequence[int]) -> float:
        return float(sum(self.server.infos[i].nodes + 10 * self.server.infos[i].train for i in cell))

    def _evaluate(self, has_model: bool) -> None:
        everyone = [info.client for info in self.server.infos]
        draft = self.draft
        known = draft.scores.setdefault("served", {})
        stale = {i for i in everyone if i in draft.touched or i not in known}
        if has_model:
            # The model of the server on every client's rows; clients that hold nothing else are served just this.
            draft.scores["global"] = self._scored(everyone, self.algorithm.serve(draft.server), fresh=True)
            same = {i for i in stale if draft.newest.get(i) == self.number and not self._holds_own(i)}
            known.update({i: counts for i, counts in draft.scores["global"].items() if i in same})
        elif self.algorithm.keeps_model:
            # They deploy what they trained.
            same = {i for i in stale if draft.touched.get(i) and i not in draft.inboxes}
            known.update({i: draft.scores["trained"][i] for i in same})
        else:
            same = set()
        for round_number in sorted({draft.newest.get(i, 0) for i in stale - same}):
            group = [i for i in sorted(stale - same) if draft.newest.get(i, 0) == round_number]
            known.update(self._scored(group, draft.downloads.get(round_number, {})))
        draft.touched.clear()

    def _holds_own(self, client: int) -> bool:
        """Whether the client keeps anything that may make its model differ from a download."""
        kept = self.draft.clients.get(client, {})
        return client in self.draft.inboxes or not all(name.startswith(MOMENTS) for name in kept)

    def _scored(self, ids: Sequence[int], download: Tree, fresh: bool = False) -> dict[int, Any]:
        """Counts of some clients after a download; `fresh` ones bring nothing of their own."""
        cells = form_cells(ids, self.server.infos, self.server.plan.cell_size)
        states = {} if fresh else self.draft.clients
        inboxes = {} if fresh else self.draft.inboxes
        works = [evaluation(self.number, cell, states, inboxes, self._cost(cell)) for cell in cells]
        outcomes, _ = self._serve(works, download)
        return {i: counts for outcome in outcomes for i, counts in outcome.scores.items()}

    def report(self) -> dict[str, Any]:
        total = time.perf_counter() - self.began
        on_hosts = sum(self.seconds[part] for part in ("train", "upload", "evaluate"))
        self.seconds["transfer"] = self.server.pool.transfer - self.transfer_before
        self.seconds["wait"] = self.waited - self.seconds["transfer"]
        self.seconds["aggregate"] = total - self.waited
        rows = [(self.server.infos[i].train, loss) for i, loss in self.losses.items() if self.server.infos[i].train]
        weight = sum(train for train, _ in rows)
        line: dict[str, Any] = {
            "round": self.number,
            "cohort": self.cohort,
            "loss": sum(train * loss for train, loss in rows) / weight if weight else None,
            "retries": self.retries,
            "hosts": dict(zip(("alive", "of"), self.server.pool.hosts)),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            # As papers count: four bytes each.
            "scalars_up": self.bytes_up / 4,
            "scalars_down": self.bytes_down / 4,
            "seconds": {"round": total, "hosts": on_hosts, **self.seconds},
        }
        if self.failures:
            line["failures"] = {str(i): text for i, text in self.failures.items()}
        if self.notes:
            line["notes"] = self.notes
        if self.evaluates:
            scores = self.draft.scores
            # A client that never trained is evaluated with what it was given.
            scopes = {**scores, "trained": {**scores["served"], **scores.get("trained", {})}}
            line["scopes"] = {scope: summarize(by_client, self.server._nodes) for scope, by_client in scopes.items()}
        return line


def _pick(trees: Mapping[int, Tree], ids: Sequence[int]) -> dict[int, Tree]:
    return {i: trees[i] for i in ids if i in trees}
