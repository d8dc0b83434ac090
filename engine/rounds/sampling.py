"""Which clients take part in a round."""

import numpy as np

from engine.settings.sections import ParticipationOptions
from engine.wire.randomness import key
from storage.bounded_npy import NOT_READ, load_npy, reason
from storage.errors import ShoalError


def draw_cohort(
    clients: int, options: ParticipationOptions, seed: int, round_number: int, online: np.ndarray | None = None
) -> list[int]:
    """`count`, or max(1, floor(clients * ratio)) clients, uniform without replacement among those online, ascending.

    Keyed by (seed, round). Fewer clients online than asked for are all drawn, fewer than `at_least` none.

    Args:
        clients: Number of all clients.
        options: How many take part.
        seed: Of the run.
        round_number: From 1.
        online: Who is online in which round, bool `[rounds, clients]`, repeated from its start; None: everybody.
    """
    size = options.count or max(1, int(clients * options.ratio + 1e-9))
    present = np.arange(clients)
    if online is not None:
        present = np.flatnonzero(online[(round_number - 1) % len(online)])
    if len(present) < options.at_least:
        return []
    if size >= len(present):
        return present.tolist()
    rng = np.random.default_rng(key(seed, round_number, "cohort"))
    return sorted(rng.choice(present, size=size, replace=False).tolist())


def read_trace(file: str, clients: int) -> np.ndarray:
    """Reads `participation.trace`: a `.npy` of truth values (or 0 and 1), `[rounds, clients]`.

    Raises:
        ShoalError: It cannot be read, or has another number of clients.
    """
    try:
        trace = load_npy(file)
    except NOT_READ as error:
        raise ShoalError(f"{file}: participation.trace cannot be read ({reason(error)}); give an .npy array") from error
    if (
        trace.dtype.kind not in "fiub"
        or trace.ndim != 2
        or trace.shape[1] != clients
        or not len(trace)
        or not np.isin(trace, (0, 1)).all()
    ):
        raise ShoalError(
            f"{file}: participation.trace must hold 0 or 1 for every round and all {clients} clients, "
            f"found {trace.dtype} {list(trace.shape)}"
        )
    return trace.astype(bool)
