""" "Did you mean" suggestions for unknown names."""

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'lr'?` with the known name that is most like a wrong one; an empty text where none is."""
    names = {name.lower(): name for name in known}
    return _asked([names[close] for close in difflib.get_close_matches(wrong.lower(), names, n=1)])


def did_you_mean_at(wrong: str, known: Iterable[str]) -> str:
    """The same for a name that stands in a wrong place: dotted names that end with it."""
    return _asked([name for name in known if name.rpartition(".")[2] == wrong])


def _asked(names: list[str]) -> str:
    return f"; did you mean {' or '.join(map(repr, names))}?" if names else ""
