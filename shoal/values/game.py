"""The game of a run: its clients are players, and a coalition scores what the server's model does that it trains alone.

A coalition trains the rounds of the run again, in memory and to the bit, while all other clients do not answer
(`participation.without`). Its score is the number of items that the server's model of the last round predicts right,
client by client: the items of all clients, whoever trained. The empty coalition has the model that the run begins with.

A coalition is an integer, whose bit `p` says that player `p` is in it. What was trained is kept in a file of the run.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.algorithms.method_errors import code_of
from shoal.engine.config.config import load_config
from shoal.engine.hosts.backend import LocalBackend, server_device
from shoal.engine.messages.job import Job, make_job
from shoal.engine.records.run_folder import COALITIONS, finished, parent_of, read_summary
from shoal.engine.rounds.costs import Meter, unwatched
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.scores.counts import CORRECT, PARTS, SUPPORT
from shoal.engine.scores.table import ScoreTable
from shoal.engine.screen.interrupt import graceful
from shoal.engine.sections.sections import options_of
from shoal.past.kept_lines import KeptLines
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.values.client_values import Cost

Scores = dict[str, list[int]]


@dataclass(frozen=True)
class Trained:
    """The outcome of a coalition: right items of each client by part, and the visits that its training took."""

    right: Scores
    visits: int


class Game:
    """The game of a finished run on the items of one part.

    Attributes:
        players: The clients that may train, ascending; any other changes nothing.
        item_N: Items of each client.
        used: The coalitions that were asked for; `new` are those that were trained for it, the others were kept.
        seen: It is called for each coalition that is asked for the first time.
    """

    def __init__(self, past: PastRun, part: str) -> None:
        """Trains the coalition of all, unless it is kept.

        Raises ShoalError: the run is not finished or a fork, has no model at the server, no such items or other
        numbers on this machine, or predicts no classes; clients read each other's data before training.
        """
        rounds = len(past.lines)
        require_game(past)
        self._past, self._part = past, part
        asked = {client for number in range(1, rounds + 1) for client in past.cohort(number)}
        if not _draws_are_fixed(past):
            # Without some clients a run may ask others than it did.
            asked = set(range(past.store.clients)) - set(past.plan.rounds.never_train)
        self.players = tuple(sorted(asked))
        self.everyone = (1 << len(self.players)) - 1
        self.used, self.new = set[int](), set[int]()
        self.seen: Callable[[], None] = lambda: None
        self._backend = LocalBackend(server_device(past.config))
        self._kept = Kept(past, self.players)
        whole = self._trained(self.everyone)
        items = self._kept.items or {}
        self.item_N = np.array(items[part])
        require_items(past, part, self.item_N)
        self._whole_visits = whole.visits

    def right(self, coalition: int) -> np.ndarray:
        """Counts the items of each client that a coalition's model predicts right, int64 `[N]`."""
        return np.array(self._trained(coalition).right[self._part])

    def cost(self, coalitions: Iterable[int]) -> float:
        """Returns the work of some coalitions that were asked for, as a multiple of that of the run: their visits."""
        return sum(self._kept.of[coalition].visits for coalition in coalitions) / max(self._whole_visits, 1)

    def spent(self) -> Cost:
        """Returns the work of all coalitions that were asked for."""
        return Cost(len(self.used), len(self.new), self.cost(self.used), self.cost(self.new), len(self._past.lines))

    def ends(self) -> tuple[int | None, int]:
        """Counts right items of the first model, None if it was not asked for, and of the last."""
        return int(self.right(0).sum()) if 0 in self.used else None, int(self.right(self.everyone).sum())

    def close(self) -> None:
        """Ends what trains coalitions."""
        self._backend.close()

    def _trained(self, coalition: int) -> Trained:
        if coalition not in self._kept.of:
            trained, items = self._train(coalition)
            self._kept.append(coalition, trained, items)
            self.new.add(coalition)
        if coalition not in self.used:
            self.used.add(coalition)
            self.seen()
        return self._kept.of[coalition]

    def _train(self, coalition: int) -> tuple[Trained, Scores]:
        """Trains a coalition; returns its outcome, and the items of each client by part."""
        past, rounds = self._past, len(self._past.lines)
        members = [client for p, client in enumerate(self.players) if coalition >> p & 1]
        out = sorted({*past.config.participation.without, *self.players} - {*members})
        keys = [f"evaluation.every={rounds}", "evaluation.clients=all", "evaluation.last=all"]
        if not members:
            # A config leaves some clients; that of the run has the same first model.
            plan = RunPlan.of(load_config(past.path, keys))
            return self._score_first(plan)
        plan = RunPlan.of(load_config(past.path, [*keys, f"participation.without={out}"]))
        job = make_job(plan.config, past.store, f"{past.path.name} {coalition:x}")
        visits = 0
        with graceful() as interrupt:
            self._backend.open(job, plan.rounds, None)
            for logged in past.lines:
                line = self._backend.round(unwatched)
                visits += len(line["cohort"])
                if coalition == self.everyone:
                    require_same(past, line, logged)
                interrupt.require_none()
            right, items = count_items(self._backend.state().scores["global"], past.store.clients)
        return Trained(right, visits), items

    def _score_first(self, plan: RunPlan) -> tuple[Trained, Scores]:
        """Scores the model that the server begins with."""
        job: Job = make_job(plan.config, self._past.store, f"{self._past.path.name} 0")
        self._backend.open(job, plan.rounds, None)
        server = Server(job, plan.rounds, self._backend, None, server_device(plan.config))
        with code_of(plan.algorithm, "global_model"):
            model = plan.algorithm.global_model(server.state.server)
        clients = np.delete(np.arange(self._past.store.clients), plan.rounds.absent)
        meter = Meter(1, server.infos, self._backend, unwatched)
        exchange = Exchange(server.federation, server.state, server.state.next_state(1), [], meter)
        right, items = count_items(exchange.score(clients.tolist(), model, fresh=True), self._past.store.clients)
        return Trained(right, 0), items


