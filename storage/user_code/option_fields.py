"""Options that are the fields of a dataclass: values of a config become those of the fields' types."""

import dataclasses
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, ValidationError

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import adapter, checked, message_of, quoted
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.tracebacks import in_words

NO_TYPE = (PydanticSchemaGenerationError, PydanticUndefinedAnnotation)


def field_values(cls: type, options: Mapping[str, Any], section: str, name: str, where: str) -> dict[str, Any]:
    """Converts options to the types of the fields of a dataclass; `section` precedes an option in errors.

    Raises ShoalError: an option is unknown or of a wrong type, a default is, or a type cannot be found.
    """
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    try:
        hints = _hints(cls)
    except Exception as error:
        raise ShoalError(where, f"the types of {cls.__name__} cannot be found: {in_words(error)}") from error
    for key in options:
        if key not in fields:
            choices = ", ".join(fields) or "no option"
            raise ShoalError(f"{section}{key}", f"{did_you_mean(key, fields)}unknown; {name} has {choices}")
    values = {}
    for key, value in options.items():
        try:
            values[key] = checked(hints[key], value)
        except ValueError as error:
            raise ShoalError(f"{section}{key}", f"{error}, found {quoted(value)}") from None
        except NO_TYPE:
            raise ShoalError(f"{section}{key}", f"{name} gives it a type that no config can hold") from None
    for key, field in fields.items():
        if key not in options and field.default is not dataclasses.MISSING:
            _require_default(f"{where}: the default of {cls.__name__}.{key}", hints[key], field.default)
    return values


@lru_cache(maxsize=64)
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def require_all(cls: type, values: Mapping[str, Any], section: str) -> None:
    """Raises a ShoalError for a field of a dataclass that has neither a default nor a value."""
    for field in dataclasses.fields(cls):
        missing = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and missing and field.name not in values:
            raise ShoalError(f"{section}{field.name}", "missing")


def _require_default(which: str, hint: Any, default: Any) -> None:
    try:
        adapter(hint).validate_python(default)
    except ValidationError as error:
        raise ShoalError(which, f"{message_of(error)}, found {default!r}") from None
    except NO_TYPE:
        return
