"""The key `stages`: stages of uploads in the user's own files."""

from typing import Annotated, Any

from pydantic import Field

from shoal.engine.sections.rules import Rule, acts_on_uploads
from shoal.engine.sections.section import Section
from shoal.storage.options.types import Named

MOST_STAGES = 20
MEANING = "A list of stages of uploads, `my_file.py:Name`, or mappings of `name` and options."
Stages = Annotated[tuple[Named, ...], Field(max_length=MOST_STAGES, description=MEANING)]

USERS = Section[Any](
    "stages",
    None,
    switch="",
    off=(),
    value=Stages,
    rules=(
        *acts_on_uploads("stages", own_schedules=True),
        # Their further round asks no stage at the server.
        Rule(("stages",), "data.newcomers", "0", lambda c: not c.data.newcomers, beside="newcomers"),
    ),
    # They act behind attacks, and before uploads are bounded, compressed or hidden.
    stages=((15, "shoal.engine.stages.users.users:make"),),
    on_hosts="shoal.engine.stages.users.users:read_stages",
    checks="shoal.engine.stages.users.users:require_stages",
    says="shoal.engine.stages.users.users:describe_run",
)
