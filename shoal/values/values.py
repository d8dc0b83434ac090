"""The values of the clients of a run: what each adds to the score of the server's model, by coalitions of clients."""

import shlex
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shoal.algorithms.rng import key
from shoal.engine.screen.progress import progress, say
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.values.client_values import ClientValues
from shoal.values.estimates import BANZHAF, SHAPLEY, Estimate, Limits, count_all, draw_coalitions, leave_out
from shoal.values.game import Game
from shoal.values.permutations import draw_permutations
from shoal.values.uploads import UploadGame

Method = Literal["shapley", "permutations", "banzhaf", "leave-one-out", "exact", "uploads"]
# Limits of drawing, in points and in trainings of the run, where nothing else is asked for.
PRECISION, TRAININGS = 0.1, 40.0
DRAWN = ("shapley", "permutations", "banzhaf", "uploads")


@dataclass(frozen=True)
class ValuesReader:
    """The reader of the values of clients; options are the arguments of `value_clients`."""

    method: Method = "shapley"
    precision: Annotated[float, Field(gt=0)] | None = None
    trainings: Annotated[float, Field(gt=0)] | None = None
    tolerance: Annotated[float, Field(ge=0)] | None = None
    part: Literal["val", "test"] = "val"

    def read(self, past: PastRun) -> Reading:
        """Returns the values, and keeps them for the page of the run. Raises as `value_clients`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        result = value_clients(past, **given)
        result.write(past.path)
        return Reading((result.table(),), result.table(by_client=True).csv())


def value_clients(
    past: PastRun,
    method: Method = "shapley",
    precision: float | None = None,
    trainings: float | None = None,
    tolerance: float | None = None,
    part: Literal["val", "test"] = "val",
) -> ClientValues:
    """Estimates the values of the clients of a finished run; coalitions that are kept are not trained again.

    Args:
        method: `shapley` and `banzhaf` draw coalitions, `permutations` are the plain way to Shapley values,
            `leave-one-out` removes each client alone, `exact` has Shapley values of all coalitions; `uploads` has
            those of means of the run's own uploads, and trains no coalition.
        precision: Stop drawing where all intervals are within so many points, by default 0.1.
        trainings: Stop drawing after the work of so many trainings of the run, by default 40.
        tolerance: Points within which a permutation counts as ended, by default 0: none ends early.
        part: The items that are scored, of all clients.

    Raises:
        ShoalError: An option has no effect on the method, a limit is too low, or as `Game`.
    """
    options = {"precision": precision, "trainings": trainings, "tolerance": tolerance}
    for name, value in options.items():
        takes = DRAWN if name != "tolerance" else ("permutations",)
        if value is not None and method not in takes:
            raise ShoalError(f"--{name}", f"has no effect on --method {method}; it is of {', '.join(takes)}")
    given = {"method": method if method != "shapley" else None, "part": part if part != "val" else None, **options}
    asked = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    try:
        return _value(past, method, options, part)
    except KeyboardInterrupt:
        say(f"continue with: shoal values {shlex.quote(past.place)}{asked}")
        raise


def _value(past: PastRun, method: Method, options: dict[str, Any], part: str) -> ClientValues:
    game = UploadGame(past, part) if method == "uploads" else Game(past, part)
    items = int(game.item_N.sum())
    limits = Limits((options["precision"] or PRECISION) * items / 100, options["trainings"] or TRAININGS)
    # The draws are those of the run, so that the same command gives the same values.
    rng = np.random.default_rng(key(past.config.seed, "values", method))
    with (
        closing(game),
        progress("coalitions", _count_expected(method, game, limits), "coalitions") as step,
    ):
        game.seen = step.advance
        if isinstance(game, UploadGame):
            free = options["precision"] is None and options["trainings"] is None
            exact = game.whole_cost <= limits.trainings or (free and game.is_small)
            estimate = game.count() if exact else draw_coalitions(game, SHAPLEY, limits, rng)
            estimate = replace(estimate, note=f"uploads: {estimate.note} in each round")
        elif method == "exact":
            estimate = count_all(game, SHAPLEY)
        elif method == "leave-one-out":
            estimate = leave_out(game)
        elif method == "permutations":
            estimate = draw_permutations(game, limits, (options["tolerance"] or 0.0) * items / 100, rng)
        else:
            estimate = draw_coalitions(game, BANZHAF if method == "banzhaf" else SHAPLEY, limits, rng)
    return _in_points(past, game, method, part, estimate)


def _count_expected(method: Method, game: Game | UploadGame, limits: Limits) -> int:
    """Returns about how many coalitions a method asks for, without an end by precision."""
    players = len(game.players)
    if isinstance(game, UploadGame):
        return game.count_expected(limits.trainings)
    if method == "leave-one-out":
        return players + 1
    # Coalitions of a permutation have half of the clients, those of `shapley` fewer.
    share = 0.3 if method == "shapley" else 0.5
    return 2**players if method == "exact" else min(2**players, int(limits.trainings / share) + 1)


def _in_points(past: PastRun, game: Game | UploadGame, method: Method, part: str, estimate: Estimate) -> ClientValues:
    """Makes points of items, and the cost of the estimate."""
    items, (first, last) = int(game.item_N.sum()), game.ends()
    scored = np.maximum(game.item_N, 1)
    return ClientValues(
        method,
        part,
        clients=game.players,
        items=game.item_N.tolist(),
        values=(100 * estimate.total_P / items).tolist(),
        halves=(100 * estimate.half_P / items).tolist(),
        at_clients=(100 * estimate.value_PN / scored).tolist(),
        first=None if first is None else 100 * first / items,
        last=100 * last / items,
        others=sorted(set(range(past.store.clients)) - {*game.players}),
        note=estimate.note,
        cost=game.spent(),
    )
