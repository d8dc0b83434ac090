"""The draw of a round's clients from what the server knows of them. Axes: B all clients, P those online.

A selection is a function of `Known`, a number of clients and a generator, keyed by (seed, round); it gives clients.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.algorithms.protocol import Tree
from shoal.engine.config.config import Config
from shoal.engine.rounds.protocol_checks import require_tree
from shoal.engine.schedules.participation import count_drawn, is_whole
from shoal.engine.schedules.selection.section import SELECTION
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.user_code.user_code import UserCode

KEY = "participation.selection"


@dataclass(frozen=True)
class Known:
    """The knowledge of the server before a round.

    Attributes:
        round: From 1.
        online: The clients to choose from, int64 `[P]`, ascending.
        items: Training items of each client, int64 `[B]`.
        loss: Mean training loss in its last round, float64 `[B]`; infinite before the first, 0 where it had no items.
        last: That round, float64 `[B]`; 0: none.
        seconds: Simulated seconds of a round of each alone, float64 `[B]`; without devices all are 1.
        candidates: Of `power_of_choice`; None: twice as many as are chosen.
        state: Tensors by name that the user's selection keeps, which it may change.
    """

    round: int
    online: np.ndarray
    items: np.ndarray
    loss: np.ndarray
    last: np.ndarray
    seconds: np.ndarray
    candidates: int | None
    state: Tree


def require_choice(config: Config, clients: int) -> None:
    """Raises a ShoalError, which names the key: a selection takes all clients, or candidates are too few or too many.

    A selection of the user's may give fewer clients than it is asked for.
    """
    options = SELECTION.of(config)
    if is_own(options.selection):
        return
    asked = count_drawn(config, config.participation.size(clients))
    if asked >= clients:
        raise ShoalError(
            KEY,
            f"{options.selection} chooses {asked} of {clients} clients, so all; take a lower participation.ratio or "
            "count, or selection random",
        )
    if options.candidates is not None and not asked <= options.candidates <= clients:
        raise ShoalError(
            "participation.candidates",
            f"{options.candidates} of {clients} clients, of which {asked} are chosen; take {asked} to {clients}",
        )


Select = Callable[[Known, int, np.random.Generator], Iterable[int]]


def _largest(clients: np.ndarray, value_B: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the clients of largest values; of equal ones drawn ones."""
    shuffled = rng.permutation(clients)
    return shuffled[np.argsort(-value_B[shuffled], kind="stable")[:count]]


def _draw_weighted(clients: np.ndarray, weight: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws clients without replacement in proportion to their weights; those of weight zero never."""
    able, weight = clients[weight > 0], weight[weight > 0]
    return rng.choice(able, min(count, len(able)), replace=False, p=weight / weight.sum()) if len(able) else able


def power_of_choice(known: Known, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws candidates in proportion to their items, and returns those of largest last loss.

    Cho, Wang and Joshi, Client selection in federated learning, 2020 (arXiv 2010.01243), with the losses that the
    server has (rpow-d), infinite for clients that never trained.
    """
    asked = 2 * count if known.candidates is None else max(known.candidates, count)
    return _largest(_draw_weighted(known.online, known.items[known.online], asked, rng), known.loss, count, rng)


def oort(known: Known, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draws clients of high utility, and some that never trained, the fast ones more often.

    Lai et al., Oort, OSDI 2021, algorithm 1: the utility of a client is |B| times its loss, cut off at the 95th
    percentile, plus sqrt(0.1 log R / L) of round R and its last round L, times (T / t)^2 where its time t is above T.
    Ours: the mean loss for the root mean square, which a server is not sent, and for T, which no pacer moves, the
    median of the times of those online.
    """
    is_new = known.last[known.online] == 0
    new, old = known.online[is_new], known.online[~is_new]
    explored = math.ceil(max(0.9 * 0.98 ** (known.round - 1), 0.2) * count - 1e-9)
    explored = min(max(explored, count - len(old)), len(new))
    fresh = _draw_weighted(new, 1 / known.seconds[new], explored, rng)
    exploited = min(count - explored, len(old))
    if exploited == 0:
        return fresh
    utility = known.items[old] * known.loss[old]
    utility = np.minimum(utility, np.quantile(utility, 0.95)) + np.sqrt(0.1 * math.log(known.round) / known.last[old])
    utility /= np.maximum(known.seconds[old] / np.median(known.seconds[known.online]), 1.0) ** 2
    high = utility >= 0.95 * np.sort(utility)[-exploited]
    return np.concatenate([fresh, _draw_weighted(old[high], utility[high], exploited, rng)])


# `loss` takes the clients of largest last loss, at first those that never trained.
OURS: Mapping[str, Select] = {
    "loss": lambda known, count, rng: _largest(known.online, known.loss, count, rng),
    **{"oort": oort, "power_of_choice": power_of_choice},
}


def own_selection(code: UserCode) -> Select:
    """Returns the user's function, `def Select(known, count, rng)`: it gives different clients online, `count` at most.

    Raises ShoalError: it is none, or takes other arguments; when it is called, it fails or gives something else.
    """
    function = code.function(KEY, "known", "count", "rng")

    def select(known: Known, count: int, rng: np.random.Generator) -> list[int]:
        with code.at_work(KEY):
            given = list(function(known, count, rng))
            require_tree(known.state, "known.state")
        if wrong := [client for client in given if not is_whole(client)]:
            raise code.fault(KEY, f"gives {wrong[0]!r}, expected whole numbers, of clients of known.online")
        clients = [int(client) for client in given]
        if len(set(clients)) < len(clients) or len(clients) > count or not np.isin(clients, known.online).all():
            raise code.fault(KEY, f"gives {clients[:10]}, expected {count} different clients of known.online, or fewer")
        return clients

    return select
