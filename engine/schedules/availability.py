"""The availability of clients: periods, drawn sessions, or sessions of a file; all in rounds. Axes: T rounds, B
clients.
"""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from shoal.algorithms.rng import key
from shoal.engine.config.round_sections import AvailabilityOptions
from shoal.engine.sections.words import is_csv
from shoal.storage.errors import ShoalError

HEADS = ("client", "from", "to")


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
