"""All features that have a section in a config: the only list of them."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from pydantic.dataclasses import dataclass

from shoal.engine.newcomers.section import NEWCOMERS
from shoal.engine.preparing.cross_edges.section import CROSS_EDGES
from shoal.engine.preparing.noise.section import NOISE
from shoal.engine.schedules.asynchronous.section import ASYNCHRONOUS
from shoal.engine.schedules.availability.section import AVAILABILITY
from shoal.engine.schedules.selection.section import SELECTION
from shoal.engine.sections.rules import Rule
from shoal.engine.sections.section import Section, StoreChange, load
from shoal.engine.stages.compression.section import COMPRESSION
from shoal.engine.stages.digests.section import DIGESTS
from shoal.engine.stages.hostile.section import HOSTILE
from shoal.engine.stages.privacy.section import PRIVACY
from shoal.engine.stages.robust.section import ROBUST
from shoal.engine.stages.secure.section import SECURE
from shoal.engine.stages.users.section import USERS
from shoal.engine.targets.section import TARGET
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import CLOSED

# Sections have the order that they have in a config.
SECTIONS: tuple[Section[Any], ...] = (
    *(TARGET, CROSS_EDGES, NOISE, AVAILABILITY, SELECTION, ASYNCHRONOUS),
    *(COMPRESSION, HOSTILE, ROBUST, PRIVACY, SECURE, USERS, DIGESTS, NEWCOMERS),
)


def list_rules() -> list[Rule]:
    """Lists the rules of effect of all features, but those that name a feature that is not there."""
    names = {section.feature for section in SECTIONS} | {section.name for section in SECTIONS}
    return [rule for section in SECTIONS for rule in section.rules if not rule.beside or rule.beside in names]


def options_of(config: Any, name: str) -> Any | None:
    """Returns the options of a feature by its name, where a config turns it on; None: it is off, or there is none."""
    return next((section.of(config) for section in SECTIONS if section.feature == name and section.is_on(config)), None)


def add_options(options: type, section: str, module: str) -> Any:
    """Returns the class of a section of the engine with the options that features add to it, to be named in a module
    as it is.
    """
    added = [feature.adds[section] for feature in SECTIONS if section in feature.adds]
    # Fields of the last class come first.
    whole = type(options.__name__, (*reversed(added), options), {"__module__": module, "__doc__": options.__doc__})
    return dataclass(frozen=True, config=CLOSED)(whole) if added else options


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


def describe_done(config: Any, parameters: Sequence[int], rounds: int) -> dict[str, dict[str, str]]:
    """Returns what features do to a run by their names, and by subject, after so many rounds; see `Section.says`."""
    texts = {section.feature: section.says_of(config, parameters, rounds) for section in SECTIONS}
    return {feature: lines for feature, lines in texts.items() if lines}


def by_subject(done: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns the same by subject alone."""
    return {subject: text for lines in done.values() for subject, text in lines.items()}


def find_bounding(config: Any) -> Section[Any] | None:
    """Returns the section that bounds by epsilon what uploads of a run say of clients; None: nothing does."""
    return next((section for section in SECTIONS if section.epsilon and section.is_on(config)), None)


def list_store_changes(config: Any) -> list[StoreChange]:
    """Lists what the features of a config change of its store, in their order."""
    return [section.store_change for section in SECTIONS if section.store_change and section.is_on(config)]


def describe_store(made: Mapping[str, Any]) -> dict[str, str]:
    """Returns what features changed of a store, by subject, from its identity."""
    changes = [section.store_change for section in SECTIONS if section.store_change]
    return {subject: text for change in changes for subject, text in change.describe(made).items()}


def layout_of(config: Any) -> str:
    """Returns the layout of a config's features; `auto` is dense where a feature fills what is zero."""
    fills = config.data.layout == "auto" and any(change.fills(config) for change in list_store_changes(config))
    return "dense" if fills else str(config.data.layout)


def load_crossing() -> ModuleType:
    """Imports the steps of hops over edges between clients. Raises ShoalError: their feature is not there."""
    place = next((section.crossing for section in SECTIONS if section.crossing), None)
    if place is None:
        raise ShoalError("data.cross_edges", "there is no code here for edges between clients, which a store has")
    return import_module(place)


def why_skipped(config: Any, line: Mapping[str, Any]) -> str:
    """Returns why the round of a line was skipped, so that it changed nothing; empty: it was not."""
    reasons = (load(section.skipped)(line) for section in SECTIONS if section.skipped and section.is_on(config))
    return next(filter(None, reasons), "")
