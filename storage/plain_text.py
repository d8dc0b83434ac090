"""Texts from data and configs as a terminal, a page or a table may have them."""

import re
import unicodedata

PERHAPS_NOT = re.compile(r"[^ -~\n]")


def plain_text(text: str) -> str:
    r"""Returns a text with its line ends, in which every character that is not shown stands as its escape, as `\x1b`.

    Names of classes, columns and files may have such: codes that colour a terminal, clear it, or turn a line around.
    """
    return PERHAPS_NOT.sub(_show, text)


def _show(match: re.Match[str]) -> str:
    character = match[0]
    # Spaces that do not break a line are no codes.
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return repr(character)[1:-1]
