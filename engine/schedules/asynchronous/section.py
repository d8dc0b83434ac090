"""The keys of `schedule` of rounds that do not wait for one another."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import OWN, one_of
from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Count, Number, Positive

FEDASYNC, FEDBUFF, TIERS = "fedasync", "fedbuff", "tiers"


@dataclass(frozen=True, config=CLOSED)
class StepOptions:
    """The steps of the server in simulated time; see docs/asynchronous.md.

    Attributes:
        concurrency: Clients that train at a time.
        buffer: Uploads of a step of `fedbuff`.
        tiers: Groups of clients of about one speed, the fastest first; sizes differ by one client at most.
        staleness: Weight of an upload by its staleness s, the steps of the server since its client began: 1
            (`constant`), (1 + s)^-a (`polynomial`), or 1 up to s = b and 1 / (a (s - b) + 1) from there (`hinge`).
        a: See `staleness`.
        b: See `staleness`.
        mixing: Weight of an upload of `fedasync` that is not stale.
    """

    if TYPE_CHECKING:
        # The section has this key without the feature.
        name: str
    concurrency: Positive = 10
    buffer: Positive = 10
    tiers: Positive = 5
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: Annotated[Number, Field(gt=0)] = 0.5
    b: Count = 4
    mixing: Annotated[Number, Field(gt=0, le=1)] = 0.6

    @property
    def in_step(self) -> int:
        """Returns how many uploads make a step, which does not wait for a tier."""
        return 1 if self.name == FEDASYNC else self.buffer


def _words(config: Any) -> str:
    options = config.schedule
    grouped = f"in {options.tiers:,}" if options.name == TIERS else f"{options.concurrency:,} at a time,"
    return f"{grouped} {options.name}"


SCHEDULES = (FEDASYNC, FEDBUFF, TIERS)
ASYNCHRONOUS = Section[StepOptions](
    "schedule",
    None,
    switch="name",
    off="synchronous",
    adds={"schedule": StepOptions},
    on=lambda config: config.schedule.name in SCHEDULES,
    called="asynchronous",
    rules=(
        one_of("participation.ratio participation.count", "schedule.name", "synchronous", TIERS, OWN),
        one_of("schedule.concurrency schedule.staleness schedule.a schedule.b", "schedule.name", FEDASYNC, FEDBUFF),
        one_of("schedule.tiers", "schedule.name", TIERS),
        one_of("schedule.buffer", "schedule.name", FEDBUFF),
        one_of("schedule.mixing", "schedule.name", FEDASYNC),
        one_of("schedule.a", "schedule.staleness", "polynomial", "hinge"),
        one_of("schedule.b", "schedule.staleness", "hinge"),
    ),
    schedules=SCHEDULES,
    make_schedule="shoal.engine.schedules.asynchronous.asynchronous:make_asynchronous",
    takes_part=_words,
    says="shoal.engine.schedules.asynchronous.asynchronous:describe_run",
    more="shoal clock {run}",
)
