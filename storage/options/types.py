"""Types of options. An options class is a section of a config: its fields are the keys, with all their bounds.

Such a class is a frozen pydantic dataclass beside what it configures. A value is refused the same way when a config is
read and when the class is called.
"""

import json
import math
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic import WithJsonSchema as Shown
from pydantic.dataclasses import dataclass

from shoal.storage.errors import ShoalError

UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}
# The decorator of an options class takes this.
CLOSED = ConfigDict(extra="forbid")
# All file systems that we know take names of so many bytes; a path as a whole has another limit.
LONGEST_NAME, LONGEST_PATH = 255, 4095
LONGEST_QUOTE = 200
# Rules of pydantic by their names, as a user reads them; what is in braces is a bound.
WHOLE = "expected a whole number"
RULES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "expected a list"),
    **dict.fromkeys(("dict_type", "mapping_type"), "expected keys with values"),
    **dict.fromkeys(("dataclass_type", "dataclass_exact_type"), "expected keys with values"),
    **dict.fromkeys(("model_type", "model_attributes_type"), "expected a name, or keys with a name among them"),
    "finite_number": "expected a finite number",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "literal_error": "expected {expected}",
    "none_required": "expected null",
    # The only pattern is that of names of runs and graphs.
    "string_pattern_mismatch": "expected letters, digits, dots, dashes and underscores",
    "string_too_long": "expected at most {max_length} characters",
    "string_too_short": "expected at least {min_length} characters",
    "string_type": "expected a text",
    "too_long": "expected at most {max_length} values",
    "too_short": "expected at least {min_length} values",
}
# A location of an error has these parts for the branch of a union; they are no keys.
OF_UNIONS = re.compile(
    r"(one|list of) (model|graph)s?|int|float|(literal|list|tuple)\[.*|constrained-(int|float)|"
    r"function-(before|after|wrap)\[.*|\[key\]"
)
# A store or a run can be at addresses of these schemes.
SCHEMES = ("s3", "gs", "file")


def one_of(option: str, value: str, *known: str) -> str:
    """Returns the value of an option. Raises ShoalError: it is none of the known ones."""
    if value not in known:
        raise ShoalError(option, f"must be one of {', '.join(known)}, found {value!r}")
    return value


def is_address(place: str | None) -> bool:
    """Whether a place is an address and no path."""
    return place is not None and "://" in place


def address_fault(address: str) -> str | None:
    """Says why no store and no run can have an address; None: one can."""
    parts = urlsplit(address)
    if parts.scheme not in SCHEMES:
        return f"expected a path, or an address of {', '.join(SCHEMES)}, as s3://bucket/folder"
    if "@" in parts.netloc:
        return "credentials do not belong into a config, which a run keeps; leave them to the environment"
    if not parts.path.strip("/") or (parts.scheme != "file" and not parts.netloc):
        return "expected a bucket and a folder in it, as s3://bucket/folder"
    return None


def absolute(value: Any) -> Any:
    """Makes a path as text absolute, since workers run in other folders; keeps an address, and anything else."""
    return os.path.abspath(os.path.expanduser(value)) if isinstance(value, str) and not is_address(value) else value


def is_own(name: str) -> bool:
    """Whether a name is one of a user's file, `my_file.py:Name`, and not one of ours."""
    file, colon, cls = name.rpartition(":")
    return bool(colon and file.endswith(".py") and cls)


def absolute_user_path(value: Any) -> Any:
    """Makes the file of `my_file.py:Name` absolute; keeps any other value."""
    return absolute(value) if isinstance(value, str) and is_own(value) else value


def _user_name(value: str) -> str:
    if not is_own(value):
        raise ValueError("expected a class of your file, my_file.py:Name")
    return value


def path_fault(path: str) -> str | None:
    """Says why no file can have a path; None: one can."""
    try:
        name = path.encode()
    except ValueError:
        return "has bytes that are no UTF-8; take another folder"
    if b"\0" in name:
        return "has a character that no path can have"
    if len(name) > LONGEST_PATH or max(map(len, name.split(b"/"))) > LONGEST_NAME:
        return f"a path has at most {LONGEST_PATH} bytes, and a name in it {LONGEST_NAME}"
    return None


def _path(path: str) -> str:
    if is_address(path):
        raise ValueError("expected a path; only data.store and run.root can be an address, as s3://bucket/folder")
    if fault := path_fault(path):
        raise ValueError(fault)
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError("is not in UTF-8, so no config can keep it; rename the file or folder") from None
    return path


def _place(place: str) -> str:
    if not is_address(place):
        return _path(place)
    if fault := address_fault(place):
        raise ValueError(fault)
    return place


