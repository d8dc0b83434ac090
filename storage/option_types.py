"""What options are made of. An options class is a section of a config: its fields are the keys, with all their bounds.

Such a class is a frozen pydantic dataclass that stands beside what it is for, so that a value is refused alike when a
config is read and when the class is called.
"""

import os
import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
# For the decorator of an options class.
CLOSED = ConfigDict(extra="forbid")


def absolute(value: Any) -> Any:
    """A path as text made absolute, since workers run in other folders; anything else as it is."""
    return os.path.abspath(os.path.expanduser(value)) if isinstance(value, str) else value


def _bytes(value: Any) -> Any:
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2] not in UNITS:
        return value
    return int(float(match[1]) * UNITS[match[2]])


FilePath = Annotated[str, BeforeValidator(absolute)]
# Bytes, or a text such as `8GiB`.
Size = Annotated[int, BeforeValidator(_bytes), Field(gt=0)]
Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]


class Named(BaseModel):
    """A name and the options of what it names, checked where the name is looked up."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """All keys that this class does not know."""
        return dict(self.model_extra or {})
