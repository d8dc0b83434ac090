"""Data of figures: numbers over rounds with a band over seeds, of single clients, and times by part.

Axes: T evaluated rounds, S runs that differ in seeds alone, B clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from shoal.engine.records.checkpoint import newest_round, sound_tensors
from shoal.engine.records.metrics import read_metrics, read_records, recorded_rounds
from shoal.engine.records.run_folder import CHECKPOINTS
from shoal.engine.records.summary import NODES, chosen
from shoal.engine.rounds.scoring import PARTS as OF_SCORES
from shoal.engine.rounds.scoring import by_client
from shoal.engine.rounds.state import read_scores
from shoal.engine.studies.groups import Group


@dataclass(frozen=True)
class Curve:
    """A number over the evaluated rounds of one group: its name, and float64 `[T]` over the runs the mean, the smallest
    and the largest; `x` by `round`, `bytes` sent both ways so far and `seconds` of rounds so far, means over the runs.
    """

    name: str
    x: dict[str, np.ndarray]
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: int


def curve_of(name: str, runs: Sequence[Path], scope: str, part: str, mean: str = NODES) -> Curve | None:
    """The number that stands for a scope, by a mean over clients, of the rounds in which all runs have it, if any."""
    of_runs = [_points(read_metrics(run), scope, part, mean) for run in runs]
    rounds = sorted(set.intersection(*(set(points) for points in of_runs))) if of_runs else []
    if not rounds:
        return None
    table_STX = np.array([[points[number] for number in rounds] for points in of_runs])
    value_ST = table_STX[:, :, 0]
    sent_T, seconds_T = table_STX[:, :, 1:].mean(0).T
    x = {"round": np.array(rounds, dtype=float), "bytes": sent_T, "seconds": seconds_T}
    return Curve(name, x, value_ST.mean(0), value_ST.min(0), value_ST.max(0), len(runs))


def _points(
    lines: Sequence[Mapping[str, Any]], scope: str, part: str, mean: str
) -> dict[int, tuple[float, float, float]]:
    """Value, bytes and seconds so far by evaluated round."""
    found, sent, seconds = {}, 0.0, 0.0
    for line in lines:
        sent += line["bytes_up"] + line["bytes_down"]
        seconds += line["seconds"]["round"]
        numbers = line.get("scopes", {}).get(scope, {}).get(part)
        value = None if numbers is None else chosen(numbers, scope, mean)
        if value is not None:
            found[int(line["round"])] = (value, sent, seconds)
    return found


def client_accuracies(run: Path, scope: str) -> np.ndarray:
    """Accuracy of every client that has test rows, in the newest checkpoint, float64 `[B]`; empty if not kept.

    Raises ShoalError: the checkpoint is damaged, or of another run.
    """
    newest = newest_round(run / CHECKPOINTS)
    if not newest:
        return np.zeros(0)
    with safe_open(sound_tensors(run / CHECKPOINTS, newest), framework="np") as file:
        table = read_scores({name: file.get_tensor(name) for name in file.keys() if name.startswith("score")})  # noqa: SIM118
    if not table.get(scope):
        return np.zeros(0)
    numbers, test = by_client(table[scope]), OF_SCORES.index("test")
    scored = numbers.rows_BP[:, test] > 0
    found: np.ndarray = numbers.correct_BP[scored, test] / numbers.rows_BP[scored, test]
    return found


def recorded_mixing(run: Path) -> dict[int, np.ndarray]:
    """Matrices of mixing of the first, the middle and the last recorded round, float32 `[B, B]`, if there are any."""
    found = recorded_rounds(run)
    numbers = sorted({found[place] for place in (0, len(found) // 2, -1)}) if found else []
    of_rounds = {number: read_records(run, number) for number in numbers}
    return {number: records["mixing"].numpy() for number, records in of_rounds.items() if "mixing" in records}


def recorded_prototypes(run: Path) -> tuple[int, np.ndarray, np.ndarray] | None:
    """The last recorded round, its prototypes on their two largest principal components float64 `[P, 2]`, and their
    classes `[P]`; None if there are fewer than three.
    """
    for number in reversed(recorded_rounds(run)):
        records = read_records(run, number)
        if len(records.get("prototypes", ())) > 2:
            proto_PH = records["prototypes"].double().numpy()
            centred_PH = proto_PH - proto_PH.mean(0)
            u_PK, s_K, _ = np.linalg.svd(centred_PH, full_matrices=False)
            point_P2 = (u_PK * s_K)[:, :2]
            return number, point_P2, records["prototype_class"].numpy()
    return None


def name_of(group: Group, keys: Sequence[str]) -> str:
    """A line that distinguishes a group from the others."""
    by_themselves = ("algorithm", "algorithm.name", "model", "model.name")
    known = {key: value for key in keys if (value := group.columns.get(key))}
    short = [v if key in by_themselves else f"{key.rpartition('.')[2]} {v}" for key, v in known.items()]
    return ", ".join(short) or "all runs"


def numeric(values: Sequence[str]) -> list[float] | None:
    """Values of a key as numbers; None if one is none, or they do not differ."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if len(set(found)) > 1 else None
