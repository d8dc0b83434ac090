"""The section `communication`: uploads of fewer bytes."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import acts_on_uploads, one_of
from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Flag, Number

# A run of which nothing is compressed says so by this subject.
NOT_COMPRESSED = "not compressed"


@dataclass(frozen=True, config=CLOSED)
class CommunicationOptions:
    """The form in which clients upload float tensors; see `shoal.engine.stages.compression`.

    Attributes:
        upload: All of it (`none`); the numbers of largest magnitude of each tensor's change (`topk`); or the change in
            one byte a number, rounded at random (`int8`). Tensors of fewer than 256 numbers are sent whole.
        ratio: Share of the numbers that `topk` sends, rounded down to one or more.
        error_feedback: Clients keep what was left unsent, and add it to their next upload.
    """

    upload: Literal["none", "topk", "int8"] = "none"
    ratio: Annotated[Number, Field(gt=0, le=1)] = 0.01
    error_feedback: Flag = True


COMPRESSION = Section(
    "communication",
    CommunicationOptions,
    switch="upload",
    off="none",
    rules=(
        *acts_on_uploads("communication.upload", own_schedules=True),
        one_of("communication.ratio", "communication.upload", "topk"),
        one_of("communication.error_feedback", "communication.upload", "topk", "int8"),
    ),
    stages=((30, "shoal.engine.stages.compression.compression:make"),),
    says="shoal.engine.stages.compression.compression:describe_run",
    warns=(NOT_COMPRESSED,),
    # The stage keeps the rest that was not sent.
    copies=lambda options: (int(options.error_feedback), 0),
)
