"""Options that are one of some words, or a name of the user's own: a function in a file, or a table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from shoal.storage.options.types import absolute, is_own
from shoal.storage.suggestions import did_you_mean


@dataclass(frozen=True)
class Words:
    """A check for one of some words, or the user's own, `form`, as `is_form` tells; schemas of the type have both."""

    words: tuple[str, ...]
    form: str
    is_form: Callable[[str], bool]

    def check(self, name: str) -> str:
        """Returns a name. Raises ValueError: it is neither."""
        if name not in self.words and not self.is_form(name):
            meant = did_you_mean(name, self.words)
            raise ValueError(f"{meant}expected {', '.join(self.words)} or {self.form}")
        return name

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "enum": [*self.words]}, {"type": self.form}]}


def word_or_own(*words: str, table: bool = False, own: str = "my_function") -> Words:
    """Returns a check for one of some words, or a function or class of the user's, or as a `table` a CSV."""
    return Words(words, "my_file.csv", is_csv) if table else Words(words, f"my_file.py:{own}", is_own)


def is_csv(name: Any) -> bool:
    """Returns whether a name is the path of a CSV."""
    return isinstance(name, str) and name.endswith(".csv")


Table = Annotated[str, BeforeValidator(lambda name: absolute(name) if is_csv(name) else name)]
