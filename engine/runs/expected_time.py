"""The time that a run is expected to take, by part: its start, the preparing of its store, and its rounds."""

import time
from typing import NamedTuple

import psutil

from shoal.engine.config.config import Config
from shoal.engine.config.sizes import machine_cores
from shoal.engine.screen.tables import short

# Seconds of Ray itself, before any process of the run loads.
RAY_STARTS = 5.0
# Seconds of preparing the smallest graph, and directed edges that are prepared in a second, all steps together
# (docs/results/costs.md).
PREPARING_TAKES, PREPARED_A_SECOND = 1.0, 1e6
# Seconds of messages: of a round on Ray, and of each visit.
ROUND_ON_RAY, VISIT = 0.025, 0.0003
# A process that is older does more than loading.
LONGEST_LOAD = 60.0


class ExpectedTime(NamedTuple):
    """The seconds of a run, without the method's own work."""

    start: float
    preparing: float
    training: float
    evaluation: float
    messages: float

    @property
    def rounds(self) -> float:
        """Returns the seconds of all rounds."""
        return self.training + self.evaluation + self.messages

    def in_words(self) -> str:
        """Says the whole time and its parts."""
        preparing = f", preparing {short(self.preparing)} s" if self.preparing else ""
        rounds = ", ".join(
            f"{name} {short(seconds)} s"
            for name, seconds in zip(("training", "evaluation", "messages"), self[2:])
            if seconds
        )
        whole = self.start + self.preparing + self.rounds
        return (
            f"about {short(whole)} s: start {short(self.start)} s{preparing}, rounds {short(self.rounds)} s ({rounds}) "
            "without the method's own work"
        )


def loading_time() -> float:
    """Returns the seconds since this process began, which loads what every process of a run does."""
    return min(time.time() - psutil.Process().create_time(), LONGEST_LOAD)


def start_time(hosts: int, load: float) -> float:
    """Estimates the seconds until round 1: hosts and server load side by side, as many at a time as there are cores.

    Without `hosts`, 0, this process is all.
    """
    return load + RAY_STARTS + load * max(1.0, (hosts + 1) / machine_cores()) if hosts else load


def preparing_time(entries: int, reading: float) -> float:
    """Estimates the seconds of preparing a store of so many directed edges, of which reading took what was measured."""
    return reading + PREPARING_TAKES + entries / PREPARED_A_SECOND


def message_time(config: Config, cohort: int) -> float:
    """Estimates the seconds of all rounds in which neither hosts nor server compute."""
    of_a_round = (ROUND_ON_RAY if config.engine.backend == "ray" else 0.0) + VISIT * cohort
    return config.rounds * of_a_round
