"""The game of a run's own uploads: a coalition of a round has the weighted mean of what its members sent in it.

One replay of the run gives the uploads of all rounds, which lie in files without a name below the folder of temporary
files, mapped; no coalition is trained. In each round all coalitions start from
the model that the run had before it, and a client's value is the sum of its values over rounds (Song et al., Profit
allocation for federated learning, 2019; Liu et al., GTG-Shapley, 2022). So a client is worth what its uploads did on
the way of this run, while `shoal.values.game` says what the run would have been without it.

Axes: P parameters, N clients whose items are scored.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.method_errors import code_of
from shoal.algorithms.protocol import Tree
from shoal.engine.hosts.backend import server_device
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.engine.rounds.costs import Meter, unwatched
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.screen.interrupt import graceful
from shoal.engine.screen.progress import say
from shoal.past.recording import Recorder, Recording
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write
from shoal.values.client_values import Cost
from shoal.values.estimates import SHAPLEY, Estimate, count_all
from shoal.values.game import count_items, require_game, require_items, require_same

# All coalitions of rounds with so many clients or fewer are scored, unless a limit is given that they exceed.
MOST_IN_A_ROUND = 10
# The last bits of a mean depend on the order in which it is added up.
CLOSE = 1e-4
# The way forward is a third of a step, which has the way back, too.
FORWARD = 1 / 3


@dataclass
class Round:
    """A round as it was, and the means that there could have been.

    Attributes:
        before: The model of the server before it, by entry.
        after: That after it.
        clients: The clients that answered, ascending.
        totals: By client and entry the upload times its weight, float32 `[P]`.
        weights: By client and entry the weight.
    """

    before: Tree
    after: Tree
    totals: dict[int, Tree] = field(default_factory=dict)
    weights: dict[int, dict[str, float]] = field(default_factory=dict)

    @cached_property
    def clients(self) -> list[int]:
        return sorted(self.totals)

    def model(self, members: Sequence[int]) -> Tree:
        """Returns the weighted mean of what some clients sent; without any weight the model is as it was before."""
        return {entry: self._mean(entry, members) for entry in self.after}

    def _mean(self, entry: str, members: Sequence[int]) -> Tensor:
        weight = sum(self.weights[i][entry] for i in members)
        if not weight > 0:
            return self.before[entry]
        total = torch.zeros_like(self.before[entry], dtype=torch.float64)
        for i in members:
            total += self.totals[i][entry]
        return (total / weight).to(self.before[entry].dtype)

    @property
    def is_mean(self) -> bool:
        """Whether the model after the round is the weighted mean of its uploads."""
        shapes = {entry: t.shape for entry, t in self.after.items()}
        if any({entry: t.shape for entry, t in total.items()} != shapes for total in self.totals.values()):
            return False
        whole = self.model(self.clients)
        return all(_close(whole[entry], self.after[entry]) for entry in shapes)


def _close(mean: Tensor, model: Tensor) -> bool:
    return float((mean - model).abs().max()) <= CLOSE * max(float(model.abs().max()), 1e-12)


class _Sent(Recorder):
    """A recorder of the weighted uploads of a round, whose clients each run in a cell of their own."""

    def __init__(self) -> None:
        self.totals: dict[int, Tree] = {}
        self.weights: dict[int, dict[str, float]] = {}

    def after(self, cell: Cell, outcome: Outcome) -> None:
        if not cell.phase:
            return
        for client, part in zip(outcome.ids, outcome.sums.values()):
            numbers = {entry: w for entry, w in part.weight.items() if isinstance(w, float | int)}
            self.totals.setdefault(client, {}).update({entry: part.total[entry].clone() for entry in numbers})
            self.weights.setdefault(client, {}).update(numbers)


class UploadGame:
    """The game of the uploads of a finished run, summed over its rounds, on the items of one part.

    Attributes:
        players: The clients that sent something, ascending.
        item_N: Items of each client.
        rounds: The rounds as they were.
        seen: It is called for each model that is scored for the first time.
    """

    def __init__(self, past: PastRun, part: str) -> None:
        """Makes all rounds of the run again.

        Raises ShoalError: as `Game`; rounds overlap; the server's model is no weighted mean of uploads.
        """
        require_game(past)
        if not past.config.schedule.synchronous:
            name = past.config.schedule.name
            raise ShoalError(past.path, "schedule.name", f"uploads are of synchronous rounds, not {name}; take shapley")
        self._past, self._part = past, part
        self.rounds = list[Round]()
        self.seen: Callable[[], None] = lambda: None
        self._right: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self._sent = _Sent()
        # Masked uploads have the same sum; each client alone in its cell shows its own.
        self._recording = Recording(past.job.without_stage("secure"), self._sent)
        plan = replace(past.plan.rounds, cell_size=1)
        self._server = self._recording.start(plan, None, server_device(past.config))
        say(f"making {len(past.lines)} rounds again for their uploads")
        self._replay()
        self.players = tuple(sorted({client for round in self.rounds for client in round.clients}))
        self.item_N = self._score(self.rounds[-1].after)[1]
        require_items(past, part, self.item_N)

    def _replay(self) -> None:
        past, method = self._past, self._past.plan.algorithm
        with graceful() as interrupt:
            model = self._model()
            for logged in past.lines:
                self._sent.totals, self._sent.weights = {}, {}
                line = self._server.round(unwatched)
                require_same(past, line, logged, CLOSE)
                before, model = model, self._model()
                totals = {i: _pick(tree, model.keys()) for i, tree in self._sent.totals.items()}
                model, *mapped = _map_trees([model, *totals.values()])
                self.rounds.append(made := Round(before, model, dict(zip(totals, mapped)), self._sent.weights))
                if not made.is_mean:
                    why = "the server's model is no weighted mean of uploads; take --method shapley"
                    name = type(method).__name__
                    raise ShoalError(past.path, "--method", f"round {line['round']} of {name}: {why}")
                interrupt.require_none()

    def _model(self) -> Tree:
        method = self._past.plan.algorithm
        with code_of(method, "global_model"):
            model = method.global_model({name: t.clone() for name, t in self._server.state.server.items()})
        return {name: t.clone() for name, t in model.items()}

    @property
    def is_small(self) -> bool:
        """Whether all coalitions of each round are few."""
        return max(len(round.clients) for round in self.rounds) <= MOST_IN_A_ROUND

    @property
    def whole_cost(self) -> float:
        """Returns the work of all coalitions of all rounds, in trainings."""
        return 1 + self._one * sum(2 ** len(round.clients) for round in self.rounds)

    def count_expected(self, trainings: float) -> int:
        """Returns about how many models so much work scores, or all if these are few."""
        every = sum(2 ** len(round.clients) for round in self.rounds)
        return every if self.is_small else min(every, int((trainings - 1) / self._one))

    def count(self) -> Estimate:
        """Returns exact Shapley values: those of each round by all its coalitions, added up."""
        value_PN = np.zeros((len(self.players), len(self.item_N)))
        total_P, place_of = np.zeros(len(self.players)), {client: p for p, client in enumerate(self.players)}
        for number, round in enumerate(self.rounds):
            if round.clients:
                of_round = count_all(_OfRound(self, number), SHAPLEY)
                places = [place_of[client] for client in round.clients]
                value_PN[places] += of_round.value_PN
                total_P[places] += of_round.total_P
        return Estimate(value_PN, total_P, np.zeros(len(total_P)), "all coalitions")

    def right(self, coalition: int) -> np.ndarray:
        """Counts right items of each client by the models of a coalition, summed over rounds, int64 `[N]`."""
        members = frozenset(client for p, client in enumerate(self.players) if coalition >> p & 1)
        right_N = np.zeros(len(self.item_N), dtype=np.int64)
        for number, round in enumerate(self.rounds):
            right_N += self.right_in(number, [i for i in round.clients if i in members])
        return right_N

    def right_in(self, number: int, members: Sequence[int]) -> np.ndarray:
        """Counts the items of each client that the mean of some clients in a round predicts right, int64 `[N]`."""
        round = self.rounds[number]
        if not members and number:
            # The model before a round is that after the one before it.
            return self.right_in(number - 1, self.rounds[number - 1].clients)
        key = (number, tuple(members))
        if key not in self._right:
            model = round.after if len(members) == len(round.clients) else round.model(members)
            self._right[key] = self._score(model if members else round.before)[0]
            self.seen()
        return self._right[key]

    def _score(self, model: Tree) -> tuple[np.ndarray, np.ndarray]:
        """Counts the items of each client that a model predicts right, and all of them."""
        server, plan = self._server, self._past.plan.rounds
        clients = np.delete(np.arange(self._past.store.clients), plan.absent).tolist()
        # Clients that are only scored run in large cells.
        federation = replace(server.federation, cell_size=plan.cell_size)
        meter = Meter(1, server.infos, self._recording, unwatched)
        exchange = Exchange(federation, server.state, server.state.next_state(1), [], meter)
        right, items = count_items(exchange.score(clients, model, fresh=True), self._past.store.clients)
        return np.array(right[self._part]), np.array(items[self._part])

    @cached_property
    def _one(self) -> float:
        """Returns the work of scoring all clients once, as a share of that of the run: ways forward of clients."""
        visits = sum(len(round.clients) for round in self.rounds)
        return FORWARD * self._past.store.clients / (self._past.config.train.epochs * max(visits, 1))

    def cost(self, coalitions: Iterable[int] = ()) -> float:
        """Returns the work of all that was scored so far, as a multiple of that of the run, which was made again."""
        return 1 + self._one * len(self._right)

    def spent(self) -> Cost:
        """Returns the work of the estimate; a coalition is one of a round."""
        scored, work = len(self._right), self.cost()
        return Cost(scored, scored, work, work, len(self.rounds))

    def ends(self) -> tuple[int, int]:
        """Counts right items of the first model, and of the last."""
        last = len(self.rounds) - 1
        return int(self.right_in(0, []).sum()), int(self.right_in(last, self.rounds[last].clients).sum())

    def close(self) -> None:
        """Ends what scores models."""
        self._recording.close()


@dataclass(frozen=True)
class _OfRound:
    """The game of one round of a game of uploads, whose players are the clients of the round."""

    game: UploadGame
    number: int

    @property
    def players(self) -> tuple[int, ...]:
        return tuple(self.game.rounds[self.number].clients)

    def right(self, coalition: int) -> np.ndarray:
        return self.game.right_in(self.number, [i for p, i in enumerate(self.players) if coalition >> p & 1])

    def cost(self, coalitions: Iterable[int]) -> float:
        return self.game.cost()


def _map_trees(trees: Sequence[Tree]) -> list[Tree]:
    """Writes trees of tensors to a file without a name, and returns them mapped from there, on the CPU.

    Raises ShoalError: the folder of temporary files has no space for them.
    """
    with TemporaryDirectory(prefix="shoal-") as folder:
        path = Path(folder) / "uploads.safetensors"
        try:
            write_tensors(path, {f"{n}/{entry}": t for n, tree in enumerate(trees) for entry, t in tree.items()})
            tensors = read_tensors(path)
        except OSError as error:
            raise cannot_write(path, error) from None
    return [{entry: tensors[f"{n}/{entry}"] for entry in tree} for n, tree in enumerate(trees)]


def _pick(tree: Tree, entries: Collection[str]) -> Tree:
    return {entry: t for entry, t in tree.items() if entry in entries}
