"""The end of rounds that some clients miss: they drop out, or finish too late in simulated time.

Simulated times follow from formulas before any client trains, so clients that would not count are not trained, as if
they had been offline. Axes: B all clients, C those drawn.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from shoal.algorithms.base import Algorithm
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.schedules.availability.section import AVAILABILITY, AttendanceOptions, ends_early
from shoal.engine.schedules.participation import Attendance, Ended, MakeAttendance
from shoal.engine.sections.words import is_csv
from shoal.engine.simulation.schedule import DEVICES, NETWORKS, Fleet, read_classes, schedule
from shoal.engine.simulation.work import work_of
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store


class PartialAttendance(Attendance):
    """The end of rounds in which some clients drop out, or come too late."""

    def __init__(
        self,
        options: AttendanceOptions,
        fleet: Fleet | None,
        job: Job,
        store: Store,
        algorithm: Algorithm,
        models: Sequence[BuiltModel],
    ) -> None:
        """Prepares rounds on devices and links, where there are any.

        Raises a ShoalError: a model's work is not known, or no client can meet the deadline.
        """
        super().__init__(store.clients)
        self._options, self._fleet, self._seed = options, fleet, job.seed
        self._deadline = math.inf if options.deadline is None else options.deadline
        if fleet is not None:
            work, how = work_of(job, store, algorithm, models, "devices.kind"), job.stages.get("communication")
            plain = fleet.seconds(work.train) + fleet.seconds(work.upload)
            self._compute = plain, plain + fleet.seconds(work.evaluate)
            parameters = np.array([float(len(built.flat.w)) for built in models])[list(job.model_of)]
            # A message is one model, and `local` sends none.
            self._down = 4 * parameters * (job.method.name != "local")
            self._up = self._down * (1 if how is None else 2 * how.ratio if how.upload == "topk" else 0.25)
            self.alone = plain + schedule(fleet, np.arange(store.clients), self._down, self._up, plain).moving
        if self.alone.min() > self._deadline:
            raise ShoalError(
                "participation.deadline",
                f"no client can meet {self._deadline:g} s: the fastest takes {self.alone.min():.4g} s alone; raise it",
            )

    def count(self, size: int) -> int:
        return math.ceil(size * self._options.over_selection - 1e-9)

    def end(self, drawn: np.ndarray, size: int, number: int, evaluates: bool) -> Ended:
        """Ends a round: of the drawn ones some drop out and some are late; of the others the first to finish take part.

        The round ends with the last of these, or with the deadline, should they be fewer.
        """
        fleet = self._fleet
        lost = np.random.default_rng(key(self._seed, number, "dropout")).random(len(self.alone))[drawn]
        lost = lost < self._options.dropout
        finished = np.zeros(len(drawn))
        if fleet is not None:
            up, compute = np.where(lost, 0.0, self._up[drawn]), self._compute[evaluates][drawn]
            finished = schedule(fleet, drawn, self._down[drawn], up, compute).finished
        late = ~lost & (finished > self._deadline)
        in_time = np.flatnonzero(~lost & ~late)
        first = in_time[np.argsort(finished[in_time], kind="stable")][:size]
        missing = {"dropped": drawn[lost], "late": drawn[late], "surplus": np.setdiff1d(drawn[in_time], drawn[first])}
        seconds = None
        if fleet is not None:
            waits = len(first) < min(size, len(drawn)) and self._deadline < math.inf
            seconds = self._deadline if waits else float(finished[first].max(initial=0.0))
        return Ended(drawn[np.sort(first)], missing, seconds)


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns when clients are online, and which of those that are drawn do not finish."""
    options = AVAILABILITY.of(config)
    online, texts = options.availability, []
    if options.trace is not None:
        texts.append(f"clients are online by {Path(options.trace).name}")
    elif is_csv(online.kind):
        texts.append(f"clients are online by {Path(online.kind).name}")
    elif online.kind != "always":
        texts.append(f"clients are online {100 * online.share:g} % of {online.period} rounds ({online.kind})")
    if options.dropout:
        texts.append(f"one that is drawn drops out with chance {options.dropout:g}")
    if options.over_selection > 1:
        texts.append(f"{options.over_selection:g} times as many are drawn, and the first to finish count")
    if options.deadline is not None:
        texts.append(f"uploads after {options.deadline:g} s of simulated time do not")
    return {"availability": "; ".join(texts)}


def make_attendance(config: Config) -> MakeAttendance | None:
    """Reads devices and links, and returns what makes the end of rounds; None: all who are online finish.

    Raises ShoalError: a file of these is wrong.
    """
    if not ends_early(config):
        return None
    fleet, places = None, config.devices
    if places.kind is not None and places.network is not None:
        devices = read_classes(places.kind, "devices", DEVICES)
        links = read_classes(places.network, "networks", NETWORKS)
        fleet = Fleet.of(devices, links, config.partition.clients, places.seed)
    return partial(PartialAttendance, AVAILABILITY.of(config), fleet)
