"""All features that have a section in a config: the only list of them."""

from typing import Any

from shoal.engine.sections.section import Section
from shoal.engine.stages.compression.section import COMPRESSION
from shoal.engine.stages.digests.section import DIGESTS
from shoal.engine.stages.hostile.section import HOSTILE
from shoal.engine.stages.privacy.section import PRIVACY
from shoal.engine.stages.robust.section import ROBUST
from shoal.engine.stages.secure.section import SECURE
from shoal.engine.stages.users.section import USERS

# In their order in a config.
SECTIONS: tuple[Section[Any], ...] = (COMPRESSION, HOSTILE, ROBUST, PRIVACY, SECURE, USERS, DIGESTS)


def options_of(config: Any, name: str) -> Any | None:
    """Returns the options of a section whose feature a config turns on; None: it is off, or there is none."""
    return next((section.of(config) for section in SECTIONS if section.name == name and section.is_on(config)), None)
