"""The availability of clients: periods, drawn sessions, or sessions of a file; all in rounds. Axes: T rounds, B
clients.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.schedules.availability.section import AVAILABILITY, AvailabilityOptions
from shoal.engine.sections.words import is_csv
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import NOT_READ, load_npy, reason

HEADS = ("client", "from", "to")


def online_in(config: Config, absent: Sequence[int]) -> np.ndarray | None:
    """Returns who is online in which round of a run, bool `[T, B]`, repeated from its start; None: all are.

    Raises ShoalError: a file is missing or wrong, or in no round are enough clients online beside those `absent`.
    """
    options, clients, rounds = AVAILABILITY.of(config), config.partition.clients, config.rounds
    if options.trace is not None:
        online_TB = read_trace(options.trace, clients)
    elif options.availability.kind != "always":
        online_TB = online_of(options.availability, clients, rounds, config.devices.seed)
    else:
        return None
    least, clients = config.participation.at_least, clients - len(absent)
    most = int(np.delete(online_TB[:rounds], absent, axis=1).sum(1).max())
    if most < least:
        source = "participation.trace" if options.availability.kind == "always" else "participation.availability"
        raise ShoalError(
            "participation.at_least" if least > 1 else source,
            f"no round would take place: {least} clients must be online, and of {clients} there are {most} at most in "
            f"the first {min(rounds, len(online_TB))} rounds of {options.trace or source}; change one of them",
        )
    return online_TB


def read_trace(file: str, clients: int) -> np.ndarray:
    """Reads `participation.trace`, a `.npy` of 0 and 1, `[rounds, clients]`; raises a ShoalError if it is none."""
    try:
        trace = load_npy(file)
    except NOT_READ as error:
        raise ShoalError(file, f"participation.trace cannot be read ({reason(error)}); give an .npy array") from error
    if (
        trace.dtype.kind not in "fiub"
        or trace.ndim != 2
        or trace.shape[1] != clients
        or not len(trace)
        or not np.isin(trace, (0, 1)).all()
    ):
        raise ShoalError(
            file,
            f"participation.trace must hold 0 or 1 for every round and all {clients} clients, "
            f"found {trace.dtype} {list(trace.shape)}",
        )
    return trace.astype(bool)


def online_of(options: AvailabilityOptions, clients: int, rounds: int, seed: int) -> np.ndarray:
    """Returns who is online, bool `[T, B]`; drawn by (seed, client), and the same for the first of more rounds.

    Sessions and pauses of Weibull lengths follow each other; a round counts where it begins within a session.
    Raises ShoalError: the file of sessions is missing or wrong.
    """
    if is_csv(options.kind):
        return _of_file(options.kind, clients, rounds)
    place_B = np.random.default_rng(key(seed, "availability")).random(clients)
    period, on = options.period, options.share * options.period
    if options.kind == "periodic":
        return np.stack([(number + place_B * period) % period < on for number in range(rounds)])
    changes_TB, every = np.zeros((rounds + 1, clients), dtype=np.int32), np.arange(clients)
    is_on_B, begin_B, turn = place_B < options.share, np.zeros(clients), 0
    while (begin_B < rounds).any():
        length_B = np.random.default_rng(key(seed, "availability", turn)).weibull(options.shape, clients)
        length_B *= np.where(is_on_B, on, period - on) / math.gamma(1 + 1 / options.shape)
        for at_B, change in ((begin_B, 1), (begin_B + length_B, -1)):
            changes_TB[np.minimum(np.ceil(at_B), rounds).astype(int), every] += change * is_on_B
        begin_B, is_on_B, turn = begin_B + length_B, ~is_on_B, turn + 1
    return changes_TB[:rounds].cumsum(0) > 0


def _of_file(file: str, clients: int, rounds: int) -> np.ndarray:
    whole = pa.csv.ConvertOptions(column_types=dict.fromkeys(HEADS, pa.int64()))
    try:
        table = pa.csv.read_csv(file, convert_options=whole)
        session_S3 = np.stack([table[name].to_numpy() for name in HEADS], 1)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise ShoalError(Path(file), f"no CSV with whole numbers {', '.join(HEADS)}: {reason}") from error
    client_S, first_S, last_S = session_S3.T
    right_S = (client_S >= 0) & (client_S < clients) & (first_S >= 1) & (first_S <= last_S)
    if not right_S.all():
        row = ", ".join(f"{value:g}" for value in session_S3[right_S.argmin()])
        raise ShoalError(Path(file), f"a client must be below {clients}, rounds count from 1; found {row}")
    online_TB = np.zeros((rounds, clients), dtype=bool)
    for client, first, last in session_S3.tolist():
        online_TB[first - 1 : last, client] = True
    return online_TB
