"""The keys of `participation` of rounds that some clients miss, or do not finish."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import Rule, one_of
from shoal.engine.sections.section import Section
from shoal.engine.sections.words import Table, is_csv, word_or_own
from shoal.storage.options.types import CLOSED, FilePath, Number, Positive, WithShortForm


@dataclass(frozen=True, config=CLOSED)
class AvailabilityOptions(WithShortForm):
    """The times at which clients are online (`shoal.engine.schedules.availability`). A kind alone stands for the
    section.

    Attributes:
        kind: In all rounds (`always`); each client in the same part of every period, from a place of its own on
            (`periodic`); in drawn sessions (`weibull`); or in those of `my_file.csv` with the columns `client`, `from`
            and `to`, rounds from 1, both of them included.
        period: Rounds from one session to the next; of `weibull` the mean.
        share: Of the period that a client is online.
        shape: Of the Weibull distribution of sessions and of the pauses between them; 1 is exponential.
    """

    kind: Annotated[Table, word_or_own("always", "periodic", "weibull", table=True)] = "always"
    period: Positive = 24
    share: Annotated[Number, Field(gt=0, lt=1)] = 0.5
    shape: Annotated[Number, Field(ge=0.2, le=20)] = 1.0


@dataclass(frozen=True, config=CLOSED)
class AttendanceOptions:
    """The clients that are online, and those that take part to the end of a round.

    Attributes:
        trace: `.npy` of 0 and 1, `[rounds, clients]`: which client is online in which round, repeated from its start.
        availability: When clients are online, without a trace.
        deadline: Seconds of simulated time after which the server waits for no upload.
        over_selection: So many times the clients are drawn, rounded up; those that finish first take part.
        dropout: Chance that a drawn client drops out of the round.
    """

    trace: FilePath | None = None
    availability: AvailabilityOptions = AvailabilityOptions()
    deadline: Annotated[Number, Field(gt=0)] | None = None
    over_selection: Annotated[Number, Field(ge=1, le=100)] = 1.0
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0


def _is_on(config: Any) -> bool:
    return config.participation.trace is not None or ends_early(config)


def ends_early(config: Any) -> bool:
    """Returns whether clients are offline in drawn sessions, or may not finish a round, in simulated time or not."""
    part = config.participation
    on_devices = config.devices.kind is not None and config.schedule.synchronous
    return part.availability.kind != "always" or part.dropout > 0 or on_devices


def _files(config: Any) -> Mapping[str, str]:
    part = config.participation
    named = {"participation.trace": part.trace}
    if is_csv(part.availability.kind):
        named["participation.availability.kind"] = part.availability.kind
    return {key: file for key, file in named.items() if file is not None}


def _words(config: Any) -> str:
    part = config.participation
    return " of those online" if part.trace or part.availability.kind != "always" else ""


KIND = "participation.availability.kind"
AVAILABILITY = Section[AttendanceOptions](
    "participation",
    None,
    switch="availability",
    off=AvailabilityOptions(),
    adds={"participation": AttendanceOptions},
    on=_is_on,
    called="availability",
    rules=(
        Rule(
            ("participation.draw",), KIND, "always, without trace, devices and dropout", lambda c: not _is_on(c),
        ),
        Rule(
            ("participation.at_least",), "participation.trace", "a file, or another availability than always",
            lambda c: c.participation.trace is not None or c.participation.availability.kind != "always",
        ),
        Rule((KIND,), "participation.trace", "null", lambda c: c.participation.trace is None),
        one_of("participation.availability.period participation.availability.share", KIND, "periodic", "weibull"),
        one_of("participation.availability.shape", KIND, "weibull"),
        Rule(
            ("participation.deadline", "participation.over_selection"), "devices.kind", "given, with devices.network",
            lambda c: c.devices.kind is not None,
        ),
        Rule(
            ("devices.kind",), "devices.network", "given",
            lambda c: c.devices.network is not None or not c.schedule.synchronous,
        ),
        Rule(
            ("devices.network",), "devices.kind", "given, with devices.network",
            lambda c: c.devices.kind is not None or not c.schedule.synchronous,
        ),
        Rule(
            ("devices.seed",), "devices.kind", "given, or participation.availability periodic or weibull",
            lambda c: c.devices.kind or not c.schedule.synchronous
            or c.participation.availability.kind in ("periodic", "weibull"),
        ),
    ),
    online="shoal.engine.schedules.availability.availability:online_in",
    attends="shoal.engine.schedules.availability.attendance:make_attendance",
    takes_part=_words,
    says="shoal.engine.schedules.availability.attendance:describe_run",
    files=_files,
    facts="shoal.engine.records.summary:describe_visits",
)  # fmt: skip
