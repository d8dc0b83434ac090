"""Rounds as a table in a text file."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.engine.callbacks.callback import Callback, Line, Running
from shoal.engine.records.metrics import numbers_of
from shoal.engine.records.outputs import CSV
from shoal.storage.files.atomic import replacing


@dataclass
class CsvFile(Callback):
    """Writes `<run>/metrics.csv`: a row a round, a column a number, empty where a round has none."""

    _columns: list[str] = field(default_factory=list, init=False, repr=False)

    def start(self, run: Running) -> None:
        """Writes the rounds that there are."""
        self._write(run, run.lines)

    def after_round(self, run: Running, line: Line) -> None:
        """Appends a round, or writes all rounds again if it has a number that no round before it had."""
        row = numbers_of(line)
        if not row.keys() <= set(self._columns):
            self._write(run, run.lines)
            return
        with (run.path / CSV).open("a", newline="") as file:
            csv.DictWriter(file, self._columns).writerow(row)

    def _write(self, run: Running, lines: Sequence[Line]) -> None:
        rows = [numbers_of(line) for line in lines]
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        with replacing(run.path / CSV) as unfinished, unfinished.open("w", newline="") as file:
            table = csv.DictWriter(file, self._columns)
            table.writeheader()
            table.writerows(rows)
