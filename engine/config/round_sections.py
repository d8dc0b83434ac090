"""Sections of a config about its rounds: who takes part, and when."""

import os
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.words import Table, word_or_own
from shoal.storage.options.types import (
    CLOSED,
    Count,
    FilePath,
    Name,
    Number,
    Positive,
    Seed,
    Whole,
    WithShortForm,
)


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
class ParticipationOptions:
    """The clients of a round: without more keys drawn uniformly and without replacement, and all finish.

    Attributes:
        ratio: Share of all clients, rounded down to one or more.
        count: Number of clients; wins over `ratio`.
        draw: So many clients in every round (`fixed`); each on its own with that share as its probability
            (`poisson`), so that their number varies and may be 0; or drawn groups of at most so many, equal but for
            one client, that take part by turns (`cyclic`).
        at_least: A round with fewer clients online does not take place.
        trace: `.npy` of 0 and 1, `[rounds, clients]`: which client is online in which round, repeated from its start.
        without: Clients that never answer: each is drawn as the others are, and left out of its rounds, so that the
            rounds of others stay as they are. They are still evaluated.
        availability: When clients are online, without a trace.
        devices: What clients compute with, as of `shoal clock`: `phones`, `hospital` or a CSV.
        network: Their links, as of `shoal clock`: `consumer`, `institutions` or a CSV.
        seed: Of availability, devices and links, which runs of another `seed` share.
        deadline: Seconds of simulated time after which the server waits for no upload.
        over_selection: So many times the clients are drawn, rounded up; those that finish first take part.
        dropout: Chance that a drawn client drops out of the round.
        selection: How clients are drawn: uniformly (`random`), by `loss`, `oort`, `power_of_choice`, or by
            `my_file.py:Select`; see `shoal.engine.schedules.selection`.
        candidates: Clients among which `power_of_choice` chooses; null: twice as many as it chooses.
    """

    ratio: Annotated[Number, Field(gt=0, le=1)] = 1.0
    count: Positive | None = None
    draw: Literal["fixed", "poisson", "cyclic"] = "fixed"
    at_least: Positive = 1
    trace: FilePath | None = None
    without: tuple[Whole, ...] = ()
    availability: AvailabilityOptions = AvailabilityOptions()
    devices: Table | None = None
    network: Table | None = None
    seed: Seed = 0
    deadline: Annotated[Number, Field(gt=0)] | None = None
    over_selection: Annotated[Number, Field(ge=1, le=100)] = 1.0
    dropout: Annotated[Number, Field(ge=0, lt=1)] = 0.0
    selection: Annotated[Name, word_or_own("random", "loss", "oort", "power_of_choice")] = "random"
    candidates: Positive | None = None

    def size(self, clients: int) -> int:
        """Counts the clients that take part in a round where all are online; of groups, in the largest."""
        return -(-clients // self.groups(clients)) if self.draw == "cyclic" else self._count_asked(clients)

    def groups(self, clients: int) -> int:
        """Counts the groups that take part by turns, with `draw: cyclic`."""
        return -(-clients // self._count_asked(clients))

    def _count_asked(self, clients: int) -> int:
        return self.count or max(1, int(clients * self.ratio + 1e-9))

    @property
    def simulates(self) -> bool:
        """Returns whether anything but the uniform draw, and a trace, says who takes part, or when a round ends."""
        usual = self.selection == "random" and not self.dropout and self.devices is None
        return not usual or self.availability.kind != "always"


FEDASYNC, TIERS = "fedasync", "tiers"
# A name of ours is no path.
IN_ORDER = Field(union_mode="left_to_right")


@dataclass(frozen=True, config=CLOSED)
class ScheduleOptions(WithShortForm):
    """The rule by which the server steps; see docs/asynchronous.md. A name alone stands for the section.

    Attributes:
        name: With the uploads of a cohort, round by round (`synchronous`), with every upload (`fedasync`), with every
            `buffer` uploads (`fedbuff`), or with those of a cohort of one of `tiers`, which come in simulated time; or
            as `my_file.py:Mine` says.
        concurrency: Clients that train at a time.
        buffer: Uploads of a step of `fedbuff`.
        tiers: Groups of clients of about one speed, the fastest first; sizes differ by one client at most.
        staleness: Weight of an upload by its staleness s, the steps of the server since its client began: 1
            (`constant`), (1 + s)^-a (`polynomial`), or 1 up to s = b and 1 / (a (s - b) + 1) from there (`hinge`).
        a: See `staleness`.
        b: See `staleness`.
        mixing: Weight of an upload of `fedasync` that is not stale.
        devices: What clients compute with, `phones`, `hospital` or a CSV as of `shoal clock`.
        network: Their links, `consumer`, `institutions` or such a CSV; with `none` messages take no time.
        seed: Of the device and the link of each client.
    """

    short: ClassVar[str] = "name"
    name: Annotated[Name, word_or_own("synchronous", "fedasync", "fedbuff", TIERS, own="MySchedule")] = "synchronous"
    concurrency: Positive = 10
    buffer: Positive = 10
    tiers: Positive = 5
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    a: Annotated[Number, Field(gt=0)] = 0.5
    b: Count = 4
    mixing: Annotated[Number, Field(gt=0, le=1)] = 0.6
    devices: Annotated[Literal["phones", "hospital"] | FilePath, IN_ORDER] = "phones"
    network: Annotated[Literal["none", "consumer", "institutions"] | FilePath, IN_ORDER] = "consumer"
    seed: Seed = 0

    @property
    def synchronous(self) -> bool:
        """Returns whether rounds follow one another."""
        return self.name == "synchronous"

    @property
    def in_step(self) -> int:
        """Returns how many uploads make a step, which does not wait for a tier."""
        return 1 if self.name == FEDASYNC else self.buffer

    @property
    def files(self) -> dict[str, str]:
        """Lists files of the user's own, by key."""
        named = {"schedule.devices": self.devices, "schedule.network": self.network}
        return {key: place for key, place in named.items() if os.path.isabs(place)}
