"""All features that have a section in a config: the only list of them."""

from collections.abc import Mapping
from typing import Any

from pydantic.dataclasses import dataclass

from shoal.engine.newcomers.section import NEWCOMERS
from shoal.engine.schedules.asynchronous.section import ASYNCHRONOUS
from shoal.engine.schedules.availability.section import AVAILABILITY
from shoal.engine.schedules.selection.section import SELECTION
from shoal.engine.sections.rules import Rule
from shoal.engine.sections.section import Section, load
from shoal.engine.stages.compression.section import COMPRESSION
from shoal.engine.stages.digests.section import DIGESTS
from shoal.engine.stages.hostile.section import HOSTILE
from shoal.engine.stages.privacy.section import PRIVACY
from shoal.engine.stages.robust.section import ROBUST
from shoal.engine.stages.secure.section import SECURE
from shoal.engine.stages.users.section import USERS
from shoal.storage.options.types import CLOSED

# Sections have the order that they have in a config.
SECTIONS: tuple[Section[Any], ...] = (
    *(AVAILABILITY, SELECTION, ASYNCHRONOUS),
    *(COMPRESSION, HOSTILE, ROBUST, PRIVACY, SECURE, USERS, DIGESTS, NEWCOMERS),
)


def list_rules() -> list[Rule]:
    """Lists the rules of effect of all features, but those that name a feature that is not there."""
    names = {section.feature for section in SECTIONS} | {section.name for section in SECTIONS}
    return [rule for section in SECTIONS for rule in section.rules if not rule.beside or rule.beside in names]


def options_of(config: Any, name: str) -> Any | None:
    """Returns the options of a feature that a config turns on, by its name; None: it is off, or there is none."""
    return next((section.of(config) for section in SECTIONS if section.feature == name and section.is_on(config)), None)


def with_keys_of_features(name: str, core: type) -> Any:
    """Returns a class of the options of one of the engine's sections, with those that features have in it."""
    classes = [section.keys[name] for section in SECTIONS if name in section.keys]
    namespace = {"__doc__": core.__doc__, "__module__": core.__module__, "__qualname__": core.__name__}
    # Fields of the last class come first.
    return dataclass(frozen=True, config=CLOSED)(type(core.__name__, (*reversed(classes), core), namespace))


def changes_cohorts(config: Any) -> bool:
    """Returns whether a feature says who takes part, and rounds have other clients than the uniform draw."""
    saying = (section for section in SECTIONS if section.online or section.selects or section.attends)
    return any(section.is_on(config) for section in saying)


def files_of(config: Any) -> dict[str, str]:
    """Returns files of the user's that keys of features name, by key."""
    return {key: file for section in SECTIONS for key, file in section.files(config).items()}


def facts_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the head of a page has of what features counted, by subject."""
    facts: dict[str, str] = {}
    for section in SECTIONS:
        facts |= load(section.facts)(summary) if section.facts else {}
    return facts


def find_bounding(config: Any) -> Section[Any] | None:
    """Returns the section that bounds by epsilon what uploads of a run say of clients; None: nothing does."""
    return next((section for section in SECTIONS if section.epsilon and section.is_on(config)), None)


def why_skipped(config: Any, line: Mapping[str, Any]) -> str:
    """Returns why the round of a line was skipped, so that it changed nothing; empty: it was not."""
    reasons = (load(section.skipped)(line) for section in SECTIONS if section.skipped and section.is_on(config))
    return next(filter(None, reasons), "")
