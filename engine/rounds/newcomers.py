"""Newcomers: clients that never take part, scored as if a further round, which leaves nothing, were theirs alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from shoal.algorithms.base import Context
from shoal.algorithms.protocol import Ask, Replies
from shoal.engine.config.sections import NEWCOMERS, NEWCOMERS_TRAINED
from shoal.engine.rounds.costs import Meter, unwatched
from shoal.engine.rounds.exchange import Exchange, Federation
from shoal.engine.rounds.state import FederationState
from shoal.engine.scores.table import ScoreTable


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


def score_newcomers(
    run_method: Callable[[Exchange, Context, Callable[[int], bool]], None],
    context: Context,
    federation: Federation,
    newcomers: Sequence[int],
    epochs: int | None,
    next_state: FederationState,
    meter: Meter,
) -> None:
    """Puts the counts of newcomers into the scores of a state: with what they are given, and after their training.

    Args:
        run_method: Drives the method's round on an exchange, see `Server.run_method`.
        context: Of the method in such a round, with the sizes of newcomers.
        epochs: Of their local training; None: as of others.
    """
    number = next_state.round
    theirs = replace(next_state.next_state(number), first_losses={})
    alone = replace(federation, repeats=False, stages=())
    exchange = Welcome(alone, next_state, theirs, newcomers, Meter(number, context.clients, alone.pool, unwatched))
    exchange.epochs = epochs
    run_method(exchange, context, lambda client: True)
    # Where a method trains nobody in this round, it gives nothing new.
    next_state.scores[NEWCOMERS] = exchange.given or exchange.score(newcomers, {})
    meter.add_evaluation(exchange.meter)
    next_state.scores[NEWCOMERS_TRAINED] = theirs.scores.get("trained", ScoreTable()).only(np.array(newcomers))
