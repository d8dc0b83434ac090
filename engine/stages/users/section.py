"""The key `stages`: stages of uploads in the user's own files."""

from shoal.engine.sections.rules import acts_on_uploads
from shoal.engine.sections.section import Section

USERS = Section[None](
    "stages",
    None,
    switch="",
    off=(),
    rules=acts_on_uploads("stages"),
    # They act behind attacks, and before uploads are bounded, compressed or hidden.
    stages=((15, "shoal.engine.stages.users.users:make"),),
    on_hosts="shoal.engine.stages.users.users:read_stages",
    checks="shoal.engine.stages.users.users:require_stages",
)
