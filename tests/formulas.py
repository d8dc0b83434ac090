"""Formulas of the documentation as MathML, which browsers draw by themselves: a hook of mkdocs."""

import html
import re
from typing import Any

# What pymdownx.arithmatex leaves of $…$ and $$…$$.
FORMULA = re.compile(r'(?s)(<(?:span|div) class="arithmatex">)\\([(\[])(.*?)\\[)\]](</(?:span|div)>)')


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Draws the formulas of a page."""
    return FORMULA.sub(lambda found: found[1] + draw(html.unescape(found[3]), found[2] == "[") + found[4], content)


def draw(formula: str, alone: bool) -> str:
    """Returns MathML of a formula in TeX, `alone` on its line; a command that is not known ends the build."""
    from latex2mathml.converter import convert

    drawn = convert(formula.strip(), display="block" if alone else "inline")
    # Browsers know no variant of letters but `normal`.
    known = "\\" not in html.unescape(drawn) and not re.search('mathvariant="(?!normal)', drawn)
    assert known, f"expected TeX that latex2mathml writes for browsers, got {formula!r}: {drawn}"
    return drawn
