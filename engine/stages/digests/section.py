"""Digests of uploads, which the key `run.keep_digests` asks for."""

from typing import Any

from pydantic.dataclasses import dataclass

from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Flag


@dataclass(frozen=True, config=CLOSED)
class DigestsOptions:
    """The digests that are kept of a run.

    Attributes:
        keep_digests: Keep a digest of each upload, 16 bytes for a client and phase, in `uploads.arrows`, with which
            `shoal replay` compares.
    """

    keep_digests: Flag = False


DIGESTS = Section[Any](
    "run",
    None,
    switch="keep_digests",
    off=False,
    adds={"run": DigestsOptions},
    stages=((90, "shoal.engine.stages.digests.digests:make"),),
    called="digests",
)
