"""A finished run whose rounds are made again, in memory: without what is removed, from the round that saw it first."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.method_errors import code_of
from shoal.algorithms.protocol import Reduce, Tree
from shoal.engine.config.config import load_config
from shoal.engine.hosts.backend import LocalBackend, server_device
from shoal.engine.messages.cell import Cell, one_by_one
from shoal.engine.messages.job import Job, make_job
from shoal.engine.records.run_folder import finished, parent_of, read_summary
from shoal.engine.rounds.costs import MISSING, unwatched
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.interrupt import graceful
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import options_of
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.unlearning.removal import Removal, without

# A mean of uploads by this name is the model.
MODEL_ENTRY = "w"


@dataclass(frozen=True)
class Trained:
    """A state that was trained, and the work: rounds, and visits of clients."""

    state: FederationState
    rounds: int
    visits: int


@dataclass(frozen=True)
class Sent:
    """An upload of a client in a round that was made again.

    Attributes:
        change: Its parameters minus those that it received, float32 `[P]`.
        weight: Weight of its upload in the mean.
    """

    client: int
    change: Tensor
    weight: float


class _AllMade(Exception):
    """A sign that all visits of the round were made, so that the round may stop."""


class Visits(LocalBackend):
    """A host that makes each visit of a round alone, and notes what was sent.

    Attributes:
        sent: Uploads of the clients of the round.
        ends: Stop the round behind its visits.
        epochs: Epochs of local training; None: those of the run.
    """

    def __init__(self, device: torch.device, ends: bool) -> None:
        """Computes on a device."""
        super().__init__(device)
        self.ends = ends
        self.epochs: int | None = None
        self.sent: list[Sent] = []

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Any:
        averaged = [cell for cell in cells if cell.train is not None and cell.up.get(MODEL_ENTRY) is Reduce.MEAN]
        for cell in averaged if MODEL_ENTRY in shared else ():
            self._visit(cell, shared)
        if self.ends and self.sent:
            raise _AllMade
        return super().run_cells(cells, shared)

    def _visit(self, cell: Cell, shared: Tree) -> None:
        assert cell.train is not None
        train = cell.train if self.epochs is None else cell.train._replace(epochs=self.epochs)
        whole = replace(cell, again=None, score=frozenset(), stages=replace(cell.stages, rows=True), train=train)
        for alone in one_by_one(whole):
            ((_, outcome),) = super().run_cells([alone], shared)
            for client in outcome.ids:
                w, weight = outcome.tensors[MODEL_ENTRY][0], float(outcome.lists[MODEL_ENTRY][0])
                self.sent.append(Sent(client, w - shared[MODEL_ENTRY], weight))


class Retraining:
    """Makes rounds of a finished run again.

    Attributes:
        past: The run.
        rounds: Rounds of the run.
        final: Its state after the last one.
        first: Round by client in which it was asked first; clients that never were are missing.
    """

    def __init__(self, past: PastRun) -> None:
        """Reads the record. Raises ShoalError: nothing can be removed exactly from the run."""
        self.past, self.rounds = past, len(past.lines)
        require_removable(past)
        self.device = server_device(past.config)
        self.first = first_visits(past)
        self._backend = LocalBackend(self.device)

    @cached_property
    def final(self) -> FederationState:
        """The state after the last round. Raises ShoalError: as `PastRun.after`."""
        after = self.past.after(self.rounds)
        assert after is not None
        return after.state

    def model(self, state: FederationState) -> Tree:
        """Returns the server's model of a state."""
        method = self.past.plan.algorithm
        with code_of(method, "global_model"):
            model: Tree = method.global_model({name: t.clone() for name, t in state.server.items()})
        return model

    @cached_property
    def beginning(self) -> FederationState:
        """The state before the first round."""
        job, plan = self.job(None, self.rounds)
        return Server(job, plan, self._backend.enter(job), None, self.device).state

    def seen(self, removal: Removal) -> int:
        """Returns the round that first saw what is removed; 0: none did."""
        return min((self.first[i] for i in removal.touched if i in self.first), default=0)

    def job(self, removal: Removal | None, rounds: int, name: str = "") -> tuple[Job, Plan]:
        """Makes a job of the run, or of its rest, for so many rounds, of which the last one is evaluated."""
        past = self.past
        keys = [f"evaluation.every={rounds}", "evaluation.clients=all", "evaluation.last=all"]
        if rounds > past.config.rounds:
            keys.append(f"rounds={rounds}")
        if removal is not None and removal.clients:
            keys.append(f"participation.without={sorted({*past.config.participation.without, *removal.clients})}")
        plan = RunPlan.of(load_config(past.path, keys))
        digits = "whole" if removal is None else removal.digits
        job = make_job(plan.config, past.store, f"{past.path.name} {digits} {rounds} {name}")
        return (job if removal is None else without(job, removal)), plan.rounds

    def train_exactly(self, removal: Removal) -> Trained:
        """Trains the run without what is removed, from the round before the first that saw it."""
        first = self.seen(removal)
        if not first:
            return Trained(self.final, 0, 0)
        job, plan = self.job(removal, max(self.rounds, self.past.config.rounds))
        shared = first - 1
        if shared and self._starts_otherwise(removal, job, plan):
            say(f"{removal.name}: the method's first state depends on it; all rounds are trained again")
            shared = 0
        before = self.past.after(shared) if shared else None
        return self.run(job, plan, None if before is None else before.state, self.rounds - shared)

    def _starts_otherwise(self, removal: Removal, job: Job, plan: Plan) -> bool:
        """Returns whether a method keeps another state before the first round without what is removed."""
        if not (removal.items or removal.cuts):
            return False
        begins = Server(job, plan, self._backend.enter(job), None, self.device).state.server
        whole = self.beginning.server
        return begins.keys() != whole.keys() or not all(torch.equal(begins[name], whole[name]) for name in whole)

    def run(
        self,
        job: Job,
        plan: Plan,
        state: FederationState | None,
        rounds: int,
        change: Callable[[Tree], Tree] | None = None,
    ) -> Trained:
        """Runs rounds of a job after a state; `change` makes the server's state of what a round left of it."""
        visits = 0
        server = Server(job, plan, self._backend.enter(job), state, self.device)
        with graceful() as interrupt:
            for _ in range(rounds):
                visits += len(server.round(unwatched)["cohort"])
                if change is not None:
                    server.state = replace(server.state, server=change(server.state.server))
                interrupt.require_none()
        return Trained(server.state, rounds, visits)

    def visit(self, job: Job, plan: Plan, number: int, w: Tensor, epochs: int | None) -> list[Sent]:
        """Returns what the clients of a round send who train from parameters `[P]`, each without what it kept."""
        host, job = self._visits, job.without_stage("secure")
        host.sent, host.epochs = [], epochs
        server = Server(job, plan, host.enter(job), None, self.device)
        server.state = replace(server.state, round=number - 1, server={**server.state.server, MODEL_ENTRY: w})
        with suppress(_AllMade):
            server.round(unwatched)
        return host.sent

    @cached_property
    def _visits(self) -> Visits:
        return Visits(self.device, ends=True)

    def replay(self, keep: Callable[[int, list[Sent]], None]) -> None:
        """Makes all rounds of the run once more, and gives what clients sent to `keep`, with the round's number.

        Raises ShoalError: the method averages no models.
        """
        job, plan = self.job(None, max(self.rounds, self.past.config.rounds), "recorded")
        # Masked uploads are other numbers with the same sum.
        job, host = job.without_stage("secure"), Visits(self.device, ends=False)
        server = Server(job, plan, host.enter(job), None, self.device)
        with graceful() as interrupt:
            for number in range(1, self.rounds + 1):
                host.sent = []
                line = server.round(unwatched)
                if line["cohort"] and not host.sent:
                    name = self.past.config.algorithm.name
                    why = f"{name} averages no models that clients train from one of the server"
                    raise ShoalError(
                        self.past.path, "algorithm.name", f"{why}; take --methods fine_tune,forgetting_head"
                    )
                keep(number, host.sent)
                interrupt.require_none()

    def close(self) -> None:
        """Ends what trains."""
        self._backend.close()


