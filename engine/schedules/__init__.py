"""The schedules by their names in a config: which clients take part, and from which model they train."""

from collections.abc import Callable, Mapping
from importlib import import_module

from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.rounds.sampling import MakeSchedule, Schedule

SYNCHRONOUS = "synchronous"
# Each function checks its keys and returns what makes the schedule on the server; a run imports its own alone.
SCHEDULES: Mapping[str, str] = {
    SYNCHRONOUS: "shoal.engine.schedules.participation:make_participation",
    "fedbuff": "shoal.engine.schedules.asynchronous:make_asynchronous",
    "fedasync": "shoal.engine.schedules.asynchronous:make_asynchronous",
    "tiers": "shoal.engine.schedules.asynchronous:make_asynchronous",
}
# This is the function of a user's class.
OWN = "shoal.engine.schedules.own:make_own"


def choose_schedule(config: Config, participation: ParticipationOptions) -> MakeSchedule:
    """Returns what makes the schedule of a run on its server.

    Raises ShoalError: a key asks for more clients than there are, or a file that it names is wrong.
    """
    name = config.schedule.name
    if name == SYNCHRONOUS and not participation.simulates:
        return Schedule.of
    module, _, function = SCHEDULES.get(name, OWN).partition(":")
    make: Callable[[Config, ParticipationOptions], MakeSchedule] = getattr(import_module(module), function)
    return make(config, participation)
