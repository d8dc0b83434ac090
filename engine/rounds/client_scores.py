"""Scores of every client after an evaluation, as columns of a table."""

from collections.abc import Mapping

import numpy as np

from engine.rounds.domains import DOMAINS
from engine.rounds.metric import ACCURACY, ranked
from engine.rounds.scoring import CORRECT, KINDS, PARTS, SUPPORT, macro_f1

Columns = dict[str, np.ndarray]


def client_scores(scopes: Mapping[str, Mapping[int, np.ndarray]], metric: str = ACCURACY) -> Columns:
    """A row for every client with rows of a part, by scope, part and number.

    Args:
        scopes: Newest counts by scope and client, as `engine.rounds.scoring.score` gives them; those of whole graphs
            are left out.
        metric: Of the run.

    Returns:
        `scope` and `part` (text), `client`, `rows` and `correct` int32, `f1` float64 (macro-F1), and another metric
        than accuracy under its name, float64, NaN where it is not defined.
    """
    found: list[Columns] = []
    for scope in sorted(scopes.keys() - {DOMAINS}):
        counts = scopes[scope]
        client_B = np.array(sorted(counts), dtype=np.int32)
        if len(client_B):
            every_BPKC = np.stack([counts[client] for client in client_B])
            found += [_of_part(scope, place, client_B, every_BPKC[:, place], metric) for place in range(len(PARTS))]
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]} if found else {}


def _of_part(scope: str, place: int, client_B: np.ndarray, counts_BKC: np.ndarray, metric: str) -> Columns:
    rows_B = counts_BKC[:, SUPPORT].sum(1)
    scored = rows_B > 0
    client_B, counts_BKC = client_B[scored], counts_BKC[scored]
    columns = {
        "scope": np.full(len(client_B), scope),
        "part": np.full(len(client_B), PARTS[place]),
        "client": client_B,
        "rows": rows_B[scored].astype(np.int32),
        "correct": counts_BKC[:, CORRECT].sum(1).astype(np.int32),
        "f1": macro_f1(counts_BKC[:, :KINDS]),
    }
    if metric != ACCURACY:
        columns[metric] = ranked(metric, counts_BKC[:, SUPPORT], counts_BKC[:, -1])
    return columns
