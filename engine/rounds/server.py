"""The server: leads the federation from one committed state to the next."""

from functools import partial
from typing import Any

import torch

from shoal.algorithms.base import Algorithm, Context
from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.method_errors import ProtocolError, code_of
from shoal.algorithms.protocol import MODEL, Tree
from shoal.engine.messages.devices import CPU, creating_on, moved
from shoal.engine.messages.job import Job
from shoal.engine.messages.live import Watch, unwatched
from shoal.engine.messages.models import model_of
from shoal.engine.messages.seeds import key
from shoal.engine.rounds.costs import Meter
from shoal.engine.rounds.domains import Domains
from shoal.engine.rounds.evaluation import Columns, Evaluator, client_scores, newest
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.rounds.method_round import MethodRound
from shoal.engine.rounds.mixing import Mixer
from shoal.engine.rounds.pool import Pool
from shoal.engine.rounds.protocol_checks import noted, require_tree
from shoal.engine.rounds.sampling import Plan, Schedule
from shoal.engine.rounds.state import FederationState


class Server:
    """Owns the federation's state between rounds, and runs one round after another.

    Attributes:
        state: After the last committed round.
        infos: Sizes of what training sees of all clients.
        graphs: Sizes of the whole graphs that are evaluated, one a domain, under numbers behind those of clients.
        schedule: Who takes part when.
    """

    def __init__(
        self,
        job: Job,
        plan: Plan,
        pool: Pool,
        state: FederationState | None = None,
        device: torch.device = CPU,
    ) -> None:
        """Starts a run, or goes on from a state.

        Args:
            job: The run as hosts see it.
            plan: Rounds, participation, evaluations.
            pool: Where cells run.
            state: To go on from; None: before the first round.
            device: Where the method's server part computes.

        Raises:
            ShoalError: The job does not fit its store, or the method's `setup` failed.
        """
        store = job.open_store()
        self.job, self.plan, self._pool, self._device = job, plan, pool, device
        self.algorithm: Algorithm = job.algorithm()
        self.infos, self.graphs = job.infos(job.open_training(store)), job.graph_infos(job.open_graphs(store))
        self.schedule = Schedule(plan, len(self.infos), job.seed)
        self._features = store.manifest.features
        self._built = job.build_models(store, self.algorithm)
        self._models = {name: [built.info for built in built] for name, built in self._built.items()}
        self._initial = job.initial(model_of(self._built, self.infos[0], MODEL), MODEL, 0)
        self._version = self._initial._version
        records = store.manifest.domains
        domains = Domains(records, self.graphs, job.metric) if records else None
        self._scored = job.infos(store)
        self._evaluator = Evaluator(self.algorithm, self._scored, domains, job.metric)
        if state is None:
            state = FederationState(server=moved(self._set_up(), CPU))
        self.state = state

    def cohort(self, round_number: int) -> list[int]:
        """The clients of a round, ascending."""
        return self.schedule.cohort(round_number)

    def round(self, watch: Watch = unwatched) -> dict[str, Any]:
        """Runs and commits one round; if it raises, the state is as before.

        Args:
            watch: Called whenever a cell came back.

        Returns:
            The round's line of metrics.jsonl.
        """
        # OpenMP keeps this number for every thread apart, and an actor may call from any.
        torch.set_num_threads(self.job.threads)
        number = self.state.round + 1
        where = f"round {number}: {type(self.algorithm).__name__}"
        next_state = self.state.next_state(number)
        meter = Meter(number, self.infos, self._pool, watch)
        everyone = [*self.infos, *self.graphs]
        exchange = Exchange(
            everyone, self.plan.cell_size, self._pool, self.state, next_state, self.cohort(number), meter
        )
        records: Tree = {}
        # 1. The method's part: ask, mix, ask again. A round without a cohort changes nothing.
        if exchange.cohort:
            context = self._context(number, records if self.plan.keep_records else None)
            last = partial(self.schedule.is_last_visit, round_number=number)
            MethodRound(self.algorithm, exchange, Mixer(next_state, meter, where), where).run(context, last)
            with code_of(self.algorithm, "round", f"{where}: "):
                self._require_initial_unchanged()
                meter.notes = noted(context.notes)
        # 2. The cohort is given the new model, where there is one.
        with code_of(self.algorithm, "global_model", f"{where}: "):
            model = self.algorithm.global_model(next_state.server)
            require_tree(model, "the model")
        next_state.deploy(model, exchange.cohort)
        # 3. Evaluation of all clients whose model changed.
        scopes = self._evaluator.evaluate(exchange, model) if self.schedule.evaluates(number) else None
        # 4. The commit.
        self.state = next_state
        line = meter.line(exchange.cohort, scopes)
        if self.job.train.schedule is not None:
            line["lr"] = self.job.train.in_round(number).lr
        return {**line, "records": records} if records and scopes is not None else line

    def client_scores(self) -> Columns:
        """The newest scores of every client; see `shoal.engine.rounds.evaluation`."""
        return client_scores(newest(self.state), self.job.metric)

    def _set_up(self) -> Tree:
        with code_of(self.algorithm, "setup"):
            with creating_on(self._device):
                server = self.algorithm.setup(self._context(0))
            require_tree(server, "the server's state")
            self._require_initial_unchanged()
        return server

    def _require_initial_unchanged(self) -> None:
        # A tensor counts how often it was written to; nothing of the engine writes into this one.
        if self._initial._version != self._version:
            raise ProtocolError(
                "writes into ctx.initial, which every round reads; take a copy first, ctx.initial.clone()"
            )

    def _context(self, round_number: int, records: Tree | None = None) -> Context:
        return Context(
            clients=self.infos,
            scored=self._scored,
            classes=self.infos[0].classes,
            features=self._features,
            hops=self.job.hops,
            # Before the first round it is that of the first.
            train=self.job.train.in_round(max(round_number, 1)),
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
        """A model of its own for the method's server part, on the server's device."""
        built = self._built[name][number]
        # The first client of the kind, whose initial parameters are those of all unless each has its own.
        client = next((info.client for info in self.infos if info.model == number), 0)
        w = self.job.initial(built, name, client)
        model = built.flat.on(self._device)
        model.load(w)
        return model
