"""The protocol of readers of runs that are over, and of what they give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.past.rewind import PastRun
from shoal.tables.text_table import TextTable


@dataclass(frozen=True)
class Reading:
    """The result of a reader that gives more than a table.

    Attributes:
        tables: Shown in this order.
        csv: What `--out` writes: the text of a file, or texts by name, each a CSV file of a folder.
        verdict: A line below the tables; empty: none.
        as_recorded: Whether what was made again is what the run recorded; if not, the command exits with 1.
    """

    tables: Sequence[TextTable]
    csv: str | Mapping[str, str]
    verdict: str = ""
    as_recorded: bool = True

    @classmethod
    def of(cls, result: "TextTable | Reading") -> "Reading":
        """Returns a reading as it is, and of a table one with the table and its CSV."""
        return result if isinstance(result, Reading) else cls((result,), result.csv())


class Reader(Protocol):
    """A reader of a run: a dataclass. Its fields are its options; one without a default must be given."""

    def read(self, past: PastRun) -> TextTable | Reading:
        """Reads a run, of which config, metrics and checkpoints stay as they are.

        Args:
            past: The run. It opens what is asked of it, as its lines, its config, its store, or a round of it.

        Returns:
            A table, or several with the texts that `--out` writes.

        Raises:
            ShoalError: The run is not finished, has no such round or client, or what else a user can cause.
        """
        ...
