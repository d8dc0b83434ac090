"""clients.arrows: the scores of every client at every evaluation, one record batch each, in Arrow's stream format.

A stream is appended to and cut off between its messages, which Arrow's file format with its footer is not.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from shoal.engine.records.metrics import write_whole
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import cannot_write

CLIENT_SCORES = "clients.arrows"
# What reading a batch may raise that a kill cut off, or that was damaged.
UNREADABLE = (pa.lib.ArrowException, EOFError, OSError, ValueError, KeyError, IndexError, MemoryError)


class ClientScores:
    """The one writer of a run's file."""

    def __init__(self, run: Path) -> None:
        self.path = run / CLIENT_SCORES

    def append(self, number: int, columns: Mapping[str, np.ndarray]) -> None:
        """Adds the scores of a round. Raises ShoalError: the file cannot be written: it then is as before."""
        if not columns:
            return
        rows = len(next(iter(columns.values())))
        arrays = {"round": pa.array(np.full(rows, number, dtype=np.int32))}
        arrays |= {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
        batch = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
        try:
            with self.path.open("ab", buffering=0) as file:
                before = file.seek(0, os.SEEK_END)
                head = b"" if before else batch.schema.serialize().to_pybytes()
                write_whole(file.fileno(), head + batch.serialize().to_pybytes(), before)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def restore(self, evaluated: list[int]) -> str | None:
        """Cuts off what is behind a checkpoint; a warning if rounds of those evaluated, ascending, are missing."""
        kept: list[int] = []
        end = 0
        for batch, after in _batches(self.path):
            number = batch["round"][0].as_py()
            if number not in evaluated or (kept and number <= kept[-1]):
                break
            kept.append(number)
            end = after
        try:
            if end:
                os.truncate(self.path, end)
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        missing = sorted(set(evaluated) - set(kept))
        if not missing:
            return None
        return (
            f"{self.path}: is without the scores of {len(missing)} evaluated rounds, of which {missing[0]} is the first"
        )


def _batches(path: Path) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Whole batches, and where each ends in the file; batches that a kill cut off, or after a damage, are skipped."""
    if not path.exists():
        return
    # Not mapped: a table of a program may outlive what a resume cuts off.
    with pa.BufferReader(path.read_bytes()) as file, suppress(*UNREADABLE):
        schema = pa.ipc.read_schema(file)
        while True:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(file), schema)
            batch.validate(full=True)
            yield batch, file.tell()


def read_client_scores(run: Path) -> pa.Table:
    """The scores of all evaluated rounds of a run, one row for every round, scope, part and client.

    Raises ShoalError: the run kept none, or the file cannot be read.

    Returns:
        `round` int32, `scope` and `part` (text: `served`, `test`), `client`, `rows` and `correct` int32, `f1` float64
        (macro-F1), and the metric of the run under its name, float64, if it is not accuracy.
    """
    path = run / CLIENT_SCORES
    try:
        batches = [batch for batch, _ in _batches(path)]
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    if not batches:
        raise ShoalError(path, "no scores of clients; the run was made with run.client_scores=false, or before them")
    return pa.Table.from_batches(batches)


def mean_scores(run: Path) -> dict[tuple[int, str, str], tuple[float, float]]:
    """Means over clients of accuracy and macro-F1, by round, scope and part; errors of `read_client_scores`."""
    rows = read_client_scores(run).to_pydict()
    places: dict[tuple[int, str, str], list[int]] = {}
    for place, key in enumerate(zip(rows["round"], rows["scope"], rows["part"])):
        places.setdefault(key, []).append(place)
    accuracy = np.array(rows["correct"]) / np.maximum(rows["rows"], 1)
    f1 = np.array(rows["f1"])
    return {key: (float(accuracy[of].mean()), float(f1[of].mean())) for key, of in places.items()}
