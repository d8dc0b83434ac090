"""The server: the loop of one round, from one committed state to the next.

`Server.round` has the steps of a round in their order; `Exchange` runs them on clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Context, Requests
from shoal.algorithms.client import ClientTable, FlatModel
from shoal.algorithms.method_errors import OURS, ProtocolError, raise_named, yield_place
from shoal.algorithms.protocol import MODEL, Ask, Mix, Replies, Tree
from shoal.algorithms.rng import CPU, creating_on, key, to_device
from shoal.engine.config.sections import EVALUATED, NEWCOMERS, NEWCOMERS_TRAINED
from shoal.engine.messages.cell import NO_STAGES, Cell, OfStages, Outcome
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import model_of
from shoal.engine.messages.trainers import BATCHED
from shoal.engine.rounds.costs import MISSING, Meter, Pool, Watch, unwatched, working_clock
from shoal.engine.rounds.domains import Domains
from shoal.engine.rounds.evaluation import Columns, Evaluator, client_scores, newest
from shoal.engine.rounds.protocol_checks import (
    checks_always,
    require_generator,
    require_notes,
    require_request,
    require_tree,
    require_untouched,
)
from shoal.engine.rounds.reduction import Sums, Uploads, combine, require_finite
from shoal.engine.rounds.sampling import Group, Plan, cell_size_of, evaluation_cell, form_cells
from shoal.engine.rounds.stage import Phase, Round, SkipRound, Stage, ToHosts, make_stages
from shoal.engine.rounds.state import IN_BLOCK, SELECTION, FederationState, ScoreTable
from shoal.storage.errors import ShoalError

TreeT = TypeVar("TreeT")
# The line of a round has by this key, among missing clients, those that answered in vain.
UNREAD = "unread"
# A prediction has scope, client, part, and predicted classes and labels `[2, items]`.
Predicted = tuple[str, int, str, np.ndarray]


class Server:
    """The server, which owns the federation's state between rounds and runs one round after another.

    Attributes:
        state: After the last committed round.
        infos: Sizes of what training sees of all clients.
        graphs: Sizes of the whole graphs that are evaluated, one a domain, under numbers behind those of clients.
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
        self._visited = self.infos.followed_by(self.graphs)
        self._features = store.manifest.features
        self._built = job.build_models(store, self.algorithm)
        self._models = {name: [built.info for built in built] for name, built in self._built.items()}
        self._initial = job.initial(model_of(self._built, self.infos[0], MODEL), MODEL, 0)
        self._version = self._initial._version
        trainers = job.trainers(store, self.algorithm, [built.flat for built in self._built[MODEL]])
        self._batched = BATCHED in trainers
        self._cell_size = cell_size_of(plan.cell_size, trainers)
        records = store.manifest.domains
        domains = Domains(records, self.graphs, job.metrics) if records else None
        self._scored = job.infos(store)
        self._evaluator = Evaluator(self.algorithm, self._scored, domains, job.metrics, plan.newcomers)
        self._stages = make_stages(job, plan)
        self._hides_sizes = any(stage.hides_sizes for stage in self._stages)
        self._acts_alone = any(stage.empty_rounds for stage in self._stages)
        # Methods must not see newcomers, so their sizes are left out; nor any sizes where a stage hides them.
        self._known = self.infos.without_training(plan.newcomers) if plan.newcomers else self.infos
        self._known = self._known.without_sizes() if self._hides_sizes else self._known
        # Errors name this hook of the method, which runs now; empty: none does.
        self._hook = self._where = ""
        # The form of requests is checked in the first round of each phase, that of a user's own method always.
        self._checks_always = checks_always(self.algorithm)
        self._first_rounds: dict[str, int] = {}
        # The flag says that code of the user's trains.
        guarded = any(stage.guarded for stage in self._stages)
        self._own = guarded or bool(job.texts) or not type(self.algorithm).__module__.startswith(OURS)
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
        torch.set_num_threads(self.job.threads)
        number = self.state.round + 1
        self._where = f"round {number}: {type(self.algorithm).__name__}"
        try:
            # 1. The round draws its cohort, and copies the state that it may change.
            drawn = self.schedule.begin(number, self.state.extras.get(SELECTION, {}))
            next_state = self.state.next_state(number)
            cohort = drawn.cohort
            meter = Meter(number, self.infos, self._pool, watch)
            exchange = self._exchange(
                self._visited, self._cell_size, self._pool, self.state, next_state, cohort, meter, self._batched,
                self._own, self._stages, frozenset(i for those in drawn.missing.values() for i in those),
            )  # fmt: skip
            # 2. The method runs. A round without a cohort, or that a stage skips, changes nothing.
            records: Tree = {}
            try:
                exchange.begin()
                if cohort or self._acts_alone:
                    context = self._context(number, records if self.plan.keep_records else None)
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
                if due and self.plan.newcomers:
                    self._welcome(next_state, meter)
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

    def run_method(self, exchange: "Exchange", context: Context, is_last_visit: Callable[[int], bool]) -> None:
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

    def _welcome(self, next_state: FederationState, meter: Meter) -> None:
        """Scores newcomers as if a further round, which leaves nothing behind, were theirs alone."""
        number, newcomers = next_state.round, self.plan.newcomers
        theirs = replace(next_state.next_state(number), first_losses={})
        exchange = Welcome(
            self._visited, self._cell_size, self._pool, next_state, theirs, newcomers,
            Meter(number, self.infos, self._pool, unwatched), self._batched,
        )  # fmt: skip
        exchange.epochs = self.plan.newcomer_epochs
        self.run_method(exchange, replace(self._context(number), clients=self.infos), lambda client: True)
        # Where a method trains nobody in this round, it gives nothing new.
        next_state.scores[NEWCOMERS] = exchange.given or exchange.score(newcomers, {})
        meter.add_evaluation(exchange.meter)
        next_state.scores[NEWCOMERS_TRAINED] = theirs.scores.get("trained", ScoreTable()).only(np.array(newcomers))

    def _next(self, requests: Requests, device: torch.device, exchange: "Exchange") -> Ask | Mix | None:
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
            context = self._context(0)
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

    def _context(self, round_number: int, records: Tree | None = None) -> Context:
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
        w = self.job.initial(built, name, client)
        model = built.flat.on(self._device)
        model.load(w)
        return model


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
        infos: ClientTable,
        cell_size: int | str,
        pool: Pool,
        before: FederationState,
        next_state: FederationState,
        cohort: Sequence[int],
        meter: Meter,
        batched: bool = False,
        repeats: bool = False,
        stages: Sequence[Stage] = (),
        missing: frozenset[int] = frozenset(),
    ) -> None:
        """Prepares phases of one round; `before` is the state it started from, `next_state` a copy that it changes.

        With `repeats` one visit in each phase of round 1 is made twice, and compared. `infos` has the sizes of all
        clients, and of whole graphs that are evaluated; for `cell_size` see `form_cells`. Clients that were drawn and
        take no part to the end are `missing`.
        """
        self._batched, self._repeats, self._stages, self._missing = batched, repeats, stages, missing
        self._whole = next((stage for stage in stages if stage.whole), None)
        # The flag says whether uploads wait for a later step.
        self._ahead = False
        self._infos, self._cell_size, self._pool, self._start = infos, cell_size, pool, before
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
        """Runs a phase as `Exchange.ask`.

        A client that does not train again before the next evaluation (`is_last_visit`) is evaluated now, as it is after
        its last local step.

        Raises:
            ShoalError: No client answered, or a stage does not take such uploads.
            SkipRound: A stage cannot answer.
        """
        next_state = self.next_state
        ids = sorted(set(self.cohort if ask.to is None else ask.to) - self.meter.failures.keys())
        # Whoever trains first in a phase of round 1 does so twice, if it is code of the user's.
        able = [i for i in ids if self._infos[i].train] if self._repeats and ask.train else []
        again = able[0] if able and next_state.round == 1 else None
        score = frozenset(i for i in ids if ask.train and ask.score and is_last_visit(i))
        groups = form_cells(ids, self._infos, self._cell_size, self._pool.hosts[1])
        phase = self._before(ask, ids)
        cells = [self._cell(ask, next_state.round, group, score, again) for group in groups]
        self.meter.count_downloads(ask, ids)
        outcomes, sums, _ = self._run(cells, ask.shared)
        answered = self._take(ask, ids, outcomes)
        if self._whole is not None and answered:
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
        return Cell(
            number, ids, ask.phase, ask.up, ask.train, _pick(ask.private, ids), _pick(next_state.clients, ids),
            _pick(next_state.inboxes, ids), score & frozenset(ids), self._cost(ids),
            score_with=ask.score_with if score & frozenset(ids) else {}, batched=self._batched and ask.train,
            again=again, first_loss=next_state.first_losses.get(ask.phase, math.inf),
            kept=_pick(next_state.kept, ids), places=group.places, epochs=self.epochs, stages=self._of_stages,
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
            for cell in form_cells(ids, self._infos, self._cell_size, self._pool.hosts[1])
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
        return [outcomes[position] for position in range(len(cells))], sums, [*tables, ScoreTable(counts)]

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


class Welcome(Exchange):
    """A round of newcomers: they are scored before the first local training that the method asks of them, too.

    Attributes:
        given: Counts after the first download with which a newcomer trains, before it does.
    """

    given: ScoreTable | None = None

    def ask(self, ask: Ask, is_last_visit: Callable[[int], bool]) -> Replies:
        """Runs a phase as `Exchange.ask`."""
        if ask.train and self.given is None:
            self.given = self.score(self.cohort, {**ask.shared, **ask.score_with}, private=ask.private)
        return super().ask(ask, is_last_visit)


def _pick(trees: Mapping[int, TreeT], ids: Sequence[int]) -> dict[int, TreeT]:
    return {i: trees[i] for i in ids if i in trees}
