"""Numbers for the figures of a page, read from the folders of runs.

Axes: T rounds, S runs that differ in seeds alone, B clients, C classes.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shoal.engine.config.config import load_config
from shoal.engine.preparing.identity import store_or_overlay
from shoal.engine.records.checkpoint import newest_round, sound_tensors
from shoal.engine.records.metrics import read_records, recorded_rounds
from shoal.engine.records.outputs import EXPORT, PREDICTIONS
from shoal.engine.records.run_folder import CHECKPOINTS
from shoal.engine.records.summary import NODES, chosen
from shoal.storage.errors import GraphGone
from shoal.storage.store.manifest import NAME, Manifest, read_manifest

if TYPE_CHECKING:
    from shoal.engine.scores.table import ScoreTable

Line = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """A number over rounds of runs that differ in seeds alone, float64 `[T]`: mean and sample standard deviation.

    `x` has means over the runs: `round`, `bytes` sent both ways so far, and `seconds` of rounds so far.
    """

    x: dict[str, np.ndarray]
    middle: np.ndarray
    deviation: np.ndarray
    runs: int

    def first_reaching(self, target: float) -> dict[str, float] | None:
        """Returns `x` where the mean first is at least a target; None if it never is."""
        over = np.flatnonzero(self.middle >= target)
        return {name: float(values[over[0]]) for name, values in self.x.items()} if len(over) else None


def score_in(scope: str, part: str, mean: str = NODES) -> Callable[[Line], float | None]:
    """Reads the number that stands for a part of a scope, by a mean over clients, from the line of a round."""

    def read(line: Line) -> float | None:
        numbers = line.get("scopes", {}).get(scope, {}).get(part)
        return None if numbers is None else chosen(numbers, scope, mean)

    return read


def loss_in(line: Line) -> float | None:
    """Reads the training loss from the line of a round."""
    return line.get("loss")


def curve_of(runs: Sequence[Sequence[Line]], read: Callable[[Line], float | None]) -> Curve | None:
    """Makes the curve of a number in the lines of runs, over rounds in which all have it; None without such rounds."""
    of_runs = [_points(lines, read) for lines in runs]
    rounds = sorted(set.intersection(*(set(points) for points in of_runs))) if of_runs else []
    if not rounds:
        return None
    table_STX = np.array([[points[number] for number in rounds] for points in of_runs])
    value_ST = table_STX[:, :, 0]
    sent_T, seconds_T = table_STX[:, :, 1:].mean(0).T
    x = {"round": np.array(rounds, dtype=float), "bytes": sent_T, "seconds": seconds_T}
    deviation = value_ST.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(rounds))
    return Curve(x, value_ST.mean(0), deviation, len(runs))


def _points(lines: Sequence[Line], read: Callable[[Line], float | None]) -> dict[int, tuple[float, float, float]]:
    """Returns value, bytes and seconds so far by round."""
    by_round, sent, seconds = {}, 0.0, 0.0
    for line in lines:
        sent += line["bytes_up"] + line["bytes_down"]
        seconds += line["seconds"]["round"]
        if (value := read(line)) is not None:
            by_round[int(line["round"])] = (value, sent, seconds)
    return by_round


@dataclass(frozen=True)
class ClientNumbers:
    """Test scores of the clients of a run that have test items, of a scope in the newest checkpoint.

    Attributes:
        client: Their numbers, int64 `[B]`, ascending.
        accuracy: Their accuracies, float64 `[B]`.
        counts: Test items of all clients, int64 `[3, C]`: by class, by predicted class, and rightly predicted by class.
    """

    client: np.ndarray
    accuracy: np.ndarray
    counts: np.ndarray

    @property
    def f1(self) -> np.ndarray:
        """F1 of every class, float64 `[C]`; NaN where it neither occurs nor is predicted."""
        of_class, predicted, right = self.counts
        with np.errstate(invalid="ignore"):
            return 2 * right / (of_class + predicted)


def client_numbers(run: Path, scope: str) -> ClientNumbers | None:
    """Reads scores of single clients; None if the run keeps no checkpoint or does not score the scope."""
    from shoal.engine.scores.counts import PARTS, PREDICTED, by_client

    if (table := scores_in_checkpoint(run).get(scope)) is None:
        return None
    numbers, test = by_client(table), PARTS.index("test")
    if not numbers.pooled_PKC[:, PREDICTED].any():
        # Targets that are no classes have no accuracy.
        return None
    scored = numbers.rows_BP[:, test] > 0
    accuracy = numbers.correct_BP[scored, test] / numbers.rows_BP[scored, test]
    return ClientNumbers(table.clients[scored], accuracy, numbers.pooled_PKC[test])


def scores_in_checkpoint(run: Path) -> dict[str, "ScoreTable"]:
    """Reads counts of clients by scope from the newest checkpoint; none if the run keeps no checkpoint."""
    newest = newest_round(run / CHECKPOINTS)
    if not newest:
        return {}
    # These modules load torch, which takes seconds.
    from safetensors import safe_open

    from shoal.engine.rounds.state import read_scores

    with safe_open(sound_tensors(run / CHECKPOINTS, newest), framework="np") as file:
        tables = read_scores({name: file.get_tensor(name) for name in file.keys() if name.startswith("score")})  # noqa: SIM118
    return {scope: table for scope, table in tables.items() if table}


def confusion(run: Path, scope: str) -> tuple[np.ndarray, list[str]] | None:
    """Counts test items by label and predicted class, int64 `[C, C]`, and names classes; None without an export."""
    path = run / EXPORT / PREDICTIONS
    if not path.exists():
        return None
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    if scope not in table.column_names or not len(table):
        return None
    label, predicted = (table[name].to_numpy() for name in ("label", scope))
    counted = np.array([part == "test" for part in table["part"].to_pylist()]) & (label >= 0) & (predicted >= 0)
    metadata = table.schema.metadata or {}
    named = json.loads(metadata.get(b"label_names", b"[]"))
    classes = len(named) or int(max(label.max(), predicted.max())) + 1
    counts_CC = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts_CC, (label[counted], predicted[counted]), 1)
    return counts_CC, named or [str(c) for c in range(classes)]


def manifest_of(run: Path) -> Manifest | None:
    """Reads the manifest of a run's store; None if the store is gone."""
    try:
        path = store_or_overlay(load_config(run))
    except GraphGone:
        return None
    return read_manifest(path) if (path / NAME).exists() else None


def recorded_mixing(run: Path) -> dict[int, np.ndarray]:
    """Reads matrices of mixing of the first, middle and last recorded round, float32 `[B, B]`, if there are any."""
    recorded = recorded_rounds(run)
    numbers = sorted({recorded[place] for place in (0, len(recorded) // 2, -1)}) if recorded else []
    of_rounds = {number: read_records(run, number) for number in numbers}
    return {number: records["mixing"].numpy() for number, records in of_rounds.items() if "mixing" in records}


def recorded_prototypes(run: Path) -> tuple[int, np.ndarray, np.ndarray] | None:
    """Reads the last recorded round's number, prototypes and their classes `[P]`; None with fewer than three of them.

    Prototypes are projected on their two largest principal components, float64 `[P, 2]`.
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
