"""The schedules by their names in a config: which clients take part, and from which model they train."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.rounds.sampling import MakeSchedule, Schedule
from shoal.engine.schedules.participation import Participation
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import SECTIONS

# This is the function of a user's class.
OWN = "shoal.engine.schedules.own:make_own"


class Chosen(NamedTuple):
    """A schedule that is made on the server, and the options of its cohorts."""

    make: MakeSchedule
    cohorts: ParticipationOptions


Choose = Callable[[Config, ParticipationOptions], Chosen]


def choose_schedule(config: Config, participation: ParticipationOptions, clients: int | None) -> Chosen:
    """Returns what makes the schedule of a run on its server, with so many `clients` that may take part.

    None: all do, whatever features say of synchronous rounds.

    Raises ShoalError: a key asks for more clients than there are, or a file that it names is wrong.
    """
    if not config.schedule.synchronous:
        name = config.schedule.name
        place = next((section.make_schedule for section in SECTIONS if name in section.schedules), OWN)
        choose: Choose = load(place)
        return choose(config, participation)
    acting = [section for section in SECTIONS if clients is not None and section.is_on(config)]
    selects = next((load(section.selects)(config, clients) for section in acting if section.selects), None)
    attends = next((load(section.attends)(config) for section in acting if section.attends), None)
    if selects is None and attends is None:
        return Chosen(Schedule.of, participation)
    return Chosen(partial(Participation, selects, attends), participation)
