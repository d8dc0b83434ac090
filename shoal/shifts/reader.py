"""The reader of finished runs that measures by how much the data of their clients differ.

It is apart from the measures, which `shoal inspect` loads without what trains.
"""

from dataclasses import dataclass

from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.shifts.shifts import measure_shifts


@dataclass(frozen=True)
class ShiftsReader:
    """The reader that measures by how much the data of a run's clients differ."""

    def read(self, past: PastRun) -> Reading:
        """Returns the table of `measure_shifts`, and a CSV of every client. Raises ShoalError: the store is gone."""
        # A run that is not whole is refused, though only its store is read.
        assert past.lines
        shifts = measure_shifts(past.store)
        return Reading((shifts.table(),), shifts.table(rows=None).csv())
