"""The server: the loop of one round, from one committed state to the next.

`Server.round` has the steps of a round in their order; `shoal.engine.rounds.exchange.Exchange` runs them on clients.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Context, Requests
from shoal.algorithms.client import FlatModel
from shoal.algorithms.method_errors import OURS, ProtocolError, raise_named, yield_place
from shoal.algorithms.protocol import MODEL, Ask, Mix, Replies, Tree, creating_on, to_device
from shoal.algorithms.rng import CPU, key
from shoal.engine.config.sections import EVALUATED
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import model_of
from shoal.engine.messages.trainers import BATCHED
from shoal.engine.rounds.costs import MISSING, Meter, Pool, Watch, unwatched
from shoal.engine.rounds.evaluation import Columns, Evaluator, client_scores, newest
from shoal.engine.rounds.exchange import Exchange, Federation
from shoal.engine.rounds.protocol_checks import (
    checks_always,
    require_generator,
    require_notes,
    require_request,
    require_tree,
    require_untouched,
)
from shoal.engine.rounds.reduction import require_finite
from shoal.engine.rounds.sampling import Plan, cell_size_of
from shoal.engine.rounds.stage import SkipRound, make_stages
from shoal.engine.rounds.state import SELECTION, FederationState
from shoal.engine.scores.domains import Domains
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import SECTIONS
from shoal.storage.errors import ShoalError

# A feature changes the scores of the next state in it, and adds what that cost to the meter of the round.
FurtherEvaluation = Callable[["Server", FederationState, Meter], None]
# The line of a round has by this key, among missing clients, those that answered in vain.
UNREAD = "unread"
# It has the scores of every client by this key, until the driver writes them into a file of their own.
CLIENT_SCORES = "client_scores"


class Server:
    """The server, which owns the federation's state between rounds and runs one round after another.

    Attributes:
        state: After the last committed round.
        infos: Sizes of what training sees of all clients.
        graphs: Sizes of the whole graphs that are evaluated, one a domain, under numbers behind those of clients.
        federation: The clients, as exchanges reach them.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        pool: Pool,
        state: FederationState | None = None,
        device: torch.device = CPU,
    ) -> None:
        """Starts a run, or goes on from a state; the method's server part computes on `device`.

        Raises:
            ShoalError: The job does not fit its store, or the method's `setup` failed.
        """
        store = job.open_store()
        self.job, self.plan, self._pool, self._device = job, plan, pool, device
        self.algorithm: Algorithm = job.algorithm()
        self.infos, self.graphs = job.infos(job.open_training(store)), job.graph_infos(job.open_graphs(store))
        visited = self.infos.followed_by(self.graphs)
        self._features = store.manifest.features
        self._built = job.build_models(store, self.algorithm)
        self._models = {name: [built.info for built in built] for name, built in self._built.items()}
        self._initial = job.initial(model_of(self._built, self.infos[0], MODEL), MODEL, 0)
        self._version = self._initial._version
        # Initial parameters of other models, which a method may build in every round.
        self._initial_of: dict[tuple[str, int, int], Tensor] = {}
        trainers = job.trainers(store, self.algorithm, [built.flat for built in self._built[MODEL]])
        cell_size = cell_size_of(plan.cell_size, trainers)
        records = store.manifest.domains
        domains = Domains(records, self.graphs, job.metrics) if records else None
        self._scored = job.infos(store)
        self._evaluator = Evaluator(self.algorithm, self._scored, domains, job.metrics, plan.absent)
        self._further: list[FurtherEvaluation] = [
            load(section.evaluates)(job.stages[section.feature], plan.absent)
            for section in SECTIONS
            if section.evaluates and section.feature in job.stages
        ]
        stages = make_stages(job, plan)
        self._hides_sizes = any(stage.hides_sizes for stage in stages)
        self._acts_alone = any(stage.empty_rounds for stage in stages)
        # Methods must not see clients that never take part, nor any sizes where a stage hides them.
        self._known = self.infos.without_training(plan.absent) if plan.absent else self.infos
        self._known = self._known.without_sizes() if self._hides_sizes else self._known
        # Errors name this hook of the method, which runs now; empty: none does.
        self._hook = self._where = ""
        # The form of requests is checked in the first round of each phase, that of a user's own method always.
        self._checks_always = checks_always(self.algorithm)
        self._first_rounds: dict[str, int] = {}
        # The flag says that code of the user's trains.
        guarded = any(stage.guarded for stage in stages)
        guarded_run = guarded or bool(job.texts) or not type(self.algorithm).__module__.startswith(OURS)
        self.federation = Federation(visited, cell_size, pool, BATCHED in trainers, guarded_run, stages)
        self.state = FederationState(server=to_device(self._set_up(), CPU)) if state is None else state
        self.schedule = plan.schedule(plan, job, store, self.algorithm, self._built[MODEL])
        self._exchange: Callable[..., Exchange] = self.schedule.exchange or Exchange

    def cohort(self, round_number: int) -> list[int]:
        """Returns the clients of a round, ascending."""
        return self.schedule.cohort(round_number)

    def round(self, watch: Watch = unwatched) -> dict[str, Any]:
        """Runs and commits one round, and gives its line of metrics.jsonl; if it raises, the state is as before.

        Raises:
            ShoalError: A client failed, the method's code did, asked for what cannot be, or made NaN on the server.
        """
        # OpenMP keeps this number for every thread apart, and an actor may call from any.
        torch.set_num_threads(1)
        number = self.state.round + 1
        self._where = f"round {number}: {type(self.algorithm).__name__}"
        try:
            # 1. The round draws its cohort, and copies the state that it may change.
            drawn = self.schedule.begin(number, self.state.extras.get(SELECTION, {}))
            next_state = self.state.next_state(number)
            cohort = drawn.cohort
            meter = Meter(number, self.infos, self._pool, watch)
            missing = frozenset(i for those in drawn.missing.values() for i in those)
            exchange = self._exchange(self.federation, self.state, next_state, cohort, meter, missing)
            # 2. The method runs. A round without a cohort, or that a stage skips, changes nothing.
            records: Tree = {}
            try:
                exchange.begin()
                if cohort or self._acts_alone:
                    context = self.context(number, records if self.plan.keep_records else None)
                    self.run_method(exchange, context, partial(self.schedule.is_last_visit, number=number))
                    meter.note(context.notes)
            except SkipRound as skipped:
                records, next_state = {}, exchange.skip(skipped)
            # 3. The cohort is given the new model of the server, where there is one.
            self._hook = "global_model"
            before = {name: t.clone() for name, t in next_state.server.items()} if self._checks_always else None
            model = self.algorithm.global_model(next_state.server)
            if self._checks_form("global_model", number):
                require_tree(model, "the model")
            if before is not None:
                require_untouched(next_state.server, before)
            self._hook = ""
            next_state.deploy(model, exchange.cohort, self.schedule.needed_after(number))
            # 4. Clients whose model may have changed are evaluated, where an evaluation is due; all or a sample.
            sample = self.schedule.sample(number)
            due = self.schedule.evaluates(number) and sample != []
            with meter.scoring():
                for evaluate in self._further if due else ():
                    evaluate(self, next_state, meter)
                scopes = self._evaluator.evaluate(exchange, model, sample) if due else None
            # 5. The new state is committed.
            next_state.extras[SELECTION] = self.schedule.note(number, drawn.state, meter.losses, exchange.cohort)
            self.state = next_state
        except BaseException as error:
            raise_named(self.algorithm, self._hook, error, f"{self._where}: ")
        line = meter.line(exchange.cohort, scopes) | self.schedule.columns(number, exchange.cohort)
        if drawn.numbers:
            line |= {"participation": drawn.numbers, MISSING: drawn.missing}
        line |= exchange.columns
        if exchange.unread:
            line[MISSING] = {**drawn.missing, UNREAD: exchange.unread}
        if scopes is not None and sample is not None:
            line[EVALUATED] = len(sample)
        if exchange.predicted:
            line["predicted"] = exchange.predicted
        if self.job.train.schedule is not None:
            line["lr"] = self.job.train.in_round(number).lr
        return {**line, "records": records} if records and scopes is not None else line

    def add_scores(self, line: dict[str, Any]) -> dict[str, Any]:
        """Adds the scores of every client to the line of the newest round, if it evaluates and the run keeps them."""
        keeps = "scopes" in line and self.plan.keep_scores
        return {**line, CLIENT_SCORES: self.client_scores()} if keeps else line

    def run_method(self, exchange: Exchange, context: Context, is_last_visit: Callable[[int], bool]) -> None:
        """Drives `Algorithm.round`, on the server's device, to its end; then `exchange.next_state` is complete."""
        next_state, device = exchange.next_state, context.device
        server = to_device(next_state.server, device)
        self._hook = "round"
        requests = self.algorithm.round(server, context, list(exchange.cohort))
        checks_form = self._checks_form("round", next_state.round)
        if checks_form:
            require_generator(requests)
        # 2.1 The method makes a request, until it has none left: its new state is complete.
        while (request := self._next(requests, device, exchange)) is not None:
            self._hook = ""
            try:
                if isinstance(request, Ask):
                    # 2.2 An `Ask` runs a phase on clients: download, train, upload, and the uploads are reduced.
                    require_finite(request.shared, "the download")
                    require_finite(request.score_with, "the download of an evaluation")
                    for client, tree in request.private.items():
                        require_finite(tree, f"the download of client {client},")
                else:
                    # 2.3 A `Mix` multiplies what clients uploaded and the exchange holds.
                    exchange.reply = exchange.mix(request)
            except ShoalError as error:
                place = yield_place(self.algorithm, requests)
                raise ShoalError(self._where, f"{error.line} ({place})", detail=error.detail) from error
            if isinstance(request, Ask):
                exchange.reply = exchange.ask(request, is_last_visit)
            self._hook = "round"
        if checks_form:
            require_tree(server, "the server's state")
            require_notes(context.notes)
        self._require_initial_unchanged()
        self._hook = ""
        require_finite(server, f"{self._where}: the server's state")
        next_state.server = to_device(server, CPU)

    def _next(self, requests: Requests, device: torch.device, exchange: Exchange) -> Ask | Mix | None:
        """Gives the method the reply to its last request, and returns the next one, all of it on the processor; None:
        the end.
        """
        reply = exchange.reply
        if isinstance(reply, Replies) and device != CPU:
            lists = {name: [t.to(device) for t in tensors] for name, tensors in reply.lists.items()}
            reply = Replies(reply.ids, to_device(reply.entries, device), to_device(reply.weights, device), lists)
        elif isinstance(reply, Tensor):
            reply = reply.to(device)
        try:
            with creating_on(device):
                request = requests.send(reply)
        except StopIteration:
            return None
        phase = request.phase if isinstance(request, Ask) else "Mix"
        if self._checks_form(str(phase), exchange.next_state.round):
            try:
                require_request(request, len(self.infos))
            except ProtocolError as error:
                place = yield_place(self.algorithm, requests)
                raise ShoalError(self._where, f"{place}, in round(): {error}") from None
        if device == CPU:
            return request
        if isinstance(request, Mix):
            return replace(request, rows=request.rows.to(CPU))
        private = {client: to_device(tree, CPU) for client, tree in request.private.items()}
        shared, score_with = to_device(request.shared, CPU), to_device(request.score_with, CPU)
        return replace(request, shared=shared, private=private, score_with=score_with)

    def _checks_form(self, phase: str, number: int) -> bool:
        return self._checks_always or self._first_rounds.setdefault(phase, number) == number

    def client_scores(self) -> Columns:
        """Returns the newest scores of every client, or of the sample; see `shoal.engine.rounds.evaluation`."""
        return client_scores(newest(self.state, self.schedule.sample(self.state.round)), self.job.metrics)

    def _set_up(self) -> Tree:
        try:
            self._hook = "setup"
            context = self.context(0)
            with creating_on(self._device):
                if self._hides_sizes:
                    # Sizes may end the run, and leave no trace in it.
                    self.algorithm.setup(replace(context, clients=self.infos, scored=self._scored))
                server = self.algorithm.setup(context)
            require_tree(server, "the server's state")
            self._require_initial_unchanged()
            self._hook = ""
        except BaseException as error:
            raise_named(self.algorithm, self._hook, error)
        return server

    def _require_initial_unchanged(self) -> None:
        # A tensor counts how often it was written to; nothing of the engine writes into this one.
        if self._initial._version != self._version:
            raise ProtocolError(
                "writes into ctx.initial, which every round reads; take a copy first, ctx.initial.clone()"
            )

    def context(self, round_number: int, records: Tree | None = None) -> Context:
        scheduled = self.job.train.schedule is not None
        return Context(
            clients=self._known,
            scored=self._known if self._hides_sizes else self._scored,
            classes=self.infos[0].classes,
            features=self._features,
            hops=self.job.hops,
            # Before the first round it is that of the first.
            train=self.job.train.in_round(max(round_number, 1)) if scheduled else self.job.train,
            models=self._models,
            initial=self._initial.to(self._device),
            build=self._build,
            device=self._device,
            round=round_number,
            rounds=self.plan.rounds,
            seed=self.job.seed,
            random=partial(key, self.job.seed, round_number, "server"),
            records=records,
        )

    def _build(self, name: str, number: int = 0) -> FlatModel:
        """Builds a model for the method's server part, on the server's device; nothing else uses its memory."""
        built = self._built[name][number]
        # The first client of the kind gives initial parameters, which are those of all unless each has its own.
        client = next((info.client for info in self.infos if info.model == number), 0)
        kind = name, number, client
        if kind not in self._initial_of:
            self._initial_of[kind] = self.job.initial(built, name, client)
        model = built.flat.on(self._device)
        model.load(self._initial_of[kind])
        return model
