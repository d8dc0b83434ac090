"""All features that have a section in a config: the only list of them."""

from collections.abc import Mapping
from typing import Any

from shoal.engine.sections.rules import Rule
from shoal.engine.sections.section import Section, load
from shoal.engine.stages.compression.section import COMPRESSION
from shoal.engine.stages.digests.section import DIGESTS
from shoal.engine.stages.hostile.section import HOSTILE
from shoal.engine.stages.privacy.section import PRIVACY
from shoal.engine.stages.robust.section import ROBUST
from shoal.engine.stages.secure.section import SECURE
from shoal.engine.stages.users.section import USERS

# Sections have the order that they have in a config.
SECTIONS: tuple[Section[Any], ...] = (COMPRESSION, HOSTILE, ROBUST, PRIVACY, SECURE, USERS, DIGESTS)
# Keys of the engine's own sections that belong to features.
KEYS_OF_FEATURES = ("stages", "run.keep_digests")


def list_dead_keys() -> list[str]:
    """Lists the keys of the engine's own sections whose feature is not there, so that nothing reads them."""
    read = {f"{section.name}.{section.switch}".rstrip(".") for section in SECTIONS if section.options is None}
    return [key for key in KEYS_OF_FEATURES if key not in read]


def list_rules() -> list[Rule]:
    """Lists the rules of effect of all features, but those that name a feature that is not there."""
    names = {section.name for section in SECTIONS}
    return [rule for section in SECTIONS for rule in section.rules if not rule.beside or rule.beside in names]


def options_of(config: Any, name: str) -> Any | None:
    """Returns the options of a section whose feature a config turns on; None: it is off, or there is none."""
    return next((section.of(config) for section in SECTIONS if section.name == name and section.is_on(config)), None)


def find_bounding(config: Any) -> Section[Any] | None:
    """Returns the section that bounds by epsilon what uploads of a run say of clients; None: nothing does."""
    return next((section for section in SECTIONS if section.epsilon and section.is_on(config)), None)


def why_skipped(config: Any, line: Mapping[str, Any]) -> str:
    """Returns why the round of a line was skipped, so that it changed nothing; empty: it was not."""
    reasons = (load(section.skipped)(line) for section in SECTIONS if section.skipped and section.is_on(config))
    return next(filter(None, reasons), "")
