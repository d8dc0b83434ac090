"""Sections of a config about its rounds: who takes part, when, and on which devices; features have more keys there."""

import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.algorithms.methods.registry.names import AVERAGE_ONE_MODEL
from shoal.engine.sections.rules import OWN, Rule, one_of
from shoal.engine.sections.sections import SECTIONS, add_options
from shoal.engine.sections.words import word_or_own
from shoal.storage.options.types import CLOSED, FilePath, Name, Number, Positive, Seed, Whole, WithShortForm, is_own

# A name of ours is no path.
IN_ORDER = Field(union_mode="left_to_right")


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
        without: Clients that never answer: each is drawn as the others are, and left out of its rounds, so that the
            rounds of others stay as they are. They are still evaluated.
    """

    ratio: Annotated[Number, Field(gt=0, le=1)] = 1.0
    count: Positive | None = None
    draw: Literal["fixed", "poisson", "cyclic"] = "fixed"
    at_least: Positive = 1
    without: tuple[Whole, ...] = ()

    def size(self, clients: int) -> int:
        """Counts the clients that take part in a round where all are online; of groups, in the largest."""
        return -(-clients // self.groups(clients)) if self.draw == "cyclic" else self._count_asked(clients)

    def groups(self, clients: int) -> int:
        """Counts the groups that take part by turns, with `draw: cyclic`."""
        return -(-clients // self._count_asked(clients))

    def _count_asked(self, clients: int) -> int:
        return self.count or max(1, int(clients * self.ratio + 1e-9))


SYNCHRONOUS = "synchronous"
# The schedules of features have these names.
OTHERS = tuple(name for section in SECTIONS for name in section.schedules)


@dataclass(frozen=True, config=CLOSED)
class ScheduleOptions(WithShortForm):
    """The rule by which the server steps; see docs/asynchronous.md. A name alone stands for the section.

    Attributes:
        name: With the uploads of a cohort, round by round (`synchronous`), with every upload (`fedasync`), with every
            `buffer` uploads (`fedbuff`), or with those of a cohort of one of `tiers`, which come in simulated time; or
            as `my_file.py:Mine` says.
    """

    short: ClassVar[str] = "name"
    name: Annotated[Name, word_or_own(SYNCHRONOUS, *OTHERS, own="MySchedule")] = SYNCHRONOUS

    @property
    def synchronous(self) -> bool:
        """Returns whether rounds follow one another."""
        return self.name == SYNCHRONOUS


if not TYPE_CHECKING:
    # A feature reads its keys by `Section.of`, which knows their types.
    ParticipationOptions = add_options(ParticipationOptions, "participation", __name__)
    ScheduleOptions = add_options(ScheduleOptions, "schedule", __name__)


@dataclass(frozen=True, config=CLOSED)
class DeviceOptions:
    """The devices and links of clients, by which rounds take simulated time.

    Attributes:
        kind: What clients compute with, as of `shoal clock`: `phones`, `hospital` or a CSV; null: rounds take no time,
            those of `fedasync`, `fedbuff` and `tiers` that of `phones`.
        network: Their links, as of `shoal clock`: `consumer`, `institutions` or a CSV; or `none` with these schedules:
            messages take no time. Null: as `kind`, with these schedules `consumer`.
        seed: Of the device, the link and the availability of each client, which runs of another `seed` share.
    """

    kind: Annotated[Literal["phones", "hospital"] | FilePath, IN_ORDER] | None = None
    network: Annotated[Literal["none", "consumer", "institutions"] | FilePath, IN_ORDER] | None = None
    seed: Seed = 0

    @property
    def in_steps(self) -> "DeviceOptions":
        """Returns the options as schedules in simulated time read them."""
        return replace(self, kind=self.kind or "phones", network=self.network or "consumer")

    @property
    def files(self) -> dict[str, str]:
        """Lists files of the user's, by key."""
        named = {"devices.kind": self.kind, "devices.network": self.network}
        return {key: place for key, place in named.items() if place is not None and os.path.isabs(place)}


def _keys_of(section: str, options: type) -> list[str]:
    """Lists dotted keys of a section; in place of sections inside it, which have a word, the keys of these words."""
    keys = {field.name: f"{section}.{field.name}" for field in fields(options)}
    inner = {field.name: getattr(type(field.default), "short", None) for field in fields(options)}
    return [key if inner[name] is None else f"{key}.{inner[name]}" for name, key in keys.items()]


# Whether rounds that follow one another may end in simulated time.
END_IN_TIME = any(section.attends for section in SECTIONS)
PARTICIPATION = _keys_of("participation", ParticipationOptions)
DEVICES = _keys_of("devices", DeviceOptions)
RULES = (
    Rule(
        (*PARTICIPATION, *DEVICES), "algorithm.name", "with several clients", lambda c: c.algorithm.name != "global",
    ),
    Rule(("participation.ratio",), "participation.count", "null", lambda c: c.participation.count is None),
    Rule(
        tuple(key for key in PARTICIPATION if key not in ("participation.ratio", "participation.count")),
        "schedule.name", SYNCHRONOUS, lambda c: c.schedule.synchronous,
    ),
    Rule(
        ("schedule.name",), "algorithm.name", f"{', '.join(AVERAGE_ONE_MODEL)} or {OWN}",
        lambda c: c.algorithm.name in AVERAGE_ONE_MODEL or is_own(c.algorithm.name) or is_own(c.schedule.name),
    ),
    one_of(" ".join(DEVICES), "schedule.name", *([SYNCHRONOUS] if END_IN_TIME else []), *OTHERS),
)  # fmt: skip
