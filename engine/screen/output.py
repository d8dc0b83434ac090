"""Lines and tables on the screen, in which texts from data and configs are plain."""

import json
from typing import Any

from rich import console as of_rich
from rich import table as tables_of_rich

from shoal.storage.plain_text import plain_text


def put(text: str = "", end: str = "\n") -> None:
    """Prints plain text on standard output."""
    print(plain_text(text), end=end)


def put_json(plain: object) -> None:
    """Prints plain values as JSON on standard output."""
    put(json.dumps(plain, indent=1, allow_nan=False))


class Console(of_rich.Console):
    """A console of rich whose texts are plain, without markup."""

    def __init__(self, **options: Any) -> None:
        """Takes the options of rich's."""
        # Brackets and colons in a name or path are no markup and no emoji.
        super().__init__(markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints as rich's; a text of codes that move or colour a terminal is shown as it is written."""
        super().print(*(plain_text(item) if isinstance(item, str) else item for item in objects), **options)


class Table(tables_of_rich.Table):
    """A table of rich whose cells, heads and title are plain."""

    def __init__(self, *heads: Any, title: str | None = None, **options: Any) -> None:
        """Takes heads, as texts or columns, and the options of rich's."""
        heads = tuple(plain_text(head) if isinstance(head, str) else head for head in heads)
        super().__init__(*heads, title=None if title is None else plain_text(title), **options)

    def add_column(self, header: Any = "", *arguments: Any, **options: Any) -> None:
        """Adds a column as rich's."""
        super().add_column(plain_text(header) if isinstance(header, str) else header, *arguments, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Adds a row as rich's."""
        super().add_row(*(plain_text(cell) if isinstance(cell, str) else cell for cell in cells), **options)