def _bytes(value: Any) -> Any:
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", value) if isinstance(value, str) else None
    if match is None or match[2] not in UNITS:
        if isinstance(value, str):
            raise ValueError("expected bytes, as 1000000 or 8GiB")
        return value
    count = float(match[1]) * UNITS[match[2]]
    return int(count) if math.isfinite(count) else value


def _whole(value: Any) -> Any:
    """Accepts an integer, or a float that is one, as 1e5 in YAML; pydantic alone would take `true` and "3", too."""
    if isinstance(value, bool | str) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(WHOLE)
    return value


FilePath = Annotated[str, AfterValidator(_path), BeforeValidator(absolute), Shown({"type": "path"})]
# A folder of this machine, or an address.
Place = Annotated[str, AfterValidator(_place), BeforeValidator(absolute), Shown({"type": "path or address"})]
# A name that may be one of a user's file, and one that must be.
Name = Annotated[str, BeforeValidator(absolute_user_path)]
UserName = Annotated[
    str, AfterValidator(_user_name), BeforeValidator(absolute_user_path), Shown({"type": "my_file.py:Name"})
]
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=-(2**63), lt=2**63)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]
# A number of bytes, or a text such as `8GiB`.
Size = Annotated[int, BeforeValidator(_whole), BeforeValidator(_bytes), Field(gt=0, lt=2**63), Shown({"type": "bytes"})]
Positive = Annotated[Whole, Field(ge=1)]
Count = Annotated[Whole, Field(ge=0)]
Seed = Count
NotNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Chance = Annotated[float, Field(gt=0, lt=1)]


def _words(hint: Any) -> tuple[Any, ...]:
    """Words of a `Literal`, also where it is annotated or in a union."""
    return tuple(word for part in get_args(hint) for word in (part, *_words(part)))


def adapter(hint: Any) -> TypeAdapter[Any]:
    """Makes what checks values of a type, once for each type that can be a key; to make one takes a millisecond."""
    try:
        return _kept_adapter(hint)
    except TypeError:
        return TypeAdapter(hint)


@lru_cache(maxsize=512)
def _kept_adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def checked(hint: Any, value: Any) -> Any:
    """Converts a value of a config to the type that a class announces for it.

    Beside what that type refuses, truth values and texts are no numbers, and no number is NaN or infinite. The word
    `off`, which YAML reads as false, is the word where the type has it.

    Raises:
        ValueError: It is not of the type; its text says what it must be.
    """
    if value is False and "off" in _words(hint):
        return "off"
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("must be a finite number") from error
    try:
        if isinstance(value, list | tuple | dict):
            # A list of YAML may stand for a tuple, which only JSON lets it.
            return adapter(hint).validate_json(text, strict=True)
        # 1e5 may stand for an integer.
        return adapter(hint).validate_python(value, strict=not isinstance(value, float))
    except ValidationError as error:
        raise ValueError(message_of(error)) from None


def key_of(location: Sequence[str | int]) -> str:
    """Returns the dotted key at the location of an error, without branches of unions."""
    return ".".join(str(part) for part in location if not OF_UNIONS.fullmatch(str(part)))


def message_of(error: ValidationError) -> str:
    """Says the rule that the first wrong value breaks; of a value that may be of several kinds the rule of each."""
    errors = error.errors(include_url=False)
    key, rules = key_of(errors[0]["loc"]), dict[str, None]()
    for broken in errors:
        if key_of(broken["loc"]) == key:
            bounds = {
                name: f"{bound:g}" if isinstance(bound, float) else bound
                for name, bound in broken.get("ctx", {}).items()
            }
            text = RULES.get(broken["type"], "").format(**bounds)
            rules[text or broken["msg"].removeprefix("Value error, ")] = None
    first, *others = rules
    return ", or ".join([first, *(rule.removeprefix("expected ") for rule in others)])


def quoted(value: Any) -> str:
    """Quotes a wrong value for a message, cut off where it is long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]} …"


@dataclass(frozen=True, config=CLOSED)
class WithShortForm:
    """Options for which a word alone may stand, the value of their key `short`: `attack: sign_flip`."""

    short: ClassVar[str] = "kind"

    @model_validator(mode="before")
    @classmethod
    def _of_word(cls, given: Any) -> Any:
        return {cls.short: given} if isinstance(given, str) else given


class Named(BaseModel):
    """A name and the options of what it names, checked where the name is looked up; the name alone may stand for it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    short: ClassVar[str] = "name"
    name: Name

    @model_validator(mode="before")
    @classmethod
    def _of_word(cls, given: Any) -> Any:
        return {cls.short: given} if isinstance(given, str) else given

    @property
    def options(self) -> dict[str, Any]:
        """All keys that this class does not know."""
        return dict(self.model_extra or {})
