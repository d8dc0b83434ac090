"""What a user may have meant by a name that there is not."""

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'lr'?` with the known name that is most like a wrong one; an empty text where none is."""
    names = {name.lower(): name for name in known}
    alike = difflib.get_close_matches(wrong.lower(), names, n=1)
    return f"; did you mean {names[alike[0]]!r}?" if alike else ""