class Kept:
    """The outcomes of coalitions that a run keeps.

    Attributes:
        of: Outcomes by coalition.
        items: Items of each client by part; None: no coalition is kept.
    """

    def __init__(self, past: PastRun, players: Sequence[int]) -> None:
        """Reads the file; see `KeptLines`."""
        self._players = players
        self._place_of = {client: p for p, client in enumerate(players)}
        self.of: dict[int, Trained] = {}
        self._lines = KeptLines(past, COALITIONS, self._take, {"players": [*players]}, ["items"])

    @property
    def items(self) -> Scores | None:
        return self._lines.beside.get("items")

    def append(self, coalition: int, trained: Trained, items: Scores) -> None:
        """Writes an outcome. Raises ShoalError: the file cannot be written."""
        self.of[coalition] = trained
        members = [client for p, client in enumerate(self._players) if coalition >> p & 1]
        self._lines.append({"coalition": members, "visits": trained.visits, **trained.right}, {"items": items})

    def _take(self, line: Mapping[str, Any]) -> None:
        coalition = sum(1 << self._place_of[client] for client in line["coalition"])
        self.of[coalition] = Trained({part: line[part] for part in PARTS}, line["visits"])


def require_game(past: PastRun) -> None:
    """Raises ShoalError: the run has no game."""
    path = past.path
    if not finished(path) or parent_of(path):
        why = "is a fork of another run" if finished(path) else "is not finished"
        raise ShoalError(path, f"{why}; values are of a finished run that began with its first round")
    past.require_classes("values")
    if options_of(past.config, "cross_edges") is not None:
        raise ShoalError(path, "data.cross_edges", "hops of others hold sums of a client's nodes; take a run with drop")
    private = options_of(past.config, "privacy")
    if private is not None and private.unit == "client":
        raise ShoalError(path, "privacy.unit", "client hides who takes part, and coalitions leave some out; take node")
    if past.plan.algorithm.centralized:
        name = past.config.algorithm.name
        raise ShoalError(path, "algorithm.name", f"{name} trains on all data at once; take a method of clients")
    if "global" not in read_summary(path)["scopes"]:
        name = past.config.algorithm.name
        raise ShoalError(path, "algorithm.name", f"{name} has no model at the server to score; take one, as fedavg")


def _draws_are_fixed(past: PastRun) -> bool:
    """Returns whether who is asked in a round does not depend on what others trained."""
    return past.config.schedule.synchronous and options_of(past.config, "selection") is None


def require_items(past: PastRun, part: str, item_N: np.ndarray) -> None:
    """Raises ShoalError: no client has items of a part."""
    if not item_N.sum():
        raise ShoalError(past.path, "--part", f"no client has items of {part}; take {_other(part)}")


def require_same(past: PastRun, line: dict[str, Any], logged: dict[str, Any], close: float = 0.0) -> None:
    """Raises ShoalError: a round that was made again has another cohort, or a loss that is not as close."""
    loss = line["loss"], logged["loss"]
    same_loss = loss[0] == loss[1] or (None not in loss and math.isclose(*loss, rel_tol=close, abs_tol=close))
    if changed := [
        key for key, same in (("cohort", line["cohort"] == logged["cohort"]), ("loss", same_loss)) if not same
    ]:
        raise ShoalError(
            past.path,
            f"round {line['round']}, trained once more, has another {' and '.join(changed)} than was logged; "
            "use the machine and the software of the run",
        )


def count_items(table: ScoreTable, clients: int) -> tuple[Scores, Scores]:
    """Reads by part the right items of all clients, and their items."""
    counts_B2P = np.concatenate(list(table.blocks())).sum(3)[:, :, [CORRECT, SUPPORT]].transpose(0, 2, 1)
    counts_N2P = np.zeros((clients, *counts_B2P.shape[1:]), dtype=np.int64)
    counts_N2P[table.clients] = counts_B2P
    right, items = ({part: counts_N2P[:, k, PARTS.index(part)].tolist() for part in PARTS} for k in (0, 1))
    return right, items


def _other(part: str) -> str:
    return next(other for other in PARTS if other != part)
