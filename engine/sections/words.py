"""Options that are one of some words, or a name of the user's own: a function in a file, or a table."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from shoal.storage.options.types import absolute, is_own


def word_or_own(*words: str, table: bool = False, own: str = "my_function") -> AfterValidator:
    """Returns a check for one of some words, or a function or class of the user's, or as a `table` a CSV."""

    def check(name: str) -> str:
        if name not in words and not (is_csv if table else is_own)(name):
            raise ValueError(f"expected {', '.join(words)} or {'my_file.csv' if table else f'my_file.py:{own}'}")
        return name

    return AfterValidator(check)


def is_csv(name: Any) -> bool:
    """Returns whether a name is the path of a CSV."""
    return isinstance(name, str) and name.endswith(".csv")


Table = Annotated[str, BeforeValidator(lambda name: absolute(name) if is_csv(name) else name)]