def first_visits(past: PastRun) -> dict[int, int]:
    """Returns by client the round in which it was asked first, whether or not it answered in time."""
    first: dict[int, int] = {}
    for number in range(len(past.lines), 0, -1):
        missing = past.lines[number - 1].get(MISSING, {})
        first.update(dict.fromkeys([*past.cohort(number), *(i for those in missing.values() for i in those)], number))
    return first


def require_removable(past: PastRun) -> None:
    """Raises ShoalError: nothing can be removed from the run exactly, or its model cannot be scored."""
    path, config = past.path, past.config
    if not finished(path) or parent_of(path):
        why = "is a fork of another run" if finished(path) else "is not finished"
        raise ShoalError(path, f"{why}; unlearning is of a finished run that began with its first round")
    past.require_classes("unlearning")
    if options_of(config, "cross_edges") is not None:
        raise ShoalError(path, "data.cross_edges", "hops of others hold sums of a client's nodes; take a run with drop")
    private = options_of(config, "privacy")
    if private is not None and private.unit == "client":
        raise ShoalError(path, "privacy.unit", "client hides who takes part, and a removal leaves some out; take node")
    if past.plan.algorithm.centralized:
        name = config.algorithm.name
        raise ShoalError(path, "algorithm.name", f"{name} trains on all data at once; take a method of clients")
    if not config.schedule.synchronous or options_of(config, "selection") is not None:
        raise ShoalError(path, "schedule", "who is asked depends on what others trained; take a synchronous, drawn one")
    if "global" not in read_summary(path)["scopes"]:
        name = config.algorithm.name
        raise ShoalError(path, "algorithm.name", f"{name} has no model at the server to score; take one, as fedavg")
