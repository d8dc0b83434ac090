"""Digests of uploads, which the key `run.keep_digests` asks for."""

from shoal.engine.sections.section import Section

DIGESTS = Section[None](
    "run",
    None,
    switch="keep_digests",
    off=False,
    stages=((90, "shoal.engine.stages.digests.digests:make"),),
    called="digests",
)
