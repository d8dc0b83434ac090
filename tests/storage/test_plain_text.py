"""Texts as a terminal may have them: every code is shown as it would be written, all else stays."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.storage.plain_text import plain_text


@given(st.text())
def test_only_what_is_shown_and_line_ends_are_left(text: str) -> None:
    plain = plain_text(text)
    assert all(c == "\n" or unicodedata.category(c)[0] not in "CZ" or unicodedata.category(c) == "Zs" for c in plain)
    assert plain_text(plain) == plain
    if all(c.isprintable() for c in text):
        assert plain == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\tc\x07\x9b2J", r"a\rb\tc\x07\x9b2J"),
        ("left \u202eright", r"left \u202eright"),
        ("two\nlines", "two\nlines"),
        ("naïve — 漢字 é\xa0%", "naïve — 漢字 é\xa0%"),
        ("\ue000", r"\ue000"),
    ],
)
def test_codes_are_escaped(text: str, plain: str) -> None:
    assert plain_text(text) == plain
