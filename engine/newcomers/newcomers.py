"""Newcomers: clients that never take part, scored as if a further round, which leaves nothing, were theirs alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.algorithms.base import NEWCOMERS, Algorithm
from shoal.algorithms.protocol import Ask, Replies
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.newcomers.section import GIVEN, KEY, TRAINED, NewcomerEpochs
from shoal.engine.rounds.costs import Meter, unwatched
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.scores.table import ScoreTable
from shoal.storage.errors import ShoalError

# So many numbers of newcomers are shown.
MOST_NAMED = 20


def require_method(config: Config, algorithm: Algorithm) -> None:
    """Raises a ShoalError if a method has nothing to give to a client that comes later."""
    if NEWCOMERS not in algorithm.supports:
        raise ShoalError(
            KEY,
            f"{config.algorithm.name} has nothing to give to a client that comes later; set 0, or take another method",
        )


def draw_newcomers(share: float, clients: int, seed: int) -> tuple[int, ...]:
    """Draws clients that never take part, `share` of all rounded down, uniform, ascending, keyed by the run's seed.

    Raises ShoalError: the share is less than one client.
    """
    count = int(share * clients + 1e-9)
    if not count:
        raise ShoalError(KEY, f"{share:g} of {clients} clients is less than one; take more")
    rng = np.random.default_rng(key(seed, "newcomers"))
    return tuple(sorted(rng.choice(clients, size=count, replace=False).tolist()))


def leave_out(config: Config) -> tuple[int, ...]:
    """Returns the clients that never take part in a run of a config; raises as `draw_newcomers`."""
    data: Any = config.data
    return draw_newcomers(data.newcomers, config.partition.clients, config.seed)


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns how many clients never take part, and the first of them."""
    clients = leave_out(config)
    first = ", ".join(map(str, clients[:MOST_NAMED])) + (" …" if len(clients) > MOST_NAMED else "")
    return {"newcomers": f"{len(clients)} of {config.partition.clients} clients come after training: {first}"}


def epochs_of(config: Config) -> NewcomerEpochs:
    """Reads how newcomers train."""
    evaluation: Any = config.evaluation
    return NewcomerEpochs(evaluation.newcomer_epochs)


def make_evaluation(options: NewcomerEpochs, newcomers: tuple[int, ...]) -> "NewcomersEvaluation":
    """Makes the evaluation of newcomers of a run."""
    return NewcomersEvaluation(newcomers, options.newcomer_epochs)


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


@dataclass(frozen=True)
class NewcomersEvaluation:
    """The evaluation of newcomers, in every round that ends with one.

    Attributes:
        newcomers: Clients, ascending.
        epochs: Epochs of their local training, which is for evaluation alone; None: as of others.
    """

    newcomers: tuple[int, ...]
    epochs: int | None

    def __call__(self, server: Server, next_state: FederationState, meter: Meter) -> None:
        """Puts their counts into the scores of a state: with what they are given, and after their training."""
        if not self.newcomers:
            return
        number = next_state.round
        theirs = replace(next_state.next_state(number), first_losses={})
        # Others do not see newcomers, who see themselves.
        context = replace(server.context(number), clients=server.infos)
        alone = replace(server.federation, repeats=False, stages=())
        meter_of_them = Meter(number, context.clients, alone.pool, unwatched)
        exchange = Welcome(alone, next_state, theirs, self.newcomers, meter_of_them)
        exchange.epochs = self.epochs
        server.run_method(exchange, context, lambda client: True)
        # Where a method trains no client in this round, it gives nothing new.
        next_state.scores[GIVEN] = exchange.given or exchange.score(self.newcomers, {})
        meter.add_evaluation(exchange.meter)
        next_state.scores[TRAINED] = theirs.scores.get("trained", ScoreTable()).only(np.array(self.newcomers))
