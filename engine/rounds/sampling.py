"""Which clients take part in a round."""

from dataclasses import dataclass

import numpy as np

from engine.wire.randomness import key
from storage.errors import ShoalError


@dataclass(frozen=True)
class Participation:
    """How cohorts are drawn.

    Attributes:
        ratio: Share of all clients in a cohort.
        count: Size of a cohort; wins over `ratio`.
        at_least: A round with fewer clients online has no cohort.
        online: Who is online in which round, bool `[rounds, clients]`, repeated from its start; None: everybody.
    """

    ratio: float = 1.0
    count: int | None = None
    at_least: int = 1
    online: np.ndarray | None = None


def draw_cohort(clients: int, how: Participation, seed: int, round_number: int) -> list[int]:
    """`count`, or max(1, floor(clients * ratio)) clients, uniform without replacement among those online, ascending.

    Keyed by (seed, round). Fewer clients online than asked for are all drawn, fewer than `at_least` none.
    """
    size = how.count or max(1, int(clients * how.ratio + 1e-9))
    online = np.arange(clients)
    if how.online is not None:
        online = np.flatnonzero(how.online[(round_number - 1) % len(how.online)])
    if len(online) < how.at_least:
        return []
    if size >= len(online):
        return online.tolist()
    rng = np.random.default_rng(key(seed, round_number, "cohort"))
    return sorted(rng.choice(online, size=size, replace=False).tolist())


def read_trace(file: str, clients: int) -> np.ndarray:
    """Reads `participation.trace`: a `.npy` of truth values (or 0 and 1), `[rounds, clients]`.

    Raises:
        ShoalError: It cannot be read, or has another number of clients.
    """
    try:
        trace = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ShoalError(f"{file}: participation.trace cannot be read ({error}); give an .npy array") from error
    if trace.ndim != 2 or trace.shape[1] != clients or not len(trace) or not np.isin(trace, (0, 1)).all():
        raise ShoalError(
            f"{file}: participation.trace must hold 0 or 1 for every round and all {clients} clients, "
            f"found {trace.dtype} {list(trace.shape)}"
        )
    return trace.astype(bool)
