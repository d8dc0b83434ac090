"""The keys of `participation` by which clients of a round are selected."""

from typing import Annotated

from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import one_of
from shoal.engine.sections.section import Section
from shoal.engine.sections.words import word_or_own
from shoal.storage.options.types import CLOSED, Name, Positive


@dataclass(frozen=True, config=CLOSED)
class SelectionOptions:
    """The choice of the clients of a round.

    Attributes:
        selection: How clients are drawn: uniformly (`random`), by `loss`, `oort`, `power_of_choice`, or by
            `my_file.py:Select`; see `shoal.engine.schedules.selection`.
        candidates: Clients among which `power_of_choice` chooses; null: twice as many as it chooses.
    """

    selection: Annotated[Name, word_or_own("random", "loss", "oort", "power_of_choice")] = "random"
    candidates: Positive | None = None


SELECTION = Section[SelectionOptions](
    "participation",
    None,
    switch="selection",
    off="random",
    adds={"participation": SelectionOptions},
    called="selection",
    rules=(
        one_of("participation.draw", "participation.selection", "random"),
        one_of("participation.candidates", "participation.selection", "power_of_choice"),
    ),
    selects="shoal.engine.schedules.selection.knowledge:make_selection",
    says="shoal.engine.schedules.selection.knowledge:describe_run",
    facts="shoal.engine.records.summary:describe_visits",
)
