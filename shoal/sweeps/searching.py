"""A search of options, as commands and programs know it; `shoal.features.features` lists the features that have one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from shoal.engine.sections.section import load
from shoal.features.features import FEATURES

if TYPE_CHECKING:
    # The command line reads the options, and must not wait for these.
    from shoal.study.groups import Row
    from shoal.study.study import Study
    from shoal.tables.text_table import TextTable

Sampler = Literal["tpe", "cma", "random", "grid"]
Pruner = Literal["none", "halving", "hyperband", "median"]


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search, in the words of `shoal sweep`.

    Attributes:
        space: Keys with a range or values, as `key=low:high`, or YAML files of these.
        trials: Draws, at most, for each combination of the axes.
        budget: Rounds of all trials and seeds, at most, for each combination; None: any.
        sampler: What draws.
        prune: What stops trials early.
    """

    space: Sequence[str] = ()
    trials: int = 64
    budget: int | None = None
    sampler: str = "tpe"
    prune: str = "none"


NOTHING_ASKED = SearchOptions()


class Searching(Protocol):
    """A search of options for each combination of the axes of a study; it runs the best with the seeds that report."""

    study: "Study"
    folder: Path
    command: str
    rows: "Sequence[Row]"

    def go(self) -> bool:
        """Searches, and runs what it chose; returns whether all runs finished."""
        ...

    def lines(self) -> list[str]:
        """Returns lines that say what the search would do."""
        ...

    def chosen(self) -> "TextTable":
        """Makes the table of what it chose so far."""
        ...


def list_searches() -> dict[str, str]:
    """Lists by name what makes each search."""
    return {name: place for feature in FEATURES for name, place in feature.searches.items()}


def read_chosen(folder: Path) -> "TextTable | None":
    """Reads what the search in the folder of a sweep chose; None: there is none.

    Raises ShoalError: its file is damaged.
    """
    for feature in FEATURES:
        table: TextTable | None = load(feature.chosen)(folder) if feature.chosen else None
        if table is not None:
            return table
    return None
