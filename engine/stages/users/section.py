"""The key `stages`: stages of uploads in the user's own files."""

from shoal.engine.sections.rules import Rule, acts_on_uploads
from shoal.engine.sections.section import Section

USERS = Section[None](
    "stages",
    None,
    switch="",
    off=(),
    rules=(
        *acts_on_uploads("stages"),
        # Their further round asks no stage at the server.
        Rule(("stages",), "data.newcomers", "0", lambda c: not c.data.newcomers),
    ),
    # They act behind attacks, and before uploads are bounded, compressed or hidden.
    stages=((15, "shoal.engine.stages.users.users:make"),),
    on_hosts="shoal.engine.stages.users.users:read_stages",
    checks="shoal.engine.stages.users.users:require_stages",
)
